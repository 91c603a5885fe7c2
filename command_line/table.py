"""The one table renderer: aligned columns, two blanks between them, upper-case headers, no boxes.

On a pipe every row is whole. On a terminal a table fits its width: free text is cut at the end first, then columns
are left out (figures, free text, words), and identity columns are cut last, in the middle (``chat-poo…gine-12``).
"""

import os
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import zip_longest
from typing import Final, TypeAlias

import click

_GAP: Final = "  "
_ELLIPSIS: Final = "…"
_KEPT_COLUMNS: Final = 2
"""Columns that stay however narrow the terminal: the name and the state."""

_WANTED_COLUMNS: Final = 3
"""Names are cut before fewer columns than this are shown."""

_SHORT_FREE: Final = 16
_LEAST_FREE: Final = 8
_LEAST_IDENTITY: Final = 12
_LEAST_WIDTH: Final = 20


class Role(Enum):
    """What a column holds, which decides how it gives way on a narrow terminal."""

    IDENTITY = "identity"
    """A name to copy: cut last, in the middle."""
    WORD = "word"
    """A state or a short word: never cut, left out after the figures."""
    FIGURE = "figure"
    """A number: right-aligned, never cut, left out first."""
    FREE = "free"
    """A sentence: cut first, at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """Header and role of a column. ``verbatim``: the header is a name and keeps its case.

    A ``minor`` column gives way as early as figures.
    """

    title: str
    role: Role = Role.WORD
    verbatim: bool = False
    minor: bool = False


@dataclass(frozen=True, slots=True)
class StyledText:
    """A cell with a colour, such as ``red``, or ``bold red``."""

    text: str
    style: str = ""


Cell: TypeAlias = str | StyledText


def coloured() -> bool:
    """Whether stdout is a terminal that shows colours, and ``NO_COLOR`` is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, style: str) -> str:
    """The text with the escapes of the style, where stdout shows colours."""
    if not style or not coloured():
        return text
    words = style.split()
    colour = next((word for word in words if word not in ("bold", "dim")), None)
    return click.style(text, fg=colour, bold="bold" in words or None, dim="dim" in words or None)


