"""The screen of ``switchgear top``: lines for a terminal of any size, most important first."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from xds_server.admin_api.live_types import EngineRow, ServerRow
from xds_server.admin_api.status_types import Severity
from xds_server.cli.diagnostics import printable
from xds_server.cli.output_format import style_of
from xds_server.diagnosis.check_result import state_of
from xds_server.diagnosis.event_text import change_text
from xds_server.diagnosis.live_state import LiveState, bar, utilization, window
from xds_server.model.text import age_text, count_text

NARROW: Final = 90
"""Below this width bars are left out."""

_HEALTHS: Final = {"HEALTHY": "green", "DRAINING": "yellow", "UNHEALTHY": "bold red"}
_NAME: Final = 24
_POOL: Final = 16
_MOST_POOLS: Final = 6
_MOST_CONDITIONS: Final = 6
_EVENTS: Final = 6
_KEYS: Final = "q quit  p pool  s sort  up/down select  enter explain"


@dataclass(slots=True, kw_only=True)
class TopSelection:
    """The user's selection. ``explanation``: the text on one engine; None while the table is shown."""

    pool: str = ""
    sort: str = "worst"
    selected: str = ""
    explanation: str | None = None


def render_screen(board: LiveState, choice: TopSelection, width: int, height: int, trouble: str = "") -> Text:
    """The whole screen within width and height; ``height`` 0 is unlimited (a pipe)."""
    lines = [_head(board, choice, trouble)]
    if choice.explanation is not None:
        lines += [Text(""), *map(Text, choice.explanation.splitlines())]
        lines = lines[: height - 1] if height else lines
        return _joined([*lines, Text("esc back  q quit", style="dim")] if height else lines, width)
    lines += [Text(""), *_pools(board, choice, width), *_conditions(board)]
    events = _events(board, choice)
    rows = board.engines(choice.pool, choice.sort)
    if height:
        room = height - len(lines) - 3
        events = events[: max(0, min(len(events), room - min(len(rows), 3)))]
        room -= len(events)
        lines += [Text(""), *_engines(rows, choice, width, room), *events]
        lines = lines[: height - 1]
        lines.append(Text(_KEYS, style="dim"))
    else:
        lines += [Text(""), *_engines(rows, choice, width, len(rows)), *events]
    return _joined(lines, width)


def _joined(lines: Sequence[Text], width: int) -> Text:
    for line in lines:
        line.rstrip()
        if width:
            line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines)


def _head(board: LiveState, choice: TopSelection, trouble: str) -> Text:
    if trouble:
        known = "; last known state:" if board.server else ""
        return Text(f"switchgear top  {printable(trouble)}{known}", style="bold red")
    server = board.server or ServerRow()
    policies = server.policies
    parts = [
        time.strftime("%H:%M:%S", time.localtime(board.at_unix_s)),
        "serving" if server.ready else "not ready",
        f"policies {policies} {server.digest}".rstrip(),
        f"{count_text(len(board.tables.engines), 'engine')}, {count_text(len(board.tables.proxies), 'proxy')}",
        f"pool {choice.pool or 'all'}, sort {choice.sort}",
    ]
    calm = server.ready and policies == "accepted"
    return Text(printable("  ".join(parts)), style="bold" if calm else "bold yellow")


def _pools(board: LiveState, choice: TopSelection, width: int) -> Iterator[Text]:
    pools = board.pools(choice.pool)
    wide = width == 0 or width >= NARROW
    cells = _POOL if wide else min(_POOL, max(map(len, ("POOL", *(name for name, _ in pools)))))
    head = f"{'POOL':<{cells}} {'IN ROTATION':>11} {'LEVEL':>5} {'OK/S':>7} {'SHED/S':>7} {'LIMIT/SLOTS':>14}"
    yield Text(f"{head}  LOAD" if wide else head, style="bold")
    for name, row in pools[:_MOST_POOLS]:
        slots, held, ceiling = row.slots, row.in_flight, row.ceiling
        line = (
            f"{_cut(name, cells)} {f'{row.healthy}/{row.engines}':>11} {row.level:>5} {_rate(row.done_per_s)} "
            f"{_rate(row.shed_per_s)} {'-' if ceiling is None else ceiling:>6}/{slots or 0:<7g}"
        )
        if wide:
            ratio = held / slots if slots and held is not None else None
            notes = (row.stage, row.level_reason if row.level else "")
            line += f"  {bar(ratio, 10)} {'; '.join(one for one in notes if one)}"
        whole = row.healthy == row.engines and not row.level
        yield Text(printable(line), style="" if whole else "yellow")
    if len(pools) > _MOST_POOLS:
        yield Text(f"... and {len(pools) - _MOST_POOLS} more (p selects one)", style="dim")
    if not pools:
        yield Text("no pools are served")


