"""How long a fleet lasts while arrivals grow each month."""

import math
from dataclasses import dataclass, replace

from chaos.planning.error import PlanError
from chaos.planning.fleet_capacity import WaitPromise, most_arrivals_kept
from chaos.planning.pool_change import WhatIfChange, changed_pool
from chaos.planning.pool_situation import PoolSituation
from chaos.planning.queueing import fewest_servers

MOST_MONTHS = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthProjection:
    """One month: arrivals, their share of the slots, and engines needed for the wait target."""

    month: int
    arrivals_per_s: float
    pressure: float
    engines_needed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthProjection:
    """When arrivals exceed capacity, in months from now; None: never.

    ``runs_out`` is for the whole fleet, ``runs_out_without_zone`` with its largest zone lost (None with one zone).
    ``order_by`` is the earlier one less the lead time; negative: too late.
    """

    months: tuple[MonthProjection, ...]
    engines: int
    most_arrivals_per_s: float
    runs_out: float | None
    runs_out_without_zone: float | None
    order_by: float | None


def growth_projection(
    situation: PoolSituation, promise: WaitPromise, *, growth: float, lead_months: float = 0.0, months: int = 12
) -> GrowthProjection:
    """Project arrivals that grow by ``growth`` (0.05: 5 %) a month."""
    if growth <= -1:
        raise PlanError(f"growth {growth:.0%}: must be above -100 %")
    if lead_months < 0 or not 1 <= months <= MOST_MONTHS:
        raise PlanError(f"lead time must not be negative; months must be 1 to {MOST_MONTHS}")
    if situation.arrivals_per_s <= 0:
        raise PlanError("arrivals are 0: nothing can grow")
    if not situation.up:
        raise PlanError("no engine is in rotation")
    situation = replace(situation, max_wait_s=None)
    most = most_arrivals_kept(situation, promise)
    ends = [_reached(situation.arrivals_per_s, most, growth)]
    without = None
    if len(situation.zones) > 1:
        left = min(
            (changed_pool(situation, WhatIfChange(lose_zones=(zone,))) for zone in situation.zones),
            key=lambda one: one.capacity_per_s,
        )
        without = _reached(situation.arrivals_per_s, most_arrivals_kept(left, promise), growth)
        ends.append(without)
    known = [one for one in ends if one is not None]
    each = max(1, math.floor(situation.slots / len(situation.up)))
    return GrowthProjection(
        months=tuple(_month(situation, promise, growth, number, each) for number in range(months + 1)),
        engines=len(situation.up),
        most_arrivals_per_s=most,
        runs_out=ends[0],
        runs_out_without_zone=without,
        order_by=min(known) - lead_months if known else None,
    )


def _reached(now: float, most: float, growth: float) -> float | None:
    """Months until ``now`` grows to ``most``; 0 if it has, None if it never will."""
    if most <= now:
        return 0.0
    return math.log(most / now) / math.log1p(growth) if growth > 0 else None


def _month(
    situation: PoolSituation, promise: WaitPromise, growth: float, month: int, each: int
) -> MonthProjection:
    arrivals = situation.arrivals_per_s * (1 + growth) ** month
    return MonthProjection(
        month=month,
        arrivals_per_s=arrivals,
        pressure=arrivals / situation.capacity_per_s,
        engines_needed=fewest_servers(
            arrivals, situation.service_s, patience_s=promise.wait_s, late=promise.late, each=each
        ),
    )
