"""Fair shares of a pool between tenants: who is refused while the pool has no room for all requests.

Each tenant has a share of the capacity, by its weight and its guaranteed minimum. What a tenant does not ask for
is lent to the others, again by weight (max-min fairness). Only tenants that ask for more than that are refused,
each by the percentage that is too much. Without pressure no tenant is limited.

Requests are counted by work: a request of a tenant whose answers take twice as long as the mean counts as two.
Requests of no tenant, from other ports and as a fallback, are taken off the capacity first.

Requests that are refused still count as demand, so that a limit does not end the pressure that it answers. All
proxies refuse the same percentage, so nothing is divided over them.

Formula, source and failure mode: docs/decisions.md, "Fair shares of tenants".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from policies.model import PolicySet
from policies.resilience.mode import Mode
from xds_server.decide.decision_memory import FairShareMemory
from xds_server.decide.decisions import FairShares, TenantShare
from xds_server.decide.pool_inputs import ShareRule
from xds_server.model.pool_traffic import RATE_S, STALE_S, PoolTraffic, TenantId, TenantUse

USED_PART: Final = 0.85
"""Part of the capacity that is divided. At full use requests wait, those of tenants within their share too.

Of ten tenants, one at ten times its share, the p99 of the others was 1.12 times that before; with 0.9 it was 1.18,
above 1.2 in 3 of 12 simulated runs, and 4 % more were answered.
"""

_LEAST_PART: Final = 0.5
"""Part of it that tenants keep, whatever others send, and that corrections leave."""

_CALM: Final = 0.85
"""Demand over the divided capacity below which pressure ends, after ``_CALM_S``."""

_CALM_S: Final = 3.0
_TRIFLE: Final = 0.02
"""A tenant that asks for so little more than it may is not limited.

Nor does a limit begin before the excess exceeds one standard deviation of its requests in ``RATE_S``: the few
requests of a calm tenant often come together.
"""

_STEP: Final = 0.05
"""Relative change of what is admitted below which a limit does not move: each move is a push to every proxy."""

_MOVE_S: Final = 0.4
_SETTLED_S: Final = 3.0
"""After a limit moved much, rates of the last 2 s still contain what was before."""

_SHED_PART: Final = 0.005
_SHRINK_PER_S: Final = 0.1
_GROW_PER_S: Final = 0.02
"""While tenants within their share are refused at the admission ceiling, the capacity is less than was thought."""

_COST_CALLS: Final = 5.0
_COST_KEPT: Final = 0.8
_COSTS: Final = (0.1, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantClaim:
    """What a tenant asks for, its weight, and its guaranteed minimum; amounts in one unit."""

    demand: float
    weight: float
    least: float = 0.0


def share_rules(policies: PolicySet) -> Mapping[str, Mapping[TenantId, ShareRule]]:
    """The tenants with fair shares of each pool; a port's tenants share the first pool of each of its routes."""
    found: dict[str, dict[TenantId, ShareRule]] = {}
    for route in policies.routes.values():
        listener, tenants = route.spec.listener, route.spec.listener.tenants
        if tenants is None or not tenants.fair_shares:
            continue
        rules = found.setdefault(route.spec.pools[0].pool, {})
        for name, quota in tenants.quotas().items():
            rules[listener.port, name] = ShareRule(
                weight=quota.weight, min_percent=quota.min_percent, enforced=tenants.mode is Mode.ENFORCE
            )
    return found


def water_filled(capacity: float, claims: Sequence[TenantClaim]) -> list[float]:
    """The max-min fair part of each claim, in their order.

    They add up to the capacity, or to the demand if that is less. No part exceeds its demand. Minima that exceed
    the capacity together shrink in proportion.
    """
    if math.fsum(one.demand for one in claims) <= capacity:
        return [one.demand for one in claims]
    whole_least = math.fsum(one.least for one in claims)
    fits = min(1.0, capacity / whole_least) if whole_least > 0 else 1.0
    least = [fits * one.least for one in claims]
    level = _level(capacity, claims, least)
    return [min(one.demand, max(low, one.weight * level)) for one, low in zip(claims, least, strict=True)]


def _level(capacity: float, claims: Sequence[TenantClaim], least: Sequence[float]) -> float:
    """The water level: what a weight of 1 gets, where all parts add up to the capacity."""
    events: list[tuple[float, float]] = []
    for one, low in zip(claims, least, strict=True):
        if low < one.demand:
            events += [(low / one.weight, one.weight), (one.demand / one.weight, -one.weight)]
    filled = math.fsum(min(one.demand, low) for one, low in zip(claims, least, strict=True))
    level, rising = 0.0, 0
    slopes: list[float] = []
    for at, slope in sorted(events):
        grown = math.fsum(slopes) * (at - level) if rising else 0.0
        if filled + grown >= capacity:
            break
        filled, level = filled + grown, at
        slopes.append(slope)
        rising += 1 if slope > 0 else -1
    slope = math.fsum(slopes)
    return level + (capacity - filled) / slope if rising and slope > 0 else level


