"""The state of a server as ``/v1/live`` tells it, and which rows of it a screen shows in which order. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Row = dict[str, Any]

MOST_EVENTS: Final = 50
SORTS: Final = ("worst", "load", "name")


@dataclass(slots=True, kw_only=True)
class LiveState:
    """Tables by name and row, and the newest events, oldest first."""

    at_unix_s: float = 0.0
    tables: dict[str, dict[str, Row]] = field(default_factory=dict)
    events: list[Row] = field(default_factory=list)

    def take(self, event: str, data: Mapping[str, Any]) -> None:
        """A message of the stream: a whole frame, or what became different since the last."""
        self.at_unix_s = float(data["at"])
        if event == "frame":
            self.tables = {name: dict(rows) for name, rows in data["tables"].items()}
            self.events = list(data["events"])[-MOST_EVENTS:]
            return
        for name, rows in data["tables"].items():
            table = self.tables.setdefault(name, {})
            for key, row in rows.items():
                if row is None:
                    table.pop(key, None)
                else:
                    table[key] = {**table.get(key, {}), **row}
        self.events = [*self.events, *data["events"]][-MOST_EVENTS:]

    def of(self, table: str) -> dict[str, Row]:
        """The rows of a table; none where the server does not have it."""
        return self.tables.get(table, {})

    @property
    def server(self) -> Row:
        """What there is to say of the server itself."""
        return self.of("server").get("server", {})

    def pools(self, only: str = "") -> list[tuple[str, Row]]:
        """Pools by name; one where ``only`` names it."""
        return [(name, row) for name, row in sorted(self.of("pools").items()) if only in ("", name)]

    def engines(self, only: str = "", sort: str = "worst") -> list[tuple[str, Row]]:
        """Engines in the order that was asked for; of one pool where ``only`` names it."""
        found = [(name, row) for name, row in self.of("engines").items() if only in ("", row["pool"])]
        if sort == "name":
            return sorted(found)
        if sort == "load":
            return sorted(found, key=lambda one: (-(utilization(one[1]) or 0.0), one[0]))
        return sorted(found, key=lambda one: (health_rank(one[1]), -(utilization(one[1]) or 0.0), one[0]))

    def behind(self) -> list[tuple[str, str]]:
        """Proxies that do not have what they should, refusals first, each with what it is."""
        found = []
        for name, row in self.of("proxies").items():
            states = {kind: state for kind, state in row["types"].items() if state != "SYNCED"}
            if states:
                said = ", ".join(f"{kind} {state}" for kind, state in states.items())
                why = f": {row['refused'][0]}" if row["refused"] else ""
                found.append(("NACK" not in states.values(), name, f"{said}{why}"))
        return [(name, said) for _, name, said in sorted(found)]

    def latest(self, most: int, only: str = "") -> list[Row]:
        """The newest events, newest first."""
        return [one for one in reversed(self.events) if only in ("", one["pool"])][:most]


def health_rank(engine: Mapping[str, Any]) -> int:
    """0 for what needs a look first."""
    if engine["health"] not in ("HEALTHY", None):
        return 0
    if engine["floor"] or engine["order"] or engine["shunned"] or engine["trafficPercent"] < 100:
        return 1
    return 3 if engine["verdict"] in ("ready", "busy") else 2


def utilization(engine: Mapping[str, Any]) -> float | None:
    """Requests in flight over slots; None where either is not known."""
    slots, held = engine["slots"], engine["inFlight"]
    return held / slots if slots and held is not None else None


def bar(ratio: float | None, cells: int) -> str:
    """A bar of so many characters; full from 1 on."""
    if ratio is None:
        return "-".ljust(cells)
    full = max(0, min(cells, round(ratio * cells)))
    return "█" * full + "·" * (cells - full)


def window(rows: Sequence[Any], selected: int, room: int) -> int:
    """The first row of those that fit into ``room`` so that the selected one is among them."""
    if room <= 0 or len(rows) <= room:
        return 0
    return max(0, min(selected - room // 2, len(rows) - room))
