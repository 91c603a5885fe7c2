"""Capacity of a fleet: utilization, headroom, loss of a zone, cost of each nine."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from chaos.planning.error import PlanError
from chaos.planning.pool_change import PoolOutcome, WhatIfChange, changed_pool, pool_outcome
from chaos.planning.pool_situation import PoolSituation
from chaos.planning.queueing import fewest_servers, most_arrivals
from chaos.planning.spare_engines import SpareEngines, spares_for


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitPromise:
    """Wait target: at most the share ``late`` of requests waits longer than ``wait_s`` for a slot."""

    wait_s: float = 2.0
    late: float = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """A fleet, whole or without one zone, compared with the wait target.

    ``name`` is the lost zone. ``most_arrivals_per_s`` is the highest rate that meets the target. ``head_room`` is
    the growth it allows, as a share of the arrivals; negative: overloaded.
    """

    name: str
    now: PoolOutcome
    most_arrivals_per_s: float
    head_room: float

    @property
    def kept(self) -> bool:
        """Whether the wait target is met."""
        return self.head_room >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCapacity:
    """The whole fleet, the fleet without each zone, and engines needed, with and without the loss of a zone.

    ``each_slots`` and ``each_service_s`` describe the mean engine, the unit of ``need``.
    """

    whole: Headroom
    without_zone: tuple[Headroom, ...]
    each_slots: float
    each_service_s: float
    need: int
    need_with_zone_lost: int | None


def fleet_capacity(situation: PoolSituation, promise: WaitPromise) -> FleetCapacity:
    """Compute the capacity without an admission limit, so that long waits show."""
    if not situation.up:
        raise PlanError("no engine is in rotation")
    open_ended = replace(situation, max_wait_s=None)
    zones = open_ended.zones
    each = open_ended.slots / len(open_ended.up)
    need = _need(open_ended, promise, each)
    return FleetCapacity(
        whole=_room("nothing", open_ended, promise),
        without_zone=tuple(
            _room(zone, changed_pool(open_ended, WhatIfChange(lose_zones=(zone,))), promise) for zone in zones
        )
        if len(zones) > 1
        else (),
        each_slots=each,
        each_service_s=open_ended.service_s,
        need=need,
        need_with_zone_lost=_dealt(need, len(zones)) if len(zones) > 1 else None,
    )


def spares_per_nine(
    need: int, down: float, targets: Sequence[float], *, cost_per_hour: float | None
) -> tuple[tuple[SpareEngines, int], ...]:
    """Spares per target (allowed shortage probability), and how many more than for the previous target."""
    found = spares_for(need, down, targets, cost_per_hour=cost_per_hour)
    before = [0, *(one.spares for one in found)]
    return tuple((one, one.spares - less) for one, less in zip(found, before, strict=False))


def most_arrivals_kept(situation: PoolSituation, promise: WaitPromise) -> float:
    """Highest arrivals per second that meet the wait target; 0 without engines."""
    queue = situation.queue()
    if queue is None:
        return 0.0
    return most_arrivals(queue.servers, queue.service_s, patience_s=promise.wait_s, late=promise.late)


def _room(name: str, situation: PoolSituation, promise: WaitPromise) -> Headroom:
    most = most_arrivals_kept(situation, promise)
    asked = situation.arrivals_per_s
    return Headroom(
        name=name,
        now=pool_outcome(situation, patience_s=promise.wait_s),
        most_arrivals_per_s=most,
        head_room=most / asked - 1 if asked else math.inf,
    )


def _need(situation: PoolSituation, promise: WaitPromise, each_slots: float) -> int:
    """Engines needed, each like the mean engine."""
    whole = max(1, math.floor(each_slots))
    return fewest_servers(
        situation.arrivals_per_s, situation.service_s, patience_s=promise.wait_s, late=promise.late, each=whole
    )


def _dealt(need: int, zones: int) -> int:
    """Evenly distributed engines that leave ``need`` after the loss of the fullest zone."""
    return next(total for total in count(need + 1) if total - math.ceil(total / zones) >= need)