def _conditions(board: LiveState) -> Iterator[Text]:
    """Conditions of the server; those of info severity, which pass, are in ``switchgear status``."""
    found = [one for one in board.conditions() if one.severity != Severity.INFO]
    if not found and board.server is not None:  # an earlier version of the server sends these instead
        yield from (Text(printable(one).replace("\n", " "), style="bold red") for one in board.server.troubles)
    for one in found[:_MOST_CONDITIONS]:
        age = "" if one.since is None else f" (for {age_text(max(0.0, board.at_unix_s - one.since))})"
        line = f"{one.severity} {one.code} {one.subject}: {one.sentence}{age}"
        yield Text(printable(line).replace("\n", " "), style=style_of(state_of(one.severity)))
    if len(found) > _MOST_CONDITIONS:
        yield Text(f"... and {len(found) - _MOST_CONDITIONS} more: `switchgear status`", style="yellow")


def _engines(rows: Sequence[tuple[str, EngineRow]], choice: TopSelection, width: int, room: int) -> Iterator[Text]:
    wide = width == 0 or width >= NARROW
    names = [name for name, _ in rows]
    longest = max(map(len, names), default=0)
    # Whole names where there is room, in at most a third of the line: the rest is for the reason.
    cells = (
        max(_NAME, min(longest, width // 3) if width else longest)
        if wide
        else min(_NAME, max(longest, len("ENGINE")))
    )
    head = f"  {'ENGINE':<{cells}} {'HEALTH':<9} {'VERDICT':<9}"
    yield Text(head + (f" {'LOAD':<17} {'ERR%':>5}  WHY" if wide else " BUSY WHY"), style="bold")
    selected = names.index(choice.selected) if choice.selected in names else 0
    first = window(rows, selected, room)
    for number, (name, row) in enumerate(rows[first : first + max(0, room)], first):
        chosen = bool(choice.selected) and number == selected
        health = row.health or "UNKNOWN"
        line = Text(f"{'>' if chosen else ' '} {_told_apart(name, cells)} ", style="reverse" if chosen else "")
        line.append(f"{health:<9}", style=_HEALTHS.get(health, ""))
        line.append(f" {_cut(row.verdict or '-', 9)} ")
        busy = "-" if row.in_flight is None else f"{row.in_flight:g}"
        if wide:
            slots = "-" if row.slots is None else f"{row.slots:g}"
            error = "-" if row.error_percent is None else f"{row.error_percent:.0f}"
            line.append(f"{bar(utilization(row), 8)} {f'{busy}/{slots}':<8} {error:>5}  ")
        else:
            line.append(f"{busy:>4} ")
        line.append(printable(_reason(row)).replace("\n", " "))
        yield line


def _reason(row: EngineRow) -> str:
    notes = []
    if row.order:
        notes.append(f"order: {row.order}")
    if row.floor:
        notes.append("kept in rotation by the capacity floor")
    if row.traffic_percent < 100:
        notes.append(f"on trial with {row.traffic_percent:g} % of its traffic")
    if row.shunned:
        notes.append(f"avoided by {count_text(row.shunned, 'proxy')}")
    if row.health != "HEALTHY" or row.floor:
        notes.append(f"SG208 {row.reason}" if row.health not in (None, "HEALTHY") else row.reason)
    return "; ".join(notes)


def _events(board: LiveState, choice: TopSelection) -> list[Text]:
    latest = board.latest(_EVENTS, choice.pool)
    if not latest:
        return []
    lines = [Text("LAST EVENTS", style="bold")]
    for one in latest:
        times = f" x{one.times}" if one.times > 1 else ""
        ago, whom = age_text(max(0.0, board.at_unix_s - one.at)), one.subject or "server"
        text = f"{ago:>6} ago  {whom}: {change_text(one.kind, one.before, one.after)}{times}: {one.evidence}"
        lines.append(Text(printable(text).replace("\n", " "), style="red" if one.alarm else ""))
    return lines


def _rate(value: float | None) -> str:
    return f"{'-' if value is None else f'{value:.1f}':>7}"


def _cut(text: str, cells: int) -> str:
    return printable(text if len(text) <= cells else f"{text[: cells - 1]}…").ljust(cells)


def _told_apart(name: str, cells: int) -> str:
    """``pool/engine`` in this many columns: the pool is cut first, then the middle of the engine name."""
    pool, _, engine = name.partition("/")
    if len(name) > cells:
        if len(engine) + 3 <= cells:
            name = f"{pool[: cells - len(engine) - 2]}…/{engine}"
        else:
            name = f"{engine[: cells // 2]}…{engine[-(cells - cells // 2 - 1) :]}"
    return printable(name).ljust(cells)
