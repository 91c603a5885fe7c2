"""How checks look, and when a live screen can be drawn."""

import os
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Final

from rich.console import Console
from rich.segment import Segment, Segments
from rich.table import Table

from xds_server.admin_api.status_types import Condition
from xds_server.diagnosis.check_result import CheckState
from xds_server.model.text import age_text

_UNBOUNDED: Final = 10_000
_STYLES: Final = {
    CheckState.OK: "green",
    CheckState.INFO: "cyan",
    CheckState.WARN: "yellow",
    CheckState.FAIL: "bold red",
}


def console(*, whole_lines: bool = False) -> Console:
    """A Rich console: coloured on a terminal unless ``NO_COLOR`` is set; a pipe gets whole lines.

    ``whole_lines``: however narrow the terminal is.
    """
    wide = _UNBOUNDED if whole_lines or (not sys.stdout.isatty() and "COLUMNS" not in os.environ) else None
    return Console(width=wide, highlight=False)


def show_table(out: Console, table: Table) -> None:
    """Print the table without trailing blanks."""
    lines = Segment.split_lines(out.render(table))
    out.print(Segments(chain.from_iterable(_trimmed(line) for line in lines)), soft_wrap=True, end="")


def _trimmed(line: list[Segment]) -> Iterator[Segment]:
    """The line without trailing blanks."""
    while line and not line[-1].text.rstrip():
        line = line[:-1]
    if line:
        yield from line[:-1]
        yield Segment(line[-1].text.rstrip(), line[-1].style)
    yield Segment.line()


def redrawn() -> bool:
    """Whether stdout is a terminal that can be redrawn; a dumb one (``TERM=dumb``) counts as a pipe."""
    return sys.stdout.isatty() and not Console().is_dumb_terminal


def style_of(state: CheckState) -> str:
    """The colour of a check's state."""
    return _STYLES[state]


def condition_line(one: Condition, now_unix_s: float) -> str:
    """One line: ``critical SG204 proxy n1: RDS refused: ... (for 5m)``."""
    since = one.since_unix_s
    age = "" if since is None else f" (for {age_text(max(0.0, now_unix_s - since))})"
    return f"{one.severity} {one.code} {one.subject}: {one.sentence}{age}"
