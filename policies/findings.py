"""What is wrong with policy files: errors that stop them, and findings that do not.

Every refusal has a stable code (``docs/codes.md``), a place, what was found, what is allowed and a way out. All
problems of all files travel together, because fixing them one run at a time is what makes people guess.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from policies.origin import Origin, Spot, origin

_SHOWN_CHARACTERS: Final = 60
_LINE_CHARACTERS: Final = 600  # every field of the largest block fits
_COMPARED_CHARACTERS: Final = 64  # difflib is quadratic, and a field name longer than this is not a typing slip


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Advice on policies that are valid: a stable code (``SG1xx``), where, what, and what to do about it.

    ``origin`` is None where the finding is about a built-in default that nobody wrote.
    """

    code: str
    origin: Origin | None
    path: str
    message: str
    fix: str

    def __str__(self) -> str:
        """One line, as compilers write warnings."""
        return f"{self.origin or 'built-in'}: {self.code}: {self.path}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong at one spot of a text, whatever file the text is in."""

    code: str
    at: Spot
    message: str
    path: str = ""
    found: str = ""
    allowed: str = ""
    hint: str = ""

    def error(self, file: str) -> "PolicyError":
        """The same, said of this file."""
        return PolicyError(
            code=self.code,
            origin=origin(file, self.at),
            path=self.path,
            found=self.found,
            allowed=self.allowed,
            message=self.message,
            hint=self.hint,
        )


class PolicyError(Exception):
    """One thing the author of a policy must change."""

    def __init__(
        self,
        *,
        code: str,
        origin: Origin,
        message: str,
        path: str = "",
        found: str = "",
        allowed: str = "",
        hint: str = "",
    ) -> None:
        """Say what is wrong; ``path`` is the field (``spec.endpoints[3].port``), empty where there is none."""
        self.code = code
        self.origin = origin
        # Names come from the files: they may be as long, and as full of control characters, as somebody likes.
        self.path = _one_line(path)
        self.found = _one_line(found)
        self.allowed = _one_line(allowed)
        self.message = _one_line(message)
        self.hint = _one_line(hint)
        super().__init__(code, origin, self.path, self.message)

    def __str__(self) -> str:
        """``file:line:column: SG023: spec.endpoints[3].prot: message``, on one line."""
        where = f"{self.path}: " if self.path else ""
        return f"{self.origin}: {self.code}: {where}{self.message}"


class PolicyErrors(ExceptionGroup[PolicyError]):
    """Every problem of every file, in the order of files and lines."""

    @classmethod
    def of(cls, errors: Iterable[PolicyError], noun: str = "policy") -> Self:
        """The group of these errors of ``noun`` files, sorted; there must be at least one."""
        ordered = sorted(errors, key=lambda error: (error.origin, error.code, error.path, error.message))
        count = len(ordered)
        return cls(f"{count} problem{'s' if count != 1 else ''} in {noun} files", ordered)

    def derive(self, excs: Sequence[PolicyError], /) -> "PolicyErrors":  # type: ignore[override]
        """A part of the group keeps its type."""
        return PolicyErrors(self.message, list(excs))


def _one_line(text: str) -> str:
    short = text if len(text) <= _LINE_CHARACTERS else text[: _LINE_CHARACTERS - 1] + "…"
    return short if short.isprintable() else "".join(map(_visible, short))


def _visible(character: str) -> str:
    return character if character.isprintable() else f"\\u{ord(character):04x}"


def format_value(value: object) -> str:  # noqa: PLR0911 - one line per kind of value
    """A value as the operator would write it, short and on one line."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case dict():
            return "a block of fields" if value else "an empty block"
        case list() | tuple():
            return f"a list of {len(value)}"
        case str():
            text = value if len(value) <= _SHOWN_CHARACTERS else value[: _SHOWN_CHARACTERS - 1] + "…"
            return '"' + "".join(map(_visible, text)) + '"'
        case int() if value.bit_length() > 200:
            return "a number of more than sixty digits"
        case _:
            return str(value)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``did you mean maxWait?`` when one of ``known`` is close to ``word``, however it is cased; else empty."""
    plain = {_plain(one): one for one in known}
    asked = _plain(word[:_COMPARED_CHARACTERS])
    close = [asked] if asked in plain else difflib.get_close_matches(asked, plain, n=1, cutoff=0.6)
    return f"did you mean {plain[close[0]]}?" if close else ""


def _plain(word: str) -> str:
    return word.replace("_", "").replace("-", "").lower()
