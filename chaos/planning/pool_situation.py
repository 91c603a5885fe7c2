"""Current state of a pool: capacity of each engine, and arrivals.

Read from a running server, from a recording, or from the command line. Slots and service times are measured per
engine where available.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from chaos.planning.error import PlanError
from chaos.planning.queueing import SlotQueue, wait_quantile
from policies.objectives import Objective, ObjectiveKind
from xds_server.admin_api.objective_types import ObjectiveStatus
from xds_server.admin_api.pool_history_types import PoolPoint
from xds_server.admin_api.status_types import EngineStatus, PoolStatus

LATENCY_S = 300.0
"""Age of the answers whose percentiles are read from a server."""


_PERCENTILES: Final = {ObjectiveKind.FIRST_TOKEN: "first_byte", ObjectiveKind.TOTAL: "total"}
"""Fields of a ``PoolPoint`` by what they measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSlots:
    """One engine: concurrent requests, seconds per request, and whether it is in rotation."""

    name: str
    zone: str
    slots: float
    service_s: float
    up: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedObjective:
    """An objective of the pool or of a route to it; ``name`` as in ``switchgear get objectives``.

    ``served_s`` is the latency at its percentile without the wait for a slot, while the mean service time was
    ``service_s``; None: not measured, or not a latency.
    """

    name: str
    objective: Objective
    served_s: float | None = None
    service_s: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSituation:
    """Engines and arrivals. ``max_wait_s`` is the wait the admission limit allows; None: no limit.

    ``source`` describes the origin of the numbers. ``objectives`` are what callers of the pool are promised.
    """

    pool: str
    engines: tuple[EngineSlots, ...]
    arrivals_per_s: float
    max_wait_s: float | None
    source: str
    objectives: tuple[PlannedObjective, ...] = ()

    @property
    def up(self) -> tuple[EngineSlots, ...]:
        """Engines in rotation."""
        return tuple(one for one in self.engines if one.up)

    @property
    def slots(self) -> float:
        """Slots of the engines in rotation."""
        return sum(one.slots for one in self.up)

    @property
    def capacity_per_s(self) -> float:
        """Requests completed per second with every slot busy."""
        return sum(one.slots / one.service_s for one in self.up)

    @property
    def service_s(self) -> float:
        """Mean seconds per request over all slots, weighted by throughput; NaN without engines."""
        return self.slots / self.capacity_per_s if self.up else math.nan

    @property
    def zones(self) -> tuple[str, ...]:
        """Zones with engines in rotation, sorted."""
        return tuple(sorted({one.zone for one in self.up}))

    def queue(self) -> SlotQueue | None:
        """The pool as one queue, slots rounded down; None without engines in rotation."""
        servers = math.floor(self.slots + 1e-9)
        if servers < 1:
            return None
        room = None
        if self.max_wait_s is not None:
            # As the control plane computes it: slots x (1 + wait / service time).
            room = max(servers, math.floor(servers * (1 + self.max_wait_s / self.service_s)))
        return SlotQueue(servers=servers, service_s=self.service_s, arrivals_per_s=self.arrivals_per_s, room=room)


def uniform_engines(
    *,
    engines: int,
    slots: float,
    service_s: float,
    arrivals_per_s: float,
    zones: int = 1,
    max_wait_s: float | None = None,
) -> PoolSituation:
    """Build a pool of identical engines, distributed evenly over zone-0, zone-1, ..."""
    if engines < 1 or zones < 1 or slots <= 0 or service_s <= 0 or arrivals_per_s < 0:
        raise PlanError("engines, zones, slots and service time must be above 0; arrivals must not be negative")
    profiles = tuple(
        EngineSlots(name=f"e{number}", zone=f"zone-{number % zones}", slots=slots, service_s=service_s)
        for number in range(engines)
    )
    return PoolSituation(
        pool="",
        engines=profiles,
        arrivals_per_s=arrivals_per_s,
        max_wait_s=max_wait_s,
        source="the command line",
    )


