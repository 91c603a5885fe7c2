"""The types of ``switchgear get``: their names, endpoints and columns, and which columns are state."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, Generic, TypeAlias, TypeVar

from command_line.table import Role
from engine.report import Quantiles
from xds_server.admin_api import endpoints
from xds_server.admin_api.access_types import AuditLog, AuditRecord
from xds_server.admin_api.answers import EngineList, EventList, OrderList, PoolList, ProxyList, ZoneList
from xds_server.admin_api.endpoints import AdminEndpoint
from xds_server.admin_api.objective_types import ObjectiveList, ObjectiveStatus
from xds_server.admin_api.status_types import (
    AdapterStatus,
    Condition,
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
from xds_server.admin_api.tenant_types import TenantList, TenantStatus
from xds_server.admin_api.usage_types import UsageList, UsageStatus
from xds_server.admin_api.version_types import HistoryStatus, VersionStatus
from xds_server.diagnosis.conditions import of_engines, of_proxies
from xds_server.diagnosis.event_text import kind_text, transition_text
from xds_server.model.text import age_text

_A = TypeVar("_A")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[_T]):
    """One column. ``wide``: shown by ``-o wide`` only. ``state``: ``--watch`` reports a new value."""

    title: str
    cell: Callable[[_T], str]
    role: Role = Role.WORD
    wide: bool = False
    state: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec(Generic[_A, _T]):
    """One type: its endpoint, which lists of the answer hold its rows, and its columns.

    ``parts`` names the same lists as ``rows``, in the JSON document. ``name`` tells rows apart. ``named``
    is whether NAME on the command line selects a row; None where rows have no names. ``belongs`` is whether a row
    belongs to a pool, ``by`` who caused it, ``age_s`` how long ago; None where rows have no such thing.
    """

    singular: str
    short: str
    endpoint: AdminEndpoint[_A]
    rows: Callable[[_A], Sequence[_T]]
    parts: tuple[str, ...]
    name: Callable[[_T], str]
    columns: tuple[Column[_T], ...]
    none: str
    named: Callable[[_T, str], bool] | None = None
    belongs: Callable[[_T, str], bool] | None = None
    by: Callable[[_T], str] | None = None
    age_s: Callable[[_T], float] | None = None


def _word(title: str, of: Callable[[_T], Any], *, wide: bool = False, state: bool = False) -> Column[_T]:
    return Column(title=title, cell=lambda item: _text(of(item)), wide=wide, state=state)


def _free(title: str, of: Callable[[_T], Any], *, wide: bool = False, state: bool = False) -> Column[_T]:
    return Column(title=title, cell=lambda item: _text(of(item)), role=Role.FREE, wide=wide, state=state)


def _identity(title: str, of: Callable[[_T], Any]) -> Column[_T]:
    return Column(title=title, cell=lambda item: _text(of(item)), role=Role.IDENTITY)


def _figure(title: str, of: Callable[[_T], Any], form: str = "{:g}", *, wide: bool = False) -> Column[_T]:
    def cell(item: _T) -> str:
        value = of(item)
        return "-" if value is None else form.format(value)

    return Column(title=title, cell=cell, role=Role.FIGURE, wide=wide)


def _age(title: str, of: Callable[[_T], float | None], *, wide: bool = False) -> Column[_T]:
    def cell(item: _T) -> str:
        age_s = of(item)
        return "-" if age_s is None else age_text(age_s)

    return Column(title=title, cell=cell, role=Role.FIGURE, wide=wide)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    return "-" if value in (None, "") else str(value)


def _engine_name(item: EngineStatus) -> str:
    return f"{item.pool}/{item.engine}"


def _ordered_name(item: OrderStatus) -> str:
    return f"{item.pool}/{item.engine}" if item.engine else item.pool


def _ordered_action(item: OrderStatus) -> str:
    return item.action if item.level is None else f"{item.action} to {item.level}"


def _p99(of: Callable[[EngineStatus], Quantiles | None]) -> Callable[[EngineStatus], float | None]:
    return lambda item: None if (found := of(item)) is None else found.p99_s


def _notes(item: EngineStatus) -> Sequence[str]:
    """Remarks on an engine, most important first."""
    notes = []
    if item.order:
        notes.append(f"order: {item.order}")
    if item.floor:
        notes.append("kept in rotation by the capacity floor")
    if item.traffic_percent < 100:
        notes.append(f"on trial with {item.traffic_percent:g} % of its traffic")
    if item.keys_held_s:
        left = age_text(item.keys_held_s)
        notes.append(f"keys held back: {item.slow_start_percent:g} % of its share for {left} more")
    elif item.slow_start_percent < 100:
        left = age_text(item.slow_start_left_s)
        notes.append(f"slow start: {item.slow_start_percent:g} % of its share, full in {left}")
    if item.cut:
        notes.append("its requests are cut")
    if item.standing != "present" and item.ejector != "orchestrator":
        notes.append(f"{item.standing}: {item.standing_reason}")
    if item.shadow and item.shadow != item.health:
        notes.append(f"shadow: {item.shadow}")
    if item.shunned_by and item.health == "HEALTHY":
        notes.append(f"avoided by {', '.join(item.shunned_by)}")
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
    """``eu 2.1.0 x3, 3.0.0 x1; us 2.1.0 x4``; ``-`` where no engine reports a revision."""
    if not any(revision for counts in by_region.values() for revision in counts):
        return "-"
    return "; ".join(
        f"{region or '(no region)'} " + ", ".join(f"{one or '(none)'} x{count}" for one, count in counts.items())
        for region, counts in by_region.items()
    )


def _regions(rows: Sequence[RegionStatus]) -> str:
    """Where callers of each region go, except those that stay in their region."""
    away = [
        f"{one.region} to " + ", ".join(f"{to} {percent:.0f}%" for to, percent in one.sends_percent.items())
        for one in rows
        if one.region and list(one.sends_percent) != [one.region]
    ]
    return "; ".join(away) or ("own region" if rows else "-")


def _percents(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{zone or 'no zone'} {share:g} %" for zone, share in shares.items()) or "-"


def _rates(calls: Mapping[str, float]) -> str:
    return ", ".join(f"{zone or 'no zone'} {rate:.1f}" for zone, rate in calls.items()) or "-"


def _transition(item: EventStatus) -> str:
    times = f" x{item.times}" if item.times > 1 else ""
    return f"{transition_text(item.kind, item.before, item.after)}{times}"


def _clock(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))


def _outcome(status: int) -> str:
    """The outcome of an attempted change: an HTTP status in words."""
    words = {401: "unauthenticated", 403: "forbidden", 404: "not found", 409: "refused", 429: "rate-limited"}
    if status < HTTPStatus.BAD_REQUEST:
        return "done"
    return words.get(status, "failed" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "bad request")


def _codes(conditions: Callable[[Sequence[_T], float], Iterable[Condition]]) -> Column[_T]:
    """The codes of an item's conditions, for ``switchgear explain``."""
    return Column(
        title="codes",
        cell=lambda item: ",".join(dict.fromkeys(one.code for one in conditions([item], time.time()))) or "-",
        wide=True,
    )