def terminal_width() -> int | None:
    """Columns of the terminal, or of ``COLUMNS`` where it is set; None on a pipe, where nothing is cut."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdecimal():
        return None
    return max(_LEAST_WIDTH, shutil.get_terminal_size().columns)


def show_table(
    columns: Sequence[TableColumn],
    rows: Sequence[Sequence[Cell]],
    *,
    headers: bool = True,
    whole: bool = False,
) -> None:
    """Print the table to stdout. ``whole``: rows are not cut, however narrow the terminal."""
    for line in table_lines(columns, rows, width=None if whole else terminal_width(), headers=headers):
        click.echo(line, color=coloured())


def table_lines(
    columns: Sequence[TableColumn],
    rows: Sequence[Sequence[Cell]],
    *,
    width: int | None = None,
    headers: bool = True,
    least: list[int] | None = None,
) -> list[str]:
    """The lines of the table, at most ``width`` columns wide; rows are whole where it is None.

    ``least`` is the least width of each column; it is raised to what was used, for rows that follow later.
    """
    cells = [[one if isinstance(one, StyledText) else StyledText(one) for one in row] for row in rows]
    cells = [[replace(one, text=_one_line(one.text)) for one in row] for row in cells]
    titles = [StyledText(column.title if column.verbatim else column.title.upper(), "bold") for column in columns]
    table = [titles, *cells] if headers else cells
    if not table:
        return []
    natural = [max(map(_width, (row[at].text for row in table))) for at in range(len(columns))]
    if least is not None:
        natural = [max(*pair) for pair in zip_longest(natural, least, fillvalue=0)]
        least[:] = natural
    shown = _fitted(columns, natural, width)
    lines = []
    for row in table:
        parts = []
        for at, room in shown:
            cell, role = row[at], columns[at].role
            text = _middle_cut(cell.text, room) if role is Role.IDENTITY else end_cut(cell.text, room)
            blanks = " " * (room - _width(text))
            last = at == shown[-1][0] and role is not Role.FIGURE
            text = styled(text, cell.style)
            parts.append(f"{blanks}{text}" if role is Role.FIGURE else text if last else f"{text}{blanks}")
        lines.append(_GAP.join(parts).rstrip())
    return lines


def _fitted(columns: Sequence[TableColumn], natural: Sequence[int], width: int | None) -> list[tuple[int, int]]:
    """The columns to show, by index, each with its room."""
    layout = _Layout(columns, natural)
    if width is not None:
        layout.fit(width)
    return list(layout.room.items())


class _Layout:
    """Room of each column that is shown, by index."""

    def __init__(self, columns: Sequence[TableColumn], natural: Sequence[int]) -> None:
        self._roles = [column.role for column in columns]
        self._minor = [column.minor or column.role is Role.FIGURE for column in columns]
        self._natural = natural
        self.room = dict(enumerate(natural))

    def fit(self, width: int) -> None:
        """Give way until the table fits, least important first."""
        self._shrink(Role.FREE, _SHORT_FREE, width)
        self._drop([at for at in self.room if self._minor[at] and at >= _KEPT_COLUMNS], width)
        self._shrink(Role.FREE, _LEAST_FREE, width)
        self._drop(self._of(Role.FREE), width, to=_WANTED_COLUMNS)
        self._drop([at for at in self._of(Role.WORD) if at >= _KEPT_COLUMNS], width, to=_WANTED_COLUMNS)
        self._shrink(Role.IDENTITY, _LEAST_IDENTITY, width)
        self._drop(self._of(Role.FREE), width)
        self._drop([at for at in self._of(Role.WORD) if at >= _KEPT_COLUMNS], width)
        self._drop(list(self.room)[1:], width)
        if self._over(width) > 0:
            self.room[next(iter(self.room))] = width
        # Columns that were left out may leave room for those that were cut before.
        for at in self._of(Role.IDENTITY) + self._of(Role.FREE):
            self.room[at] = min(self._natural[at], self.room[at] + max(0, -self._over(width)))

    def _over(self, width: int) -> int:
        return sum(self.room.values()) + len(_GAP) * (len(self.room) - 1) - width

    def _of(self, role: Role) -> list[int]:
        return [at for at in self.room if self._roles[at] is role]

    def _shrink(self, role: Role, least: int, width: int) -> None:
        """Take from the widest column first, down to ``least``."""
        while (over := self._over(width)) > 0:
            wide = sorted((at for at in self._of(role) if self.room[at] > least), key=self.room.__getitem__)
            if not wide:
                return
            second = self.room[wide[-2]] if len(wide) > 1 else least
            self.room[wide[-1]] -= max(1, min(over, self.room[wide[-1]] - second))

    def _drop(self, candidates: Sequence[int], width: int, *, to: int = 0) -> None:
        """Leave columns out, the last first, down to this number of columns."""
        for at in reversed(candidates):
            if self._over(width) > 0 and len(self.room) > to:
                del self.room[at]


def _one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")


def _width(text: str) -> int:
    """Columns on a terminal: East Asian characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text
    )


def end_cut(text: str, room: int) -> str:
    """The text in at most ``room`` columns, cut at the end."""
    return text if _width(text) <= room else f"{_begin(text, room - 1).rstrip()}{_ELLIPSIS}"


def _middle_cut(text: str, room: int) -> str:
    """The text in at most ``room`` columns, cut in the middle: names differ at their ends."""
    if _width(text) <= room:
        return text
    tail = (room - 1) // 2
    return f"{_begin(text, room - 1 - tail)}{_ELLIPSIS}{_begin(text[::-1], tail)[::-1]}"


def _begin(text: str, room: int) -> str:
    while _width(text) > room:
        text = text[: max(0, min(len(text) - 1, room))]
    return text
