"""Errors in policy files, and findings (warnings) about valid ones.

Each has a stable code (``docs/codes.md``), a place, the value found, the allowed values and a fix. All problems of
all files are reported at once.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from policies.origin import Origin, Spot, origin

_SHOWN_CHARACTERS: Final = 60
_LINE_CHARACTERS: Final = 600  # fits all fields of the largest block
_COMPARED_CHARACTERS: Final = 64  # difflib is quadratic, and longer names are rarely typing errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A warning about valid policies: stable code (``SG1xx``), place, message and fix.

    ``origin`` is None where no line causes it.
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
    """A problem at one spot of a text, without its file."""

    code: str
    at: Spot
    message: str
    path: str = ""
    found: str = ""
    allowed: str = ""
    hint: str = ""

    def error(self, file: str) -> "PolicyError":
        """The problem as an error of this file."""
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
    """One problem that the author of a policy must fix."""

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
        """``path`` is the field (``spec.endpoints[3].port``), empty where there is none."""
        self.code = code
        self.origin = origin
        # Names come from files: they may be long and contain control characters.
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
    """A value as an operator would write it, short and on one line."""
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
            return "a number with more than 60 digits"
        case _:
            return str(value)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``did you mean maxWait?`` if one of ``known`` is close to ``word``, ignoring case; else empty."""
    plain = {_plain(one): one for one in known}
    wanted = _plain(word[:_COMPARED_CHARACTERS])
    close = [wanted] if wanted in plain else difflib.get_close_matches(wanted, plain, n=1, cutoff=0.6)
    return f"did you mean {plain[close[0]]}?" if close else ""


def _plain(word: str) -> str:
    return word.replace("_", "").replace("-", "").lower()