def _adapters(names: tuple[str, ...] | None) -> str | None:
    """Names of adapters, the first three of many."""
    if names is None:
        return None
    more = len(names) - _SHOWN_ADAPTERS
    return ",".join((*names[:_SHOWN_ADAPTERS], *([f"+{more}"] if more > 0 else []))) or "none"


def _adapter_engines(adapters: tuple[AdapterStatus, ...]) -> str | None:
    """Engines in rotation of each adapter, of the first three of many."""
    if not adapters:
        return None
    more = len(adapters) - _SHOWN_ADAPTERS
    shown = (f"{one.adapter}={one.engines}" for one in adapters[:_SHOWN_ADAPTERS])
    return ",".join((*shown, *([f"+{more}"] if more > 0 else [])))


_SHOWN_ADAPTERS: Final = 3

_ENGINES_COLUMNS: Final[tuple[Column[EngineStatus], ...]] = (
    _identity("name", _engine_name),
    Column(title="health", cell=lambda item: item.health or "UNKNOWN", state=True),
    _word("zone", lambda item: item.zone, wide=True),
    _age("since", lambda item: item.health_age_s),
    _word("verdict", lambda item: item.verdict, state=True),
    _word("standing", lambda item: item.standing, wide=True, state=True),
    _word("ejected by", lambda item: item.ejector, wide=True, state=True),
    _figure("busy", lambda item: item.in_flight if item.in_flight is not None else item.requests_in_flight),
    _figure("slots", lambda item: item.slots, "{:.0f}", wide=True),
    _figure("err%", lambda item: item.error_percent, "{:.0f}"),
    _figure("ok/s", lambda item: item.done_per_s, "{:.1f}"),
    _figure("service s", lambda item: item.service_s, "{:.2f}", wide=True),
    _figure("ttft p99 s", _p99(lambda item: item.time_to_first_token), "{:.3f}", wide=True),
    _figure("tpot p99 s", _p99(lambda item: item.time_per_output_token), "{:.3f}", wide=True),
    _word("adapters", lambda item: _adapters(item.adapters), wide=True, state=True),
    _codes(of_engines),
    _free("why", _why),
)
_POOLS_COLUMNS: Final[tuple[Column[PoolStatus], ...]] = (
    _identity("name", lambda item: item.pool),
    Column(title="in rotation", cell=lambda item: f"{item.healthy}/{item.engines}", state=True),
    _figure("kept", lambda item: item.kept_in, wide=True),
    Column(title="level", cell=lambda item: str(item.level), state=True, role=Role.FIGURE),
    _figure("busy", lambda item: item.in_flight),
    _figure("limit", lambda item: item.ceiling),
    _figure("held", lambda item: item.held, wide=True),
    _figure("req/s", lambda item: item.arrivals_per_s, "{:.1f}"),
    _figure("ok/s", lambda item: item.done_per_s, "{:.1f}"),
    _figure("shed/s", lambda item: sum(item.shed_per_s.values()), "{:.1f}"),
    _figure("err%", lambda item: item.error_percent, "{:.0f}"),
    _figure("demand%", lambda item: None if item.pressure is None else 100 * item.pressure, "{:.0f}"),
    _figure("retry/s", lambda item: item.retries_per_s, "{:.1f}", wide=True),
    _figure("p99 s", lambda item: item.answer_p99_s, "{:.2f}", wide=True),
    _figure("ttfb p99 s", lambda item: item.first_byte_p99_s, "{:.3f}", wide=True),
    Column(title="hedging", cell=lambda item: {None: "-", True: "on", False: "off"}[item.hedging], wide=True),
    _word("revisions", lambda item: _revisions(item.revisions), wide=True, state=True),
    _word("regions", lambda item: _regions(item.regions), wide=True, state=True),
    _word("adapters", lambda item: _adapter_engines(item.adapters), wide=True, state=True),
    _word("stage", lambda item: item.stage, wide=True),
    _figure("prefilled%", lambda item: item.prefilled_percent, "{:.0f}", wide=True),
    _word("shadow", lambda item: item.shadow, wide=True, state=True),
    _free("limit from", lambda item: item.ceiling_reason, wide=True),
)
_ZONES_COLUMNS: Final[tuple[Column[ZoneStatus], ...]] = (
    _identity("pool", lambda item: item.pool),
    Column(title="zone", cell=lambda item: item.zone or "(none)"),
    Column(title="in rotation", cell=lambda item: f"{item.healthy}/{item.engines}", state=True),
    _figure("slots", lambda item: item.slots),
    _figure("busy", lambda item: item.in_flight),
    _free("sends to", lambda item: _percents(item.sends_percent), state=True),
    _free("calls/s to", lambda item: _rates(item.calls_per_s), wide=True),
    _age("since", lambda item: item.age_s, wide=True),
    _free("why", lambda item: item.reason, wide=True),
)
_PROXIES_COLUMNS: Final[tuple[Column[ProxyStatus], ...]] = (
    _identity("name", lambda item: item.node),
    Column(title="sync", cell=_sync, state=True),
    _word("zone", lambda item: item.zone),
    _word("role", lambda item: item.role),
    _word("protocol", lambda item: item.protocol, wide=True),
    _age("age", lambda item: item.connected_s),
    _figure("req/s", _sum_of(lambda part: part.arrivals_per_s), "{:.1f}"),
    _figure("shed/s", _sum_of(lambda part: part.shed_per_s), "{:.1f}"),
    _figure("busy", _sum_of(lambda part: part.in_flight), "{:.0f}"),
    _figure("retry/s", _sum_of(lambda part: part.retries_per_s), "{:.1f}", wide=True),
    Column(title="limit (interactive/batch)", cell=_ceilings, wide=True),
    _free("avoids", _shuns, state=True),
    _codes(of_proxies),
    _word("peer", lambda item: item.peer, wide=True),
)
_ORDERS_COLUMNS: Final[tuple[Column[OrderStatus], ...]] = (
    _identity("subject", _ordered_name),
    _word("action", _ordered_action, state=True),
    _age("left", lambda item: item.left_s),
    _word("by", lambda item: item.by),
    Column(title="forced", cell=lambda item: "yes" if item.force else "no", wide=True),
    _free("reason", lambda item: item.reason),
)
_EVENTS_COLUMNS: Final[tuple[Column[EventStatus], ...]] = (
    _age("age", lambda item: item.age_s),
    _identity("subject", lambda item: item.subject),
    _word("kind", lambda item: kind_text(item.kind)),
    _free("change", _transition, state=True),
    _word("ruled by", lambda item: item.place, wide=True),
    _word("failed requests", lambda item: " ".join(item.requests), wide=True),
    _free("why", lambda item: item.evidence),
)
_AUDIT_COLUMNS: Final[tuple[Column[AuditRecord], ...]] = (
    Column(title="time", cell=lambda item: _clock(item.at_unix_s)),
    _word("by", lambda item: item.by),
    Column(title="outcome", cell=lambda item: _outcome(item.status), state=True),
    _word("status", lambda item: item.status, wide=True),
    _word("from", lambda item: item.peer, wide=True),
    _free("request", lambda item: item.what),
)
_VERSIONS_COLUMNS: Final[tuple[Column[VersionStatus], ...]] = (
    _identity("version", lambda item: item.number),
    Column(title="served", cell=lambda item: "yes" if item.serving else "no", state=True),
    _age("age", lambda item: max(0.0, time.time() - item.at_unix_s)),
    _word("source", lambda item: f"rollback to {item.restores}" if item.restores else item.source),
    _word("by", lambda item: item.by),
    _word("digest", lambda item: item.digest[:12]),
    _figure("files", lambda item: item.files),
    Column(title="time", cell=lambda item: _clock(item.at_unix_s), wide=True),
    _free("reason", lambda item: item.reason),
)


