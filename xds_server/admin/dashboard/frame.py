"""Frames of the dashboard and the differences between them. Pure.

A frame is a few tables of named rows. A thousand engines are a few hundred kilobytes and few fields change per
second, so after the first frame only changed fields are sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from xds_server.admin_api.live_types import (
    TABLES,
    ConditionRow,
    EngineRow,
    EventRow,
    LiveTables,
    PoolRow,
    ProxyRow,
    Row,
    ServerRow,
    ZoneRow,
    wire_row,
)
from xds_server.admin_api.status_types import (
    Condition,
    EngineStatus,
    EventStatus,
    PoliciesStatus,
    PoolStatus,
    ProxyStatus,
    Readiness,
    Severity,
    ZoneStatus,
)
from xds_server.diagnosis.conditions import SILENT_S, severity_rank

MOST_CONDITIONS: Final = 200
"""Conditions in a frame, the most severe first."""

_KNOWN_BEFORE: Final = frozenset(f"SG{number}" for number in range(200, 209))
"""What `switchgear top` of earlier versions finds by itself."""

MOST_EVENTS: Final = 400
"""Events in a first frame: enough to fill the timeline on a bad day."""


class DashboardSource(Protocol):
    """Source of the dashboard data."""

    def readiness(self) -> Readiness: ...

    def policies(self) -> PoliciesStatus: ...

    def recent_conditions(self) -> Sequence[Condition]:
        """Conditions of a moment ago, the most severe first."""
        ...

    def engines(self) -> Sequence[EngineStatus]: ...

    def pools(self) -> Sequence[PoolStatus]: ...

    def zones(self) -> Sequence[ZoneStatus]: ...

    def proxies(self) -> Sequence[ProxyStatus]: ...

    def events(self, name: str, since: int) -> Sequence[EventStatus]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardFrame:
    """Everything at one moment; ``events``: the latest, oldest first."""

    at_unix_s: float
    tables: LiveTables
    events: tuple[EventRow, ...]

    @property
    def newest(self) -> int:
        """Number of the latest event; 0 without events."""
        return self.events[-1].number if self.events else 0


def frame(shown: DashboardSource, at_unix_s: float) -> DashboardFrame:
    """The current state."""
    pools, conditions = shown.pools(), shown.recent_conditions()
    done = {pool.pool: pool.done_per_s for pool in pools}
    return DashboardFrame(
        at_unix_s=round(at_unix_s, 1),
        tables=LiveTables(
            server={"server": _server(shown, conditions)},
            conditions=_conditions(conditions),
            pools={pool.pool: _pool(pool) for pool in pools},
            zones={f"{zone.pool}/{zone.zone}": _zone(zone) for zone in shown.zones()},
            engines={
                f"{engine.pool}/{engine.engine}": _engine(engine, done.get(engine.pool), at_unix_s)
                for engine in shown.engines()
            },
            proxies={proxy.node: _proxy(proxy) for proxy in shown.proxies()},
        ),
        events=tuple(map(_event, shown.events("", 0)[-MOST_EVENTS:])),
    )


def full_message(now: DashboardFrame) -> dict[str, Any]:
    """``LiveFrame`` as JSON, for a page without data."""
    tables = {name: {key: wire_row(row) for key, row in table.items()} for name, table in _tables(now)}
    return {"at": now.at_unix_s, "tables": tables, "events": [wire_row(event) for event in now.events]}


def delta_message(before: DashboardFrame, now: DashboardFrame) -> dict[str, Any]:
    """``LiveChange`` as JSON: changed fields by table and row, None for deleted rows, and new events."""
    changed: dict[str, dict[str, dict[str, Any] | None]] = {}
    for (name, had), (_, table) in zip(_tables(before), _tables(now), strict=True):
        rows: dict[str, dict[str, Any] | None] = {
            key: _different(had.get(key), row) for key, row in table.items() if had.get(key) != row
        }
        rows.update({key: None for key in had if key not in table})
        if rows:
            changed[name] = rows
    return {
        "at": now.at_unix_s,
        "tables": changed,
        "events": [wire_row(event) for event in now.events if event.number > before.newest],
    }


def _tables(now: DashboardFrame) -> Sequence[tuple[str, Mapping[str, Row]]]:
    return [(name, getattr(now.tables, name)) for name in TABLES]


def _different(before: Row | None, now: Row) -> dict[str, Any]:
    if before is None:
        return wire_row(now)
    had = wire_row(before)
    return {name: value for name, value in wire_row(now).items() if had[name] != value}


def _server(shown: DashboardSource, conditions: Sequence[Condition]) -> ServerRow:
    readiness, policies = shown.readiness(), shown.policies()
    return ServerRow(
        ready=readiness.ready,
        reason=readiness.reason,
        policies=policies.state,
        digest=policies.serving_digest[:12],
        stale=policies.stale,
        problems=tuple(f"{one.place}: {one.message}" for one in policies.errors[:5]),
        held=policies.held,
        lost=tuple(sorted(policies.lost_s)),
        troubles=tuple(
            f"{one.code} {one.subject}: {one.sentence}"
            for one in conditions[:MOST_CONDITIONS]
            if one.severity != Severity.INFO and one.code not in _KNOWN_BEFORE
        ),
    )


def _conditions(found: Sequence[Condition]) -> Mapping[str, ConditionRow]:
    rows: dict[str, ConditionRow] = {}
    for one in found[:MOST_CONDITIONS]:
        number = 0
        while (key := f"{one.code} {one.subject} {number}") in rows:
            number += 1
        name = f"{one.pool}/{one.engine}" if one.engine else f"pool:{one.pool}" if one.pool else ""
        rows[key] = ConditionRow(
            code=one.code,
            severity=str(one.severity),
            rank=severity_rank(one),
            subject=one.subject,
            sentence=one.sentence,
            fix=one.fix,
            since=one.since_unix_s,
            name=name,
            count=one.count,
            runbook=one.runbook,
        )
    return rows


def _pool(pool: PoolStatus) -> PoolRow:
    return PoolRow(
        model=pool.model,
        stage=pool.stage,
        engines=pool.engines,
        healthy=pool.healthy,
        kept_in=pool.kept_in,
        level=pool.level,
        level_reason=pool.level_reason,
        ceiling=pool.ceiling,
        ceiling_reason=pool.ceiling_reason,
        held=pool.held,
        slots=_short(pool.slots),
        in_flight=pool.in_flight,
        done_per_s=_short(pool.done_per_s),
        arrivals_per_s=_short(pool.arrivals_per_s),
        shed_per_s=_short(sum(pool.shed_per_s.values()) if pool.shed_per_s else 0.0),
        retries_per_s=_short(pool.retries_per_s),
        error_percent=_short(pool.error_percent),
        pressure=pool.pressure,
        hedging=pool.hedging,
        answer_p99_s=_short(pool.answer_p99_s),
        first_byte_p99_s=_short(pool.first_byte_p99_s),
        shadow=pool.shadow,
        fallback=pool.fallback,
        keys_away_percent=pool.keys_away_percent,
        prefilled_percent=_short(pool.prefilled_percent),
        adapters={one.adapter: one.engines for one in pool.adapters},
    )


def _zone(zone: ZoneStatus) -> ZoneRow:
    return ZoneRow(
        pool=zone.pool,
        zone=zone.zone,
        healthy=zone.healthy,
        engines=zone.engines,
        sends=dict(zone.sends_percent),
        reason=zone.reason,
        calls_per_s={to: float(f"{rate:.3g}") for to, rate in zone.calls_per_s.items()},
    )


def _engine(engine: EngineStatus, pool_done_per_s: float | None, at_unix_s: float) -> EngineRow:
    """Fields shown on the map; details are fetched on demand.

    Without ages: they would change every row every second.
    """
    age_s = engine.report_age_s
    heard_at = None if age_s is None or age_s <= SILENT_S else round(at_unix_s - age_s, -1)
    if heard_at is not None:
        engine = replace(
            engine,
            requests_in_flight=None,
            requests_waiting=None,
            kv_cache_usage_ratio=None,
            tokens_per_s=None,
            gpu=None,
        )
    held = engine.in_flight if engine.in_flight is not None else engine.requests_in_flight
    gpus = engine.gpu.gpus if engine.gpu is not None else ()
    share = (
        100 * engine.done_per_s / pool_done_per_s if engine.done_per_s is not None and pool_done_per_s else None
    )
    return EngineRow(
        pool=engine.pool,
        engine=engine.engine,
        zone=engine.zone,
        verdict=engine.verdict,
        health=engine.health,
        reason=engine.reason,
        ejector=engine.ejector,
        floor=engine.floor,
        traffic_percent=engine.traffic_percent,
        order=engine.order,
        shadow=engine.shadow,
        standing=engine.standing,
        in_flight=held,
        waiting=engine.requests_waiting,
        slots=_short(engine.slots),
        kv_percent=_percent(engine.kv_cache_usage_ratio),
        tokens_per_s=_short(engine.tokens_per_s),
        gpu_percent=max((one.utilisation_percent or 0 for one in gpus), default=None),
        gpu_c=max((one.temperature_c or 0 for one in gpus), default=None),
        share_percent=_short(share),
        error_percent=_short(engine.error_percent),
        shunned=len(engine.shunned_by),
        heard_at=heard_at,
    )


def _proxy(proxy: ProxyStatus) -> ProxyRow:
    return ProxyRow(
        zone=proxy.zone,
        role=proxy.role,
        protocol=proxy.protocol,
        types={one.type: str(one.state) for one in proxy.types},
        refused=tuple(f"{one.type} {each.name}: {each.reason}" for one in proxy.types for each in one.refused)[:5],
        in_flight=sum(one.in_flight for one in proxy.traffic),
        arrivals_per_s=_short(sum(one.arrivals_per_s for one in proxy.traffic)),
        shed_per_s=_short(sum(one.shed_per_s for one in proxy.traffic)),
    )


def _event(event: EventStatus) -> EventRow:
    return EventRow(
        number=event.number,
        at=round(event.at_unix_s, 2),
        kind=event.kind,
        subject=event.subject,
        pool=event.pool,
        engine=event.engine,
        zone=event.zone,
        proxy=event.proxy,
        before=event.before,
        after=event.after,
        evidence=event.evidence,
        alarm=event.alarm,
        times=event.times,
    )


def _short(number: float | None) -> float | None:
    """Round to three digits, so that invisible changes do not resend a row."""
    return None if number is None else float(f"{number:.3g}")


def _percent(ratio: float | None) -> int | None:
    return None if ratio is None else round(100 * ratio)
