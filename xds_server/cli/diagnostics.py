"""Errors and findings on policies, as text for people and as records for machines."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

import click

from policies.codes import CODES
from policies.findings import Finding, PolicyError, PolicyErrors
from policies.origin import Origin
from policies.policy_files import first_lines

SHOWN: Final = 50
"""Findings shown as text; fix these and run again for the rest."""

_WIDTH: Final = 100
_TOKEN: Final = re.compile(r"""[^\s,:\[\]{}#]+|.""")

Level: TypeAlias = Literal["error", "warning", "note"]

_COLOURS: Final[Mapping[Level, str]] = {"error": "red", "warning": "yellow", "note": "cyan"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """An error or a finding, with what both have in common."""

    level: Level
    code: str
    origin: Origin | None
    path: str
    message: str
    found: str = ""
    allowed: str = ""
    hint: str = ""

    def record(self) -> Mapping[str, str | int]:
        """As JSON; ``line`` and ``column`` are 0 where the file as a whole is meant."""
        return {
            "level": self.level,
            "code": self.code,
            "file": self.origin.file if self.origin else "",
            "line": self.origin.line if self.origin else 0,
            "column": self.origin.column if self.origin else 0,
            "path": self.path,
            "message": self.message,
            "found": self.found,
            "allowed": self.allowed,
            "hint": self.hint,
        }


def from_errors(errors: PolicyErrors) -> tuple[Diagnostic, ...]:
    """Errors as complaints, in their order."""
    return tuple(
        Diagnostic(
            level="error",
            code=one.code,
            origin=one.origin,
            path=one.path,
            message=one.message,
            found=one.found,
            allowed=one.allowed,
            hint=one.hint,
        )
        for one in errors.exceptions
        if isinstance(one, PolicyError)
    )


def from_findings(findings: Iterable[Finding]) -> tuple[Diagnostic, ...]:
    """Findings as complaints, in their order."""
    return tuple(
        Diagnostic(
            level=CODES[one.code].level,
            code=one.code,
            origin=one.origin,
            path=one.path,
            message=one.message,
            hint=one.fix,
        )
        for one in findings
    )


def printable(text: str) -> str:
    """Text that any terminal can show: file names need not be UTF-8, and control characters stay out."""
    clean = text.encode("utf-8", "replace").decode()
    return "".join(one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in clean)


def as_text(complaints: Sequence[Diagnostic], *, most: int = SHOWN) -> str:
    """Every finding in compiler format: location, code, message; the line with a caret; the fix."""
    shown = [_clean(one) for one in complaints[:most]]
    lines = _source_lines(shown)
    blocks = ["\n".join(_block(one, lines)) for one in shown]
    if len(complaints) > most:
        blocks.append(f"... and {len(complaints) - most} more (--all shows them)")
    return "\n\n".join(blocks)


def _clean(one: Diagnostic) -> Diagnostic:
    """The complaint with nothing in it that a terminal would act on; the name of the file stays what it is."""
    return replace(
        one,
        path=printable(one.path),
        message=printable(one.message),
        found=printable(one.found),
        allowed=printable(one.allowed),
        hint=printable(one.hint),
    )


def _source_lines(complaints: Sequence[Diagnostic]) -> Mapping[tuple[str, int], str]:
    wanted: dict[str, set[int]] = {}
    for one in complaints:
        if one.origin is not None and one.origin.line:
            wanted.setdefault(one.origin.file, set()).add(one.origin.line)
    return {
        (file, number): printable(line.rstrip("\r"))
        for file, numbers in wanted.items()
        for number, line in first_lines(Path(file), frozenset(numbers))
    }


def _block(one: Diagnostic, lines: Mapping[tuple[str, int], str]) -> Iterator[str]:
    colour = _COLOURS[one.level]
    where = f"{one.path}: " if one.path else ""
    # On one line, so that an editor can follow it: names of files may contain line breaks, too.
    place = click.style(printable(str(one.origin or "built-in").replace("\n", "\0")), bold=True)
    yield f"{place}: {click.style(f'{one.level} {one.code}', fg=colour)}: {where}{one.message}"
    line = lines.get((one.origin.file, one.origin.line)) if one.origin else None
    if one.origin is not None and line is not None:
        yield from _pointed(line, one.origin.line, one.origin.column, colour)
    for name in ("found", "allowed", "hint"):
        said = getattr(one, name)
        if said and not (name == "found" and said in one.message):
            label = f"{name + ':':<9}"
            yield textwrap.fill(
                f"{label}{said}", _WIDTH, initial_indent="    ", subsequent_indent=" " * 13, break_long_words=False
            )


def _pointed(line: str, number: int, column: int, colour: str) -> Iterator[str]:
    """The line of the file, and a caret below the place."""
    at = min(column - 1, len(line))
    begin = max(0, at - _WIDTH // 2) if len(line) > _WIDTH else 0
    part = line[begin : begin + _WIDTH]
    token = _TOKEN.match(line, at)
    # Tabs in front of the caret keep their width only as tabs.
    space = "".join("\t" if one == "\t" else " " for one in line[begin:at])
    caret = "^" * min(len(token.group()) if token else 1, _WIDTH - (at - begin))
    yield f"{number:>7} | {part}"
    yield f"        | {space}{click.style(caret, fg=colour)}"