def _good(window: str, *, wide: bool = False) -> Column[ObjectiveStatus]:
    return _figure(
        f"good% {window}",
        lambda item: None if (one := item.windows.get(window)) is None else one.good_percent,
        "{:.5g}",
        wide=wide,
    )


def _burn(window: str, *, wide: bool = False) -> Column[ObjectiveStatus]:
    return _figure(
        f"burn {window}",
        lambda item: None if (one := item.windows.get(window)) is None else one.burn_rate,
        "{:.1f}",
        wide=wide,
    )


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else 100 * ratio


_TENANTS_COLUMNS: Final[tuple[Column[TenantStatus], ...]] = (
    _identity("TENANT", lambda item: item.name),
    _word("QUOTA", lambda item: "-" if item.requests is None else f"{item.requests}/{item.per}", state=True),
    _word("TOKENS", lambda item: "-" if item.tokens is None else f"{item.tokens}/{item.per}", wide=True),
    _word("MODE", lambda item: item.mode, state=True),
    _figure("SERVED/S", lambda item: item.traffic.served_per_s, "{:.1f}"),
    _figure("USED%", lambda item: _percent(item.used), "{:.0f}"),
    _figure("DAY%", lambda item: _percent(item.used_of("day")), "{:.0f}"),
    _figure("MONTH%", lambda item: _percent(item.used_of("month")), "{:.0f}"),
    _figure("REFUSED/S", lambda item: item.traffic.refused_per_s, "{:.1f}"),
    _figure("ADMITTED", lambda item: item.traffic.admitted, "{:.0f}"),
    _figure("OVER", lambda item: item.traffic.over_quota, "{:.0f}"),
    _figure("REFUSED", lambda item: item.traffic.refused, "{:.0f}"),
    _figure("SHARE/S", lambda item: item.share_per_s, "{:.1f}"),
    _figure("LIMITED%", lambda item: item.limited_percent, "{:.0f}"),
    _figure("ABOVE-SHARE", lambda item: item.traffic.over_share, "{:.0f}", wide=True),
    _figure("PROXIES", lambda item: item.proxies, wide=True),
)
_OBJECTIVES_COLUMNS: Final[tuple[Column[ObjectiveStatus], ...]] = (
    _identity("name", lambda item: item.name),
    _word("state", lambda item: item.state, state=True),
    _figure("limit", lambda item: item.limit_s, "{:g}s"),
    _figure("target%", lambda item: item.target_percent),
    _good("5m"),
    _good("1h"),
    _burn("5m"),
    _burn("1h"),
    _figure("budget%", lambda item: item.budget_left_percent, "{:.0f}"),
    _good("30m", wide=True),
    _good("6h", wide=True),
    _burn("30m", wide=True),
    _burn("6h", wide=True),
    _figure("calls 1h", lambda item: one.calls if (one := item.windows.get("1h")) else None, "{:.0f}", wide=True),
    _age("measured", lambda item: item.measured_s, wide=True),
    _free("pools", lambda item: item.pools, wide=True),
)
_ShadowRow: TypeAlias = ShadowEngineStatus | ShadowPoolStatus


