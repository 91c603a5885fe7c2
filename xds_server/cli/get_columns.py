"""What ``switchgear get`` shows of each kind of thing: its columns, and which of them are state, not figures."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, Generic, TypeAlias, TypeVar

from engine.report import Quantiles
from xds_server.admin_api import endpoints
from xds_server.admin_api.access_types import AuditLog, AuditRecord
from xds_server.admin_api.answers import EngineList, EventList, OrderList, PoolList, ProxyList, ZoneList
from xds_server.admin_api.endpoints import AdminEndpoint
from xds_server.admin_api.status_types import (
    EngineStatus,
    EventStatus,
    OrderStatus,
    PoolStatus,
    ProxyPoolStatus,
    ProxyStatus,
    RegionStatus,
    ShadowEngineStatus,
    ShadowPoolStatus,
    ShadowStatus,
    ZoneStatus,
)
from xds_server.diagnosis.check_result import Check
from xds_server.diagnosis.status_findings import on_engines, on_proxies, on_telemetry
from xds_server.model.text import age_text

_A = TypeVar("_A")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[_T]):
    """One column. ``wide``: shown by ``-o wide`` only. ``state``: ``--watch`` reports a new value."""

    title: str
    cell: Callable[[_T], str]
    wide: bool = False
    state: bool = False
    right: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec(Generic[_A, _T]):
    """One kind of thing: its endpoint, which lists of the answer hold it, and its columns.

    ``parts`` names the same lists as ``rows``, in the JSON document. ``name`` tells one row from another.
    ``belongs`` is whether a row belongs to a pool, ``by`` who caused it, ``age_s`` how long ago that was; None
    where rows have no such thing.
    """

    endpoint: AdminEndpoint[_A]
    rows: Callable[[_A], Sequence[_T]]
    parts: tuple[str, ...]
    name: Callable[[_T], str]
    columns: tuple[Column[_T], ...]
    none: str
    belongs: Callable[[_T, str], bool] | None = None
    by: Callable[[_T], str] | None = None
    age_s: Callable[[_T], float] | None = None


def _plain(title: str, of: Callable[[_T], Any], *, wide: bool = False, state: bool = False) -> Column[_T]:
    return Column(title=title, cell=lambda item: _text(of(item)), wide=wide, state=state)


def _figure(title: str, of: Callable[[_T], Any], form: str = "{:g}", *, wide: bool = False) -> Column[_T]:
    def cell(item: _T) -> str:
        value = of(item)
        return "-" if value is None else form.format(value)

    return Column(title=title, cell=cell, wide=wide, right=True)


def _age(title: str, of: Callable[[_T], float | None], *, wide: bool = False) -> Column[_T]:
    def cell(item: _T) -> str:
        age_s = of(item)
        return "-" if age_s is None else age_text(age_s)

    return Column(title=title, cell=cell, wide=wide, right=True)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    return "-" if value in (None, "") else str(value)


def _engine_name(item: EngineStatus | OrderStatus) -> str:
    return f"{item.pool}/{item.engine}"


def _p99(of: Callable[[EngineStatus], Quantiles | None]) -> Callable[[EngineStatus], float | None]:
    return lambda item: None if (found := of(item)) is None else found.p99_s


def _notes(item: EngineStatus) -> Sequence[str]:
    """What else is to be known of an engine, most important first."""
    notes = []
    if item.order:
        notes.append(f"order: {item.order}")
    if item.floor:
        notes.append("kept in")
    if item.traffic_percent < 100:
        notes.append(f"on trial, {item.traffic_percent:g} %")
    if item.cut:
        notes.append("cut")
    if item.standing != "present" and item.ejector != "orchestrator":
        notes.append(f"{item.standing}: {item.standing_reason}")
    if item.shadow and item.shadow != item.health:
        notes.append(f"shadow: {item.shadow}")
    if item.shunned_by and item.health == "HEALTHY":
        notes.append(f"kept out by {', '.join(item.shunned_by)}")
    return notes


def _why(item: EngineStatus) -> str:
    calm = item.health == "HEALTHY" and not item.floor
    return "; ".join((*_notes(item), *([] if calm else [item.reason]))) or "-"


def _sum_of(of: Callable[[ProxyPoolStatus], float]) -> Callable[[ProxyStatus], float | None]:
    return lambda item: sum(map(of, item.traffic)) if item.traffic else None


def _ceilings(item: ProxyStatus) -> str:
    parts = [
        f"{part.pool} {part.ceiling_interactive}/{part.ceiling_batch}"
        for part in item.traffic
        if part.ceiling_interactive is not None
    ]
    return ", ".join(parts) or "-"


def _shuns(item: ProxyStatus) -> str:
    return ", ".join(f"{part.pool}/{engine}" for part in item.traffic for engine in part.shuns) or "-"


def _sync(item: ProxyStatus) -> str:
    return ", ".join(f"{kind.type} {kind.state}" for kind in item.types if kind.state != "SYNCED") or "ok"


def _revisions(by_region: Mapping[str, Mapping[str, int]]) -> str:
    """``eu 2.1.0 x3, 3.0.0 x1; us 2.1.0 x4``; nothing where no engine says a revision."""
    if not any(revision for counts in by_region.values() for revision in counts):
        return "-"
    return "; ".join(
        f"{region or '(no region)'} " + ", ".join(f"{one or '(none)'} x{count}" for one, count in counts.items())
        for region, counts in by_region.items()
    )


def _regions(rows: Sequence[RegionStatus]) -> str:
    """Where callers of each region go, those that stay at home left out."""
    away = [
        f"{one.region} to " + ", ".join(f"{to} {percent:.0f}%" for to, percent in one.sends_percent.items())
        for one in rows
        if one.region and list(one.sends_percent) != [one.region]
    ]
    return "; ".join(away) or ("at home" if rows else "-")


def _percents(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{zone or 'no zone'} {share:g} %" for zone, share in shares.items()) or "-"


def _transition(item: EventStatus) -> str:
    before = f"{item.before} -> " if item.before else ""
    times = f" x{item.times}" if item.times > 1 else ""
    return f"{before}{item.after}{times}"


def _answer(status: int) -> str:
    """What became of an attempt to change something: an HTTP status in words."""
    words = {401: "not let in", 403: "not allowed", 404: "no such thing", 409: "refused", 429: "too many"}
    if status < HTTPStatus.BAD_REQUEST:
        return "done"
    return words.get(status, "failed" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "asked wrongly")


def _codes(remarks: Callable[[Sequence[_T]], Iterable[Check]]) -> Column[_T]:
    """The codes of what is to be said of an item, for ``switchgear explain``."""
    return Column(
        title="code",
        cell=lambda item: ", ".join(dict.fromkeys(one.code for one in remarks([item]))) or "-",
        wide=True,
    )


_ENGINES_COLUMNS: Final[tuple[Column[EngineStatus], ...]] = (
    Column(title="engine", cell=_engine_name),
    _plain("zone", lambda item: item.zone, wide=True),
    Column(title="health", cell=lambda item: item.health or "UNKNOWN", state=True),
    _age("since", lambda item: item.health_age_s),
    _plain("verdict", lambda item: item.verdict, state=True),
    Column(title="standing", cell=lambda item: item.standing, wide=True, state=True),
    Column(title="out by", cell=lambda item: item.ejector or "-", wide=True, state=True),
    _figure("busy", lambda item: item.in_flight if item.in_flight is not None else item.requests_in_flight),
    _figure("slots", lambda item: item.slots, "{:.0f}", wide=True),
    _figure("err %", lambda item: item.error_percent, "{:.0f}"),
    _figure("ok/s", lambda item: item.done_per_s, "{:.1f}"),
    _figure("service s", lambda item: item.service_s, "{:.2f}", wide=True),
    _figure("TTFT p99 s", _p99(lambda item: item.time_to_first_token), "{:.3f}", wide=True),
    _figure("TPOT p99 s", _p99(lambda item: item.time_per_output_token), "{:.3f}", wide=True),
    _codes(on_engines),
    Column(title="why", cell=_why),
)
_POOLS_COLUMNS: Final[tuple[Column[PoolStatus], ...]] = (
    _plain("pool", lambda item: item.pool),
    Column(title="in", cell=lambda item: f"{item.healthy}/{item.engines}", state=True),
    _figure("kept", lambda item: item.kept_in, wide=True),
    Column(title="level", cell=lambda item: str(item.level), state=True),
    _figure("busy", lambda item: item.in_flight),
    _figure("ceiling", lambda item: item.ceiling),
    _figure("held", lambda item: item.held, wide=True),
    _figure("req/s", lambda item: item.arrivals_per_s, "{:.1f}"),
    _figure("ok/s", lambda item: item.done_per_s, "{:.1f}"),
    _figure("shed/s", lambda item: sum(item.shed_per_s.values()), "{:.1f}"),
    _figure("err %", lambda item: item.error_percent, "{:.0f}"),
    _figure("asked %", lambda item: None if item.pressure is None else 100 * item.pressure, "{:.0f}"),
    _figure("retry/s", lambda item: item.retries_per_s, "{:.1f}", wide=True),
    _figure("p99 s", lambda item: item.answer_p99_s, "{:.2f}", wide=True),
    _figure("first p99 s", lambda item: item.first_byte_p99_s, "{:.3f}", wide=True),
    Column(title="hedging", cell=lambda item: {None: "-", True: "on", False: "off"}[item.hedging], wide=True),
    Column(title="revisions", cell=lambda item: _revisions(item.revisions), wide=True, state=True),
    Column(title="regions", cell=lambda item: _regions(item.regions), wide=True, state=True),
    _plain("shadow", lambda item: item.shadow, wide=True, state=True),
    _plain("how", lambda item: item.ceiling_reason, wide=True),
)
_ZONES_COLUMNS: Final[tuple[Column[ZoneStatus], ...]] = (
    _plain("pool", lambda item: item.pool),
    Column(title="zone", cell=lambda item: item.zone or "(none)"),
    Column(title="in", cell=lambda item: f"{item.healthy}/{item.engines}", state=True),
    _figure("slots", lambda item: item.slots),
    _figure("busy", lambda item: item.in_flight),
    Column(title="calls from here go to", cell=lambda item: _percents(item.sends_percent), state=True),
    _age("since", lambda item: item.age_s, wide=True),
    _plain("why", lambda item: item.reason, wide=True),
)
_PROXIES_COLUMNS: Final[tuple[Column[ProxyStatus], ...]] = (
    _plain("node", lambda item: item.node),
    _plain("zone", lambda item: item.zone),
    _plain("role", lambda item: item.role),
    _plain("protocol", lambda item: item.protocol, wide=True),
    _age("up", lambda item: item.connected_s),
    Column(title="sync", cell=_sync, state=True),
    _figure("req/s", _sum_of(lambda part: part.arrivals_per_s), "{:.1f}"),
    _figure("shed/s", _sum_of(lambda part: part.shed_per_s), "{:.1f}"),
    _figure("busy", _sum_of(lambda part: part.in_flight), "{:.0f}"),
    _figure("retry/s", _sum_of(lambda part: part.retries_per_s), "{:.1f}", wide=True),
    Column(title="ceiling (int/batch)", cell=_ceilings, wide=True),
    Column(title="keeps out", cell=_shuns, state=True),
    _codes(lambda items: (*on_proxies(items), *on_telemetry(items))),
    _plain("peer", lambda item: item.peer, wide=True),
)
_ORDERS_COLUMNS: Final[tuple[Column[OrderStatus], ...]] = (
    Column(title="engine", cell=_engine_name),
    _plain("action", lambda item: item.action, state=True),
    _age("left", lambda item: item.left_s),
    _plain("by", lambda item: item.by),
    Column(title="forced", cell=lambda item: "yes" if item.force else "no", wide=True),
    _plain("why", lambda item: item.reason),
)
_EVENTS_COLUMNS: Final[tuple[Column[EventStatus], ...]] = (
    _age("ago", lambda item: item.age_s),
    _plain("subject", lambda item: item.subject),
    _plain("kind", lambda item: item.kind),
    Column(title="change", cell=_transition, state=True),
    _plain("ruled by", lambda item: item.place, wide=True),
    Column(title="failed requests", cell=lambda item: " ".join(item.requests), wide=True),
    _plain("why", lambda item: item.evidence),
)
_AUDIT_COLUMNS: Final[tuple[Column[AuditRecord], ...]] = (
    Column(title="when", cell=lambda item: time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(item.at_unix_s))),
    _plain("by", lambda item: item.by),
    Column(title="answer", cell=lambda item: _answer(item.status), state=True),
    _plain("status", lambda item: item.status, wide=True),
    _plain("from", lambda item: item.peer, wide=True),
    _plain("what", lambda item: item.what),
)
_ShadowRow: TypeAlias = ShadowEngineStatus | ShadowPoolStatus


def _of_engine(of: Callable[[ShadowEngineStatus], Any]) -> Callable[[_ShadowRow], Any]:
    return lambda item: of(item) if isinstance(item, ShadowEngineStatus) else None


def _shadow_name(item: _ShadowRow) -> str:
    return f"{item.pool}/{item.engine if isinstance(item, ShadowEngineStatus) else ''}"


_SHADOW_COLUMNS: Final[tuple[Column[_ShadowRow], ...]] = (
    Column(
        title="subject",
        cell=lambda item: _shadow_name(item) if isinstance(item, ShadowEngineStatus) else f"{item.pool} (ceiling)",
    ),
    Column(
        title="would be out for",
        cell=lambda item: age_text(item.out_s if isinstance(item, ShadowEngineStatus) else item.over_s),
    ),
    _figure("times", _of_engine(lambda item: item.times)),
    _figure("failed", _of_engine(lambda item: item.failed)),
    _figure("answered", _of_engine(lambda item: item.succeeded)),
    _figure("refused", lambda item: None if isinstance(item, ShadowEngineStatus) else item.refused, "{:.0f}"),
    _figure("capacity %", _of_engine(lambda item: item.capacity_percent), "{:.0f}"),
    Column(title="now", cell=lambda item: "out" if _of_engine(lambda one: one.out_now)(item) else "-", state=True),
    _plain("why", lambda item: item.reason),
)


def _in_pool(of: Callable[[_T], str]) -> Callable[[_T, str], bool]:
    return lambda item, pool: of(item) == pool


_ENGINES: Final[TableSpec[EngineList, EngineStatus]] = TableSpec(
    endpoint=endpoints.ENGINES,
    rows=lambda answer: answer.engines,
    parts=("engines",),
    name=_engine_name,
    columns=_ENGINES_COLUMNS,
    none="no engine is declared",
    belongs=_in_pool(lambda item: item.pool),
)
_POOLS: Final[TableSpec[PoolList, PoolStatus]] = TableSpec(
    endpoint=endpoints.POOLS,
    rows=lambda answer: answer.pools,
    parts=("pools",),
    name=lambda item: item.pool,
    columns=_POOLS_COLUMNS,
    none="no pool is served",
    belongs=_in_pool(lambda item: item.pool),
)
_ZONES: Final[TableSpec[ZoneList, ZoneStatus]] = TableSpec(
    endpoint=endpoints.ZONES,
    rows=lambda answer: answer.zones,
    parts=("zones",),
    name=lambda item: f"{item.pool} {item.zone}",
    columns=_ZONES_COLUMNS,
    none="no pool is served",
    belongs=_in_pool(lambda item: item.pool),
)
_PROXIES: Final[TableSpec[ProxyList, ProxyStatus]] = TableSpec(
    endpoint=endpoints.PROXIES,
    rows=lambda answer: answer.proxies,
    parts=("proxies",),
    name=lambda item: item.node,
    columns=_PROXIES_COLUMNS,
    none="no proxy is connected",
    # A proxy that is served all pools names none.
    belongs=lambda item, pool: not item.pools or pool in item.pools,
)
_ORDERS: Final[TableSpec[OrderList, OrderStatus]] = TableSpec(
    endpoint=endpoints.ORDERS,
    rows=lambda answer: answer.orders,
    parts=("orders",),
    name=_engine_name,
    columns=_ORDERS_COLUMNS,
    none="no order is in force",
    belongs=_in_pool(lambda item: item.pool),
    by=lambda item: item.by,
)
_EVENTS: Final[TableSpec[EventList, EventStatus]] = TableSpec(
    endpoint=endpoints.EVENTS,
    rows=lambda answer: answer.events,
    parts=("events",),
    name=lambda item: str(item.number),
    columns=_EVENTS_COLUMNS,
    none="nothing has happened yet",
    belongs=_in_pool(lambda item: item.pool),
    age_s=lambda item: item.age_s,
)
_AUDIT: Final[TableSpec[AuditLog, AuditRecord]] = TableSpec(
    endpoint=endpoints.AUDIT,
    rows=lambda answer: answer.writes,
    parts=("writes",),
    name=lambda item: f"{item.at_unix_s} {item.peer} {item.what}",
    columns=_AUDIT_COLUMNS,
    none="nobody has tried to change anything since the server started",
    by=lambda item: item.by,
    # By both clocks: a record has no age.
    age_s=lambda item: time.time() - item.at_unix_s,
)
_SHADOW: Final[TableSpec[ShadowStatus, _ShadowRow]] = TableSpec(
    endpoint=endpoints.SHADOW,
    rows=lambda answer: (*answer.engines, *answer.pools),
    parts=("engines", "pools"),
    name=_shadow_name,
    columns=_SHADOW_COLUMNS,
    none="nothing would have been done that was not done",
    belongs=_in_pool(lambda item: item.pool),
)

TABLES: Final[Mapping[str, TableSpec[Any, Any]]] = MappingProxyType(
    {
        "engines": _ENGINES,
        "pools": _POOLS,
        "zones": _ZONES,
        "proxies": _PROXIES,
        "orders": _ORDERS,
        "events": _EVENTS,
        "audit": _AUDIT,
        "shadow": _SHADOW,
    }
)
