"""Types of the stream ``/v1/live``: a full frame, then changes. Read by dashboard and `switchgear top`.

A frame holds six tables of named rows. Wire names are camel case, for JavaScript. Rows have no ages, which would
change every row every second.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, TypeAlias

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

_ALIASES: Final = {"arrivals_per_s": "askedPerS"}
"""Wire names older than their fields."""


def _wire_name(name: str) -> str:
    return _ALIASES.get(name, to_camel(name))


_CAMEL: Final = ConfigDict(alias_generator=_wire_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRow:
    """The server: readiness and policies. The last four fields are for `switchgear top` of earlier versions."""

    __pydantic_config__: ClassVar[ConfigDict] = _CAMEL

    ready: bool = False
    reason: str = ""
    policies: str = "?"
    digest: str = ""
    stale: bool = False
    problems: tuple[str, ...] = ()
    held: str = ""
    lost: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionRow:
    """One condition, keyed by code, subject and a number. ``rank``: 0 for the most severe.

    ``since`` is a Unix time. ``name``: what ``/v1/why`` explains, empty if nothing. ``runbook``: its page.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _CAMEL

    code: str
    severity: str = "critical"
    rank: int = 0
    subject: str = ""
    sentence: str = ""
    fix: str = ""
    since: float | None = None
    name: str = ""
    count: int = 1
    runbook: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    """One pool, keyed by name; ``adapters``: engines in rotation that have each adapter of routes."""

    __pydantic_config__: ClassVar[ConfigDict] = _CAMEL

    model: str = ""
    stage: str = ""
    engines: int
    healthy: int
    kept_in: int = 0
    level: int = 0
    level_reason: str = ""
    ceiling: int | None = None
    ceiling_reason: str = ""
    held: int | None = None
    slots: float | None = None
    in_flight: int | None = None
    done_per_s: float | None = None
    arrivals_per_s: float | None = None
    shed_per_s: float | None = None
    retries_per_s: float | None = None
    error_percent: float | None = None
    pressure: float | None = None
    hedging: bool | None = None
    answer_p99_s: float | None = None
    first_byte_p99_s: float | None = None
    shadow: tuple[str, ...] = ()
    fallback: bool = False
    keys_away_percent: float | None = None
    prefilled_percent: float | None = None
    adapters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneRow:
    """One pool in one zone, keyed by ``pool/zone``; ``sends``: percent by engine zone.

    ``calls_per_s``: measured calls of the last minute, by engine zone.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _CAMEL

    pool: str
    zone: str
    healthy: int
    engines: int
    sends: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    calls_per_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """One engine, keyed by ``pool/engine``. ``share_percent``: its share of the pool's answers.

    ``heard_at``: Unix time of its last report if that is old, and its figures are gone; otherwise null.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _CAMEL

    pool: str
    engine: str = ""
    zone: str = ""
    verdict: str | None = None
    health: str | None = None
    reason: str = ""
    ejector: str | None = None
    floor: bool = False
    traffic_percent: float = 100.0
    order: str | None = None
    shadow: str | None = None
    standing: str = "present"
    in_flight: int | None = None
    waiting: int | None = None
    slots: float | None = None
    kv_percent: int | None = None
    tokens_per_s: float | None = None
    gpu_percent: int | None = None
    gpu_c: int | None = None
    share_percent: float | None = None
    error_percent: float | None = None
    shunned: int = 0
    heard_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRow:
    """One proxy, keyed by node id; ``types``: sync state per resource type."""

    __pydantic_config__: ClassVar[ConfigDict] = _CAMEL

    zone: str = ""
    role: str = ""
    protocol: str = ""
    types: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    in_flight: int = 0
    arrivals_per_s: float | None = None
    shed_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One ledger event; ``at`` is a Unix time."""

    __pydantic_config__: ClassVar[ConfigDict] = _CAMEL

    number: int
    at: float
    kind: str
    subject: str = ""
    pool: str = ""
    engine: str = ""
    zone: str = ""
    proxy: str = ""
    before: str = ""
    after: str = ""
    evidence: str = ""
    alarm: bool = False
    times: int = 1


Row: TypeAlias = ServerRow | ConditionRow | PoolRow | ZoneRow | EngineRow | ProxyRow


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTables:
    """Tables of a frame; ``server`` has one row with that key."""

    server: Mapping[str, ServerRow] = field(default_factory=dict)
    conditions: Mapping[str, ConditionRow] = field(default_factory=dict)
    pools: Mapping[str, PoolRow] = field(default_factory=dict)
    zones: Mapping[str, ZoneRow] = field(default_factory=dict)
    engines: Mapping[str, EngineRow] = field(default_factory=dict)
    proxies: Mapping[str, ProxyRow] = field(default_factory=dict)


TABLES: Final = tuple(one.name for one in fields(LiveTables))


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFrame:
    """Full frame at one moment (``event: frame``). ``events``: the latest, oldest first."""

    at: float
    tables: LiveTables
    events: tuple[EventRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveChange:
    """Changes since the previous message (``event: change``).

    A row holds its changed fields, all fields if new, or is null if deleted.
    """

    at: float
    tables: Mapping[str, Mapping[str, Mapping[str, Any] | None]]
    events: tuple[EventRow, ...]


def wire_row(row: Row | EventRow) -> dict[str, Any]:
    """The row with its wire names."""
    return {name: _plain(getattr(row, attribute)) for attribute, name in _NAMES[type(row)]}


_NAMES: Final[Mapping[type[Any], tuple[tuple[str, str], ...]]] = {
    kind: tuple((one.name, _wire_name(one.name)) for one in fields(kind))
    for kind in (ServerRow, ConditionRow, PoolRow, ZoneRow, EngineRow, ProxyRow, EventRow)
}
"""Wire name of each field, by row type."""


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value