def _of_engine(of: Callable[[ShadowEngineStatus], Any]) -> Callable[[_ShadowRow], Any]:
    return lambda item: of(item) if isinstance(item, ShadowEngineStatus) else None


def _shadow_name(item: _ShadowRow) -> str:
    return f"{item.pool}/{item.engine if isinstance(item, ShadowEngineStatus) else ''}"


_SHADOW_COLUMNS: Final[tuple[Column[_ShadowRow], ...]] = (
    Column(
        title="subject",
        cell=lambda item: _shadow_name(item) if isinstance(item, ShadowEngineStatus) else f"{item.pool} (limit)",
        role=Role.IDENTITY,
    ),
    Column(title="now", cell=lambda item: "out" if _of_engine(lambda one: one.out_now)(item) else "-", state=True),
    _age("out for", lambda item: item.out_s if isinstance(item, ShadowEngineStatus) else item.over_s),
    _figure("times", _of_engine(lambda item: item.times)),
    _figure("failed", _of_engine(lambda item: item.failed)),
    _figure("answered", _of_engine(lambda item: item.succeeded)),
    _figure("shed", lambda item: None if isinstance(item, ShadowEngineStatus) else item.refused, "{:.0f}"),
    _figure("capacity%", _of_engine(lambda item: item.capacity_percent), "{:.0f}"),
    _free("why", lambda item: item.reason),
)


