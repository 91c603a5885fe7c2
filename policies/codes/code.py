"""A code: the stable name of one error, warning or remark."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """One code. ``example`` is YAML that draws it; where no text can, ``situation`` describes one.

    ``severity`` (info, warning, critical) marks a condition of a running server; empty for other codes.
    ``runbook``: its page in ``docs/runbooks``, if it has one. ``note``: about valid policies, and no warning.
    """

    code: str
    title: str
    meaning: str
    fix: str
    example: str = ""
    situation: str = ""
    severity: str = ""
    runbook: str = ""
    note: bool = False

    @property
    def is_error(self) -> bool:
        """Whether the files are refused; otherwise it is a warning or a remark."""
        return self.code < "SG1"

    @property
    def level(self) -> Literal["error", "warning", "note"]:
        """``error``, ``warning`` or ``note``, as compilers and SARIF call them."""
        return "error" if self.is_error else "note" if self.note else "warning"


def as_file(text: str) -> str:
    """An example as a file."""
    return text.strip("\n") + "\n"


def policy_of(spec: str) -> str:
    """The document of a policy with only this spec."""
    return f"kind: ResiliencePolicy\nmetadata: {{name: default}}\nspec: {{{spec}}}\n"
