"""The state of a server from the messages of ``/v1/live``, and the rows to show, in order. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from xds_server.admin_api.live_types import (
    ConditionRow,
    EngineRow,
    EventRow,
    LiveChange,
    LiveFrame,
    LiveTables,
    PoolRow,
    ProxyRow,
    Row,
    ServerRow,
    ZoneRow,
    wire_row,
)
from xds_server.admin_api.parse import parse

MOST_EVENTS: Final = 50
SORTS: Final = ("worst", "load", "name")


@dataclass(slots=True, kw_only=True)
class LiveState:
    """Tables by row name, and the newest events, oldest first."""

    at_unix_s: float = 0.0
    tables: LiveTables = field(default_factory=LiveTables)
    events: tuple[EventRow, ...] = ()

    def take(self, event: str, data: Mapping[str, Any]) -> None:
        """Apply a message: a full frame, or differences; ``ShapeError`` if it is neither."""
        if event == "frame":
            frame = parse(LiveFrame, data)
            self.at_unix_s, self.tables, self.events = frame.at, frame.tables, frame.events[-MOST_EVENTS:]
            return
        change = parse(LiveChange, data)
        self.at_unix_s = change.at
        self.events = (*self.events, *change.events)[-MOST_EVENTS:]
        changed: dict[str, Any] = {
            name: _merged(kind, getattr(self.tables, name), change.tables[name])
            for name, kind in _ROWS.items()
            if name in change.tables
        }
        self.tables = replace(self.tables, **changed)

    @property
    def server(self) -> ServerRow | None:
        """The server itself; None before the first frame."""
        return self.tables.server.get("server")

    def pools(self, only: str = "") -> list[tuple[str, PoolRow]]:
        """Pools by name; one where ``only`` names it."""
        return [(name, row) for name, row in sorted(self.tables.pools.items()) if only in ("", name)]

    def engines(self, only: str = "", sort: str = "worst") -> list[tuple[str, EngineRow]]:
        """Engines in the requested order; of one pool if ``only`` names it."""
        found = [(name, row) for name, row in self.tables.engines.items() if only in ("", row.pool)]
        if sort == "name":
            return sorted(found, key=lambda one: one[0])
        if sort == "load":
            return sorted(found, key=lambda one: (-(utilization(one[1]) or 0.0), one[0]))
        return sorted(found, key=lambda one: (health_rank(one[1]), -(utilization(one[1]) or 0.0), one[0]))

    def conditions(self) -> list[ConditionRow]:
        """Conditions, the most severe first."""
        return [row for _, row in sorted(self.tables.conditions.items(), key=lambda one: (one[1].rank, one[0]))]

    def latest(self, most: int, only: str = "") -> list[EventRow]:
        """The newest events, newest first."""
        return [one for one in reversed(self.events) if only in ("", one.pool)][:most]


_ROWS: Final[Mapping[str, type[Row]]] = {
    "server": ServerRow,
    "conditions": ConditionRow,
    "pools": PoolRow,
    "zones": ZoneRow,
    "engines": EngineRow,
    "proxies": ProxyRow,
}


def _merged(
    kind: type[Row], table: Mapping[str, Row], change: Mapping[str, Mapping[str, Any] | None]
) -> Mapping[str, Row]:
    """The table with the changes applied."""
    merged = dict(table)
    for key, fields in change.items():
        if fields is None:
            merged.pop(key, None)
        else:
            merged[key] = parse(kind, (wire_row(merged[key]) if key in merged else {}) | dict(fields))
    return merged


def health_rank(engine: EngineRow) -> int:
    """Sort rank; 0 needs attention first."""
    if engine.health not in ("HEALTHY", None):
        return 0
    if engine.floor or engine.order or engine.shunned or engine.traffic_percent < 100:
        return 1
    return 3 if engine.verdict in ("ready", "busy") else 2


def utilization(engine: EngineRow) -> float | None:
    """Requests in flight over slots; None if unknown."""
    slots, held = engine.slots, engine.in_flight
    return held / slots if slots and held is not None else None


def bar(ratio: float | None, cells: int) -> str:
    """A bar of this many characters; full from 1 on."""
    if ratio is None:
        return "-".ljust(cells)
    full = max(0, min(cells, round(ratio * cells)))
    return "█" * full + "·" * (cells - full)


def window(rows: Sequence[Any], selected: int, room: int) -> int:
    """The first of ``room`` rows to show, so that the selected one is visible."""
    if room <= 0 or len(rows) <= room:
        return 0
    return max(0, min(selected - room // 2, len(rows) - room))