def _in_pool(of: Callable[[_T], str]) -> Callable[[_T, str], bool]:
    return lambda item, pool: of(item) == pool


def _by_name(*of: Callable[[_T], str]) -> Callable[[_T, str], bool]:
    """Whether any of these is the name of a row."""
    return lambda item, name: name in [one(item) for one in of]


def _end_of_day_s(day: str) -> float:
    """When a day in UTC ends, in seconds since the epoch."""
    return (datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(days=1)).timestamp()


_ENGINES: Final[TableSpec[EngineList, EngineStatus]] = TableSpec(
    singular="engine",
    short="eng",
    endpoint=endpoints.ENGINES,
    rows=lambda answer: answer.engines,
    parts=("engines",),
    name=_engine_name,
    columns=_ENGINES_COLUMNS,
    none="no engines",
    named=_by_name(_engine_name, lambda item: item.engine),
    belongs=_in_pool(lambda item: item.pool),
)
_POOLS: Final[TableSpec[PoolList, PoolStatus]] = TableSpec(
    singular="pool",
    short="po",
    endpoint=endpoints.POOLS,
    rows=lambda answer: answer.pools,
    parts=("pools",),
    name=lambda item: item.pool,
    columns=_POOLS_COLUMNS,
    none="no pools are served",
    named=_by_name(lambda item: item.pool),
    belongs=_in_pool(lambda item: item.pool),
)
_ZONES: Final[TableSpec[ZoneList, ZoneStatus]] = TableSpec(
    singular="zone",
    short="zo",
    endpoint=endpoints.ZONES,
    rows=lambda answer: answer.zones,
    parts=("zones",),
    name=lambda item: f"{item.pool}/{item.zone}",
    columns=_ZONES_COLUMNS,
    none="no pools are served",
    named=_by_name(lambda item: item.zone, lambda item: f"{item.pool}/{item.zone}"),
    belongs=_in_pool(lambda item: item.pool),
)
_PROXIES: Final[TableSpec[ProxyList, ProxyStatus]] = TableSpec(
    singular="proxy",
    short="px",
    endpoint=endpoints.PROXIES,
    rows=lambda answer: answer.proxies,
    parts=("proxies",),
    name=lambda item: item.node,
    columns=_PROXIES_COLUMNS,
    none="no proxies are connected",
    named=_by_name(lambda item: item.node),
    # A proxy that is served all pools names none.
    belongs=lambda item, pool: not item.pools or pool in item.pools,
)
_OBJECTIVES: Final[TableSpec[ObjectiveList, ObjectiveStatus]] = TableSpec(
    singular="objective",
    short="obj",
    endpoint=endpoints.OBJECTIVES,
    rows=lambda answer: answer.objectives,
    parts=("objectives",),
    name=lambda item: item.name,
    columns=_OBJECTIVES_COLUMNS,
    none="no route or pool has spec.objectives",
    named=_by_name(lambda item: item.name, lambda item: item.route or item.pool),
    belongs=lambda item, pool: pool in item.pools,
)
_TENANTS: Final[TableSpec[TenantList, TenantStatus]] = TableSpec(
    singular="tenant",
    short="ten",
    endpoint=endpoints.TENANTS,
    rows=lambda answer: answer.tenants,
    parts=("tenants",),
    name=lambda item: item.name,
    columns=_TENANTS_COLUMNS,
    none="no route has listener.tenants",
    named=_by_name(lambda item: item.name, lambda item: item.tenant),
)
_USAGE: Final[TableSpec[UsageList, UsageStatus]] = TableSpec(
    singular="usage",
    short="use",
    endpoint=endpoints.USAGE,
    rows=lambda answer: answer.usage,
    parts=("usage",),
    name=lambda item: item.name,
    columns=(
        _word("DAY", lambda item: item.day),
        _identity("TENANT", lambda item: f"{item.port}/{item.tenant}"),
        _word("MODEL", lambda item: item.model),
        _figure("REQUESTS", lambda item: item.requests, "{:.0f}"),
        _figure("TOKENS", lambda item: item.tokens, "{:.0f}"),
        _figure("CORRECTED", lambda item: item.corrected, "{:.0f}"),
    ),
    none="no tenant has used anything",
    named=_by_name(lambda item: item.name, lambda item: item.tenant, lambda item: f"{item.port}/{item.tenant}"),
    # Of the end of its day, so that a day counts while some of it is new enough.
    age_s=lambda item: time.time() - _end_of_day_s(item.day),
)
_ORDERS: Final[TableSpec[OrderList, OrderStatus]] = TableSpec(
    singular="order",
    short="ord",
    endpoint=endpoints.ORDERS,
    rows=lambda answer: answer.orders,
    parts=("orders",),
    name=_ordered_name,
    columns=_ORDERS_COLUMNS,
    none="no orders are in force",
    named=_by_name(_ordered_name, lambda item: item.engine),
    belongs=_in_pool(lambda item: item.pool),
    by=lambda item: item.by,
)
_EVENTS: Final[TableSpec[EventList, EventStatus]] = TableSpec(
    singular="event",
    short="ev",
    endpoint=endpoints.EVENTS,
    rows=lambda answer: answer.events,
    parts=("events",),
    name=lambda item: str(item.number),
    columns=_EVENTS_COLUMNS,
    none="no events since the server started",
    named=_by_name(
        lambda item: str(item.number),
        lambda item: item.subject,
        lambda item: item.engine,
        lambda item: item.pool,
        lambda item: item.zone,
        lambda item: item.proxy,
    ),
    belongs=_in_pool(lambda item: item.pool),
    age_s=lambda item: item.age_s,
)
_AUDIT: Final[TableSpec[AuditLog, AuditRecord]] = TableSpec(
    singular="audit",
    short="aud",
    endpoint=endpoints.AUDIT,
    rows=lambda answer: answer.writes,
    parts=("writes",),
    name=lambda item: f"{item.at_unix_s} {item.peer} {item.what}",
    columns=_AUDIT_COLUMNS,
    none="no change was attempted since the server started",
    by=lambda item: item.by,
    # By both clocks: a record has no age.
    age_s=lambda item: time.time() - item.at_unix_s,
)
_SHADOW: Final[TableSpec[ShadowStatus, _ShadowRow]] = TableSpec(
    singular="shadow",
    short="sh",
    endpoint=endpoints.SHADOW,
    rows=lambda answer: (*answer.engines, *answer.pools),
    parts=("engines", "pools"),
    name=_shadow_name,
    columns=_SHADOW_COLUMNS,
    none="no shadowed decision differed",
    named=_by_name(_shadow_name, lambda item: item.pool),
    belongs=_in_pool(lambda item: item.pool),
)
_VERSIONS: Final[TableSpec[HistoryStatus, VersionStatus]] = TableSpec(
    singular="version",
    short="ver",
    endpoint=endpoints.HISTORY,
    rows=lambda answer: answer.versions,
    parts=("versions",),
    name=lambda item: str(item.number),
    columns=_VERSIONS_COLUMNS,
    none="no policy versions",
    named=_by_name(lambda item: str(item.number)),
    by=lambda item: item.by,
    age_s=lambda item: time.time() - item.at_unix_s,
)

TABLES: Final[Mapping[str, TableSpec[Any, Any]]] = MappingProxyType(
    {
        "engines": _ENGINES,
        "pools": _POOLS,
        "zones": _ZONES,
        "proxies": _PROXIES,
        "objectives": _OBJECTIVES,
        "tenants": _TENANTS,
        "usage": _USAGE,
        "orders": _ORDERS,
        "events": _EVENTS,
        "versions": _VERSIONS,
        "audit": _AUDIT,
        "shadow": _SHADOW,
    }
)