def fair_shares(
    rules: Mapping[TenantId, ShareRule],
    traffic: PoolTraffic | None,
    *,
    per_s: float,
    before: FairShareMemory | None,
    now_s: float,
) -> FairShareMemory | None:
    """The shares of a pool now; None without rules.

    ``per_s``: answers per second that the pool can give, of mean requests.
    """
    if not rules:
        return None
    told = traffic.tenants if traffic is not None and now_s - traffic.heard_at_s <= STALE_S else None
    uses = {} if told is None else told.by_tenant
    costs = _costs(rules, uses, {} if before is None else before.costs)
    demands = {key: uses[key].arrivals_per_s * costs.get(key, 1.0) if key in uses else 0.0 for key in rules}
    whole = math.fsum(demands.values())
    trim = _trim(uses, before, now_s)
    most = USED_PART * per_s * trim
    if told is not None and traffic is not None:
        # Other replicas limit the tenants at their proxies, to the rest of the capacity.
        most *= min(1.0, told.proxies / max(1, len(traffic.proxies)))
    capacity = max(_LEAST_PART * most, most - (0.0 if told is None else told.strangers_per_s))
    was_on = before is not None and before.decided.on
    calm_since_s = None
    if whole < _CALM * capacity:
        known_s = before.calm_since_s if before is not None and was_on else None
        calm_since_s = now_s if known_s is None else known_s
    on = capacity > 0 and (whole > capacity or (was_on and not _is_past(calm_since_s, _CALM_S, now_s)))
    shares = _shares(rules, demands, capacity, on=on, before=before, now_s=now_s)
    since_s = before.decided.since_s if before is not None and before.decided.on == on else now_s
    moved_at_s = now_s if before is None or _moved_much(before.decided.tenants, shares) else before.moved_at_s
    return FairShareMemory(
        decided=FairShares(
            on=on, capacity_per_s=capacity, demand_per_s=whole, tenants=MappingProxyType(shares), since_s=since_s
        ),
        costs=MappingProxyType(costs),
        calm_since_s=calm_since_s,
        trim=trim if on else 1.0,
        at_s=now_s,
        moved_at_s=moved_at_s,
    )


def _is_past(since_s: float | None, wait_s: float, now_s: float) -> bool:
    return since_s is not None and now_s - since_s >= wait_s


def _costs(
    rules: Mapping[TenantId, ShareRule], uses: Mapping[TenantId, TenantUse], known: Mapping[TenantId, float]
) -> dict[TenantId, float]:
    """Work of a tenant's request over that of the mean request; kept while it has too few answers to tell."""
    done = math.fsum(one.done_per_s for one in uses.values())
    mean_s = math.fsum(one.busy for one in uses.values()) / done if done else 0.0
    found = {key: cost for key, cost in known.items() if key in rules}
    for key, use in uses.items():
        if key not in rules or mean_s <= 0 or use.done_per_s * RATE_S < _COST_CALLS:
            continue
        low, high = _COSTS
        cost = min(high, max(low, use.busy / use.done_per_s / mean_s))
        found[key] = _COST_KEPT * found[key] + (1 - _COST_KEPT) * cost if key in found else cost
    return found


def _trim(uses: Mapping[TenantId, TenantUse], before: FairShareMemory | None, now_s: float) -> float:
    """Correction of the capacity, at most 1: less while requests within their shares find no room."""
    if before is None or not before.decided.on:
        return 1.0
    passed_s = min(1.0, now_s - before.at_s)
    # Also requests of limited tenants: those that were admitted count against the capacity.
    shed = math.fsum(one.shed_per_s for one in uses.values())
    admitted = math.fsum(one.arrivals_per_s - one.over_share_per_s for one in uses.values())
    if shed > _SHED_PART * admitted and now_s - before.moved_at_s >= _SETTLED_S:
        return max(_LEAST_PART, before.trim * (1 - _SHRINK_PER_S * passed_s))
    return min(1.0, before.trim + _GROW_PER_S * passed_s)


def _shares(
    rules: Mapping[TenantId, ShareRule],
    demands: Mapping[TenantId, float],
    capacity: float,
    *,
    on: bool,
    before: FairShareMemory | None,
    now_s: float,
) -> dict[TenantId, TenantShare]:
    least = {key: rule.min_percent / 100 * capacity for key, rule in rules.items()}
    # What each would have if all asked for everything.
    entitled = water_filled(
        capacity,
        [TenantClaim(demand=capacity, weight=rule.weight, least=least[key]) for key, rule in rules.items()],
    )
    parts = water_filled(
        capacity,
        [TenantClaim(demand=demands[key], weight=rule.weight, least=least[key]) for key, rule in rules.items()],
    )
    known = {} if before is None else before.decided.tenants
    found = {}
    for (key, rule), share, part in zip(rules.items(), entitled, parts, strict=True):
        demand, last = demands[key], known.get(key)
        begins = last is None or last.admitted >= 1.0
        trifle = max(_TRIFLE * demand, math.sqrt(demand / RATE_S) if begins else 0.0)
        admitted = part / demand if on and demand > 0 and part < demand - trifle else 1.0
        moved_s = now_s
        if last is not None and _may_stay(last, admitted, now_s):
            admitted, moved_s = last.admitted, last.since_s
        found[key] = TenantShare(
            share_per_s=share,
            demand_per_s=demand,
            allowed_per_s=part if on else demand,
            admitted=admitted,
            enforced=rule.enforced,
            since_s=moved_s,
        )
    return found


def _may_stay(last: TenantShare, admitted: float, now_s: float) -> bool:
    """Whether a limit need not move: no tenant waits for it to end, and the move is small or too soon."""
    if admitted == last.admitted:
        return True
    if admitted >= 1.0 or last.admitted >= 1.0:
        return False
    return abs(admitted - last.admitted) < _STEP * last.admitted or now_s - last.since_s < _MOVE_S


def _moved_much(before: Mapping[TenantId, TenantShare], now: Mapping[TenantId, TenantShare]) -> bool:
    """Whether a limit began, or admits much less than before."""
    return any(
        one.admitted < (1 - 2 * _STEP) * (before[key].admitted if key in before else 1.0)
        for key, one in now.items()
    )