def pool_from_server(pools: Sequence[PoolStatus], engines: Iterable[EngineStatus], pool: str) -> PoolSituation:
    """Read a pool from ``/v1/pools`` and ``/v1/engines`` of a server; raise ``PlanError`` if data is missing.

    ``pool`` may be empty if there is only one.
    """
    row = next(one for one in pools if one.pool == chosen_pool([one.pool for one in pools], pool))
    if row.arrivals_per_s is None:
        raise PlanError(f"pool {row.pool}: no traffic reported by any proxy")
    mine = [one for one in engines if one.pool == row.pool]
    known = [one for one in map(_service_s, mine) if one is not None]
    if not known:
        raise PlanError(f"pool {row.pool}: no request completed recently, so the service time is unknown")
    usual_s = sorted(known)[len(known) // 2]
    profiles = tuple(
        EngineSlots(
            name=one.engine,
            zone=one.zone,
            slots=one.slots or 0.0,
            service_s=_service_s(one) or usual_s,
            up=one.health in ("HEALTHY", None) and bool(one.slots),  # None: in rotation, never reported on
        )
        for one in mine
    )
    situation = PoolSituation(
        pool=row.pool,
        engines=profiles,
        arrivals_per_s=row.arrivals_per_s,
        max_wait_s=None,
        source="live telemetry (last 2 s): learned slots, service time of completed requests",
    )
    if row.ceiling is None or not row.slots:
        return situation
    wait_s = ((row.ceiling - (row.held or 0)) / row.slots - 1) * situation.service_s
    return PoolSituation(
        pool=situation.pool,
        engines=profiles,
        arrivals_per_s=situation.arrivals_per_s,
        max_wait_s=max(0.0, wait_s),
        source=situation.source,
    )


def chosen_pool(known: Sequence[str], pool: str) -> str:
    """Return the chosen pool; raise ``PlanError`` with the known pools if it is missing or ambiguous."""
    if not known:
        raise PlanError("no pools found")
    if not pool and len(known) == 1:
        return known[0]
    if pool not in known:
        problem = f"unknown pool {pool!r}" if pool else "several pools: choose one with --pool"
        raise PlanError(f"{problem}; pools: {', '.join(sorted(known))}")
    return pool


def _service_s(engine: EngineStatus) -> float | None:
    """Seconds a request holds a slot. With more in flight than slots, durations include waiting for a slot."""
    in_flight, done, slots = engine.in_flight, engine.done_per_s, engine.slots
    if in_flight and done and slots and in_flight > slots:
        return float(slots / done)
    return float(engine.service_s) if engine.service_s else None


def planned_objectives(
    situation: PoolSituation, measured: Iterable[tuple[str, Objective, float | None]]
) -> tuple[PlannedObjective, ...]:
    """Objectives by name, each with the latency measured at its percentile while the pool was in ``situation``."""
    queue = situation.queue()

    def served_s(target: float, latency_s: float | None) -> float | None:
        if latency_s is None or queue is None:
            return None
        waited_s = wait_quantile(queue, target)
        return max(0.0, latency_s - waited_s) if math.isfinite(waited_s) else latency_s

    return tuple(
        PlannedObjective(
            name=name,
            objective=objective,
            served_s=served_s(objective.target, latency_s),
            service_s=situation.service_s,
        )
        for name, objective, latency_s in measured
    )


def with_objectives(
    situation: PoolSituation, statuses: Iterable[ObjectiveStatus], points: Sequence[PoolPoint]
) -> PoolSituation:
    """The pool with its objectives from ``/v1/objectives`` and percentiles from ``/v1/pool-history``.

    A percentile is the median over the intervals of the last ``LATENCY_S``: one slow interval is not typical.
    """
    newest_s = max((one.at_unix_s for one in points), default=0.0)
    recent = [one for one in points if one.at_unix_s > newest_s - LATENCY_S]
    measured = []
    for one in statuses:
        kind = next((kind for kind in ObjectiveKind if one.objective.partition("-p")[0] == kind.value), None)
        if kind is None or situation.pool not in one.pools:
            continue
        objective = Objective(
            name=one.objective, kind=kind, target=one.target_percent / 100, limit_s=one.limit_s or 0.0
        )
        measured.append((one.name, objective, _latency_s(objective, recent)))
    return replace(situation, objectives=planned_objectives(situation, measured))


def _latency_s(objective: Objective, points: Iterable[PoolPoint]) -> float | None:
    name = _PERCENTILES.get(objective.kind)
    if name is None:
        return None
    field = f"{name}_{objective.name[-3:]}_s"
    known = sorted(value for one in points if (value := getattr(one, field)) is not None)
    return known[len(known) // 2] if known else None
