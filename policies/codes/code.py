"""What a code is: the stable name of one thing that can be said about policies."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """One code. ``example`` is YAML that draws it; empty where no text can, and ``situation`` says what does."""

    code: str
    title: str
    meaning: str
    fix: str
    example: str = ""
    situation: str = ""

    @property
    def is_error(self) -> bool:
        """Whether the files are refused; otherwise it is advice."""
        return self.code < "SG1"


def as_file(text: str) -> str:
    """An example as it would stand in a file."""
    return text.strip("\n") + "\n"


def policy_of(spec: str) -> str:
    """The document of a policy that says only this."""
    return f"kind: ResiliencePolicy\nmetadata: {{name: default}}\nspec: {{{spec}}}\n"
