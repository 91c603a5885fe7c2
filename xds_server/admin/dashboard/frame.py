"""What the page shows at one moment, and what is different in the next: pure, and small on the wire.

A frame is rows by name in a few tables. A thousand engines are a few hundred thousand bytes; what changes within a
second is a small part of that, so after the first frame only the fields that became different travel.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias

from xds_server.diagnosis.status_findings import on_canary, on_file_problems, on_rolled_back
from xds_server.model.status_types import (
    EngineStatus,
    EventStatus,
    FileProblem,
    PoliciesStatus,
    PoolStatus,
    ProxyStatus,
    Readiness,
    ZoneStatus,
)
from xds_server.publish.nack_log import RolledBackResource

Row: TypeAlias = Mapping[str, Any]
Table: TypeAlias = Mapping[str, Row]

MOST_EVENTS: Final = 400
"""Events of a first frame: as far back as the timeline reaches on a bad day."""

_EMPTY: Final[Table] = MappingProxyType({})


class DashboardSource(Protocol):
    """Who knows what the page shows; see ``status`` for the shapes."""

    def readiness(self) -> Readiness: ...

    def policies(self) -> PoliciesStatus: ...

    def file_problems(self) -> Sequence[FileProblem]: ...

    def rolled_back(self) -> Sequence[RolledBackResource]: ...

    def canary(self) -> Row | None:
        """The canary that runs or ran last, as ``/v1/apply`` tells it; None where there can be none."""
        ...

    def engines(self) -> Sequence[EngineStatus]: ...

    def pools(self) -> Sequence[PoolStatus]: ...

    def zones(self) -> Sequence[ZoneStatus]: ...

    def proxies(self) -> Sequence[ProxyStatus]: ...

    def events(self, name: str, since: int) -> Sequence[EventStatus]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardFrame:
    """Everything at one moment. ``tables`` is by name, then by row; ``events`` are the newest, oldest first."""

    at_unix_s: float
    tables: Mapping[str, Table]
    events: tuple[Row, ...]

    @property
    def newest(self) -> int:
        """The number of the newest event; 0 where there is none."""
        return int(self.events[-1]["number"]) if self.events else 0


def frame(shown: DashboardSource, at_unix_s: float) -> DashboardFrame:
    """The state now."""
    pools = shown.pools()
    done = {pool.pool: pool.done_per_s for pool in pools}
    return DashboardFrame(
        at_unix_s=round(at_unix_s, 1),
        tables={
            "server": {"server": _server(shown.readiness(), shown.policies()) | {"troubles": _troubles(shown)}},
            "pools": {pool.pool: _pool(pool) for pool in pools},
            "zones": {f"{zone.pool}/{zone.zone}": _zone(zone) for zone in shown.zones()},
            "engines": {
                f"{engine.pool}/{engine.engine}": _engine(engine, done.get(engine.pool))
                for engine in shown.engines()
            },
            "proxies": {proxy.node: _proxy(proxy) for proxy in shown.proxies()},
        },
        events=tuple(map(_event, shown.events("", 0)[-MOST_EVENTS:])),
    )


def full_message(now: DashboardFrame) -> dict[str, Any]:
    """A frame as a page that has nothing yet gets it."""
    return {"at": now.at_unix_s, "tables": now.tables, "events": now.events}


def delta_message(before: DashboardFrame, now: DashboardFrame) -> dict[str, Any]:
    """What became different: by table and row the fields that did, None for rows that are gone; new events."""
    changed: dict[str, dict[str, Row | None]] = {}
    for name, table in now.tables.items():
        had = before.tables.get(name, _EMPTY)
        rows: dict[str, Row | None] = {
            key: _different(had.get(key), row) for key, row in table.items() if had.get(key) != row
        }
        rows.update({key: None for key in had if key not in table})
        if rows:
            changed[name] = rows
    return {
        "at": now.at_unix_s,
        "tables": changed,
        "events": [event for event in now.events if event["number"] > before.newest],
    }


def _different(before: Row | None, now: Row) -> Row:
    return now if before is None else {name: value for name, value in now.items() if before.get(name) != value}


def _server(readiness: Readiness, policies: PoliciesStatus) -> dict[str, Any]:
    return {
        "ready": readiness.ready,
        "reason": readiness.reason,
        "policies": policies.state,
        "digest": policies.serving_digest[:12],
        "stale": policies.stale,
        "problems": [f"{one.place}: {one.message}" for one in policies.errors[:5]],
        "held": policies.held,
        "lost": sorted(policies.lost_s),
    }


def _troubles(shown: DashboardSource) -> list[str]:
    """What stands between what somebody wrote and what is in force, as ``switchgear status`` says it.

    Without ages, which change each second.
    """
    rows = [asdict(replace(one, age_s=None)) for one in shown.rolled_back()]
    found = [
        *on_rolled_back(rows),
        *on_file_problems([asdict(one) | {"age_s": None} for one in shown.file_problems()]),
        *on_canary(shown.canary(), aged=False),
    ]
    return [f"{one.code} {one.subject}: {one.sentence}" for one in found]


def _pool(pool: PoolStatus) -> Row:
    return {
        "model": pool.model,
        "engines": pool.engines,
        "healthy": pool.healthy,
        "keptIn": pool.kept_in,
        "level": pool.level,
        "levelReason": pool.level_reason,
        "ceiling": pool.ceiling,
        "ceilingReason": pool.ceiling_reason,
        "held": pool.held,
        "slots": _short(pool.slots),
        "inFlight": pool.in_flight,
        "donePerS": _short(pool.done_per_s),
        "askedPerS": _short(pool.arrivals_per_s),
        "shedPerS": _short(sum(pool.shed_per_s.values()) if pool.shed_per_s else 0.0),
        "retriesPerS": _short(pool.retries_per_s),
        "errorPercent": _short(pool.error_percent),
        "pressure": pool.pressure,
        "hedging": pool.hedging,
        "answerP99S": _short(pool.answer_p99_s),
        "firstByteP99S": _short(pool.first_byte_p99_s),
        "shadow": list(pool.shadow),
    }


def _zone(zone: ZoneStatus) -> Row:
    return {
        "pool": zone.pool,
        "zone": zone.zone,
        "healthy": zone.healthy,
        "engines": zone.engines,
        "sends": dict(zone.sends_percent),
        "reason": zone.reason,
    }


def _engine(engine: EngineStatus, pool_done_per_s: float | None) -> Row:
    """What the map shows; all else is asked for when somebody looks at one engine.

    Ages are not in here: they would make every row another one each second.
    """
    held = engine.in_flight if engine.in_flight is not None else engine.requests_in_flight
    gpus = engine.gpu.gpus if engine.gpu is not None else ()
    share = (
        100 * engine.done_per_s / pool_done_per_s if engine.done_per_s is not None and pool_done_per_s else None
    )
    return {
        "pool": engine.pool,
        "engine": engine.engine,
        "zone": engine.zone,
        "verdict": engine.verdict,
        "health": engine.health,
        "reason": engine.reason,
        "ejector": engine.ejector,
        "floor": engine.floor,
        "trafficPercent": engine.traffic_percent,
        "order": engine.order,
        "shadow": engine.shadow,
        "standing": engine.standing,
        "inFlight": held,
        "waiting": engine.requests_waiting,
        "slots": _short(engine.slots),
        "kvPercent": _percent(engine.kv_cache_usage_ratio),
        "tokensPerS": _short(engine.tokens_per_s),
        "gpuPercent": max((one.utilisation_percent or 0 for one in gpus), default=None),
        "gpuC": max((one.temperature_c or 0 for one in gpus), default=None),
        "sharePercent": _short(share),
        "errorPercent": _short(engine.error_percent),
        "shunned": len(engine.shunned_by),
    }


def _proxy(proxy: ProxyStatus) -> Row:
    return {
        "zone": proxy.zone,
        "role": proxy.role,
        "protocol": proxy.protocol,
        "types": {one.type: one.state.value for one in proxy.types},
        "refused": [f"{one.type} {each.name}: {each.reason}" for one in proxy.types for each in one.refused][:5],
        "inFlight": sum(one.in_flight for one in proxy.traffic),
        "askedPerS": _short(sum(one.arrivals_per_s for one in proxy.traffic)),
        "shedPerS": _short(sum(one.shed_per_s for one in proxy.traffic)),
    }


def _event(event: EventStatus) -> Row:
    return {
        "number": event.number,
        "at": round(event.at_unix_s, 2),
        "kind": event.kind,
        "subject": event.subject,
        "pool": event.pool,
        "engine": event.engine,
        "before": event.before,
        "after": event.after,
        "evidence": event.evidence,
        "alarm": event.alarm,
        "times": event.times,
    }


def _short(number: float | None) -> float | None:
    """Three digits are more than anybody sees, and a tenth digit would make every row another one."""
    return None if number is None else float(f"{number:.3g}")


def _percent(ratio: float | None) -> int | None:
    return None if ratio is None else round(100 * ratio)
