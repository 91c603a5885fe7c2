"""A pool as it stands: its engines with what each can do, and what is asked of it.

Made from what a running control plane tells, from a recording of one, or from numbers on the command line.
Slots and service times are those that were measured per engine, where they were.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chaos.planning.error import PlanError
from chaos.planning.queueing import SlotQueue
from xds_server.admin_api.status_types import EngineStatus, PoolStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSlots:
    """One engine: calls at once, seconds for each, and whether it takes part."""

    name: str
    zone: str
    slots: float
    service_s: float
    up: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSituation:
    """Engines and arrivals. ``max_wait_s`` is the wait the ceiling allows; None: nothing is refused.

    ``source`` says in words where the numbers are from.
    """

    pool: str
    engines: tuple[EngineSlots, ...]
    arrivals_per_s: float
    max_wait_s: float | None
    source: str

    @property
    def up(self) -> tuple[EngineSlots, ...]:
        """The engines that take part."""
        return tuple(one for one in self.engines if one.up)

    @property
    def slots(self) -> float:
        """Slots of the engines that take part."""
        return sum(one.slots for one in self.up)

    @property
    def capacity_per_s(self) -> float:
        """Calls that can end per second with every slot busy."""
        return sum(one.slots / one.service_s for one in self.up)

    @property
    def service_s(self) -> float:
        """Seconds that a slot needs for a call, over all slots: fast engines do more of the calls."""
        return self.slots / self.capacity_per_s if self.up else math.nan

    @property
    def zones(self) -> tuple[str, ...]:
        """Zones with engines that take part, in order."""
        return tuple(sorted({one.zone for one in self.up}))

    def queue(self) -> SlotQueue | None:
        """The pool as one queue, slots rounded down; None where no engine takes part."""
        servers = math.floor(self.slots + 1e-9)
        if servers < 1:
            return None
        room = None
        if self.max_wait_s is not None:
            # The ceiling of the control plane: slots x (1 + wait / service time).
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
    """So many engines that are all alike, dealt evenly over zones that are called a, b, c..."""
    if engines < 1 or zones < 1 or slots <= 0 or service_s <= 0 or arrivals_per_s < 0:
        raise PlanError("engines, zones, slots and service time must be more than nothing, arrivals not less")
    profiles = tuple(
        EngineSlots(name=f"e{number}", zone=f"zone-{number % zones}", slots=slots, service_s=service_s)
        for number in range(engines)
    )
    return PoolSituation(
        pool="",
        engines=profiles,
        arrivals_per_s=arrivals_per_s,
        max_wait_s=max_wait_s,
        source="the numbers given",
    )


def pool_from_server(pools: Sequence[PoolStatus], engines: Iterable[EngineStatus], pool: str) -> PoolSituation:
    """A pool as ``/v1/pools`` and ``/v1/engines`` of a running control plane tell it, or ``PlanError``.

    ``pool`` may be empty where there is one only.
    """
    row = next(one for one in pools if one.pool == chosen_pool([one.pool for one in pools], pool))
    if row.arrivals_per_s is None:
        raise PlanError(f"pool {row.pool}: no proxy tells of its traffic, so what is asked of it is not known")
    mine = [one for one in engines if one.pool == row.pool]
    known = [one for one in map(_service_s, mine) if one is not None]
    if not known:
        raise PlanError(f"pool {row.pool}: no engine has ended a call lately, so no service time is known")
    usual_s = sorted(known)[len(known) // 2]
    profiles = tuple(
        EngineSlots(
            name=one.engine,
            zone=one.zone,
            slots=one.slots or 0.0,
            service_s=_service_s(one) or usual_s,
            up=one.health == "HEALTHY" and bool(one.slots),
        )
        for one in mine
    )
    situation = PoolSituation(
        pool=row.pool,
        engines=profiles,
        arrivals_per_s=row.arrivals_per_s,
        max_wait_s=None,
        source="live telemetry, the last 2 seconds; slots as learned, service time as calls that ended showed it",
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
    """The pool that is meant, or ``PlanError`` that names those there are."""
    if not known:
        raise PlanError("there is no pool")
    if not pool and len(known) == 1:
        return known[0]
    if pool not in known:
        said = f"there is no pool {pool!r}" if pool else "say which pool is meant"
        raise PlanError(f"{said}; there are {', '.join(sorted(known))}")
    return pool


def _service_s(engine: EngineStatus) -> float | None:
    """Seconds a call holds a slot; with more in flight than slots, durations are in part the wait for one."""
    in_flight, done, slots = engine.in_flight, engine.done_per_s, engine.slots
    if in_flight and done and slots and in_flight > slots:
        return float(slots / done)
    return float(engine.service_s) if engine.service_s else None
