"""The decisions for one pool: the order in which they are made.

Who is in (``engines``); what they can do, how far service is degraded and how much is let in
(``admission_decision``: ``capacity``, ``degradation_state``, ``ceiling``); whether to hedge, what to try again,
how long to wait, how unequal engines are filled and who serves whom (``routing``: ``hedging``, ``retry_statuses``,
``time_limits``, ``endpoint_weights``, ``zones``, ``regions``). Each step sees the steps before it and what was
decided in the last round.

A pool whose engines, traffic, policies, proxies and orders are the same objects as last time keeps its decisions
until time alone would change one. That is memory of work done, and changes no answer.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from policies.pool import EnginePoolSpec
from policies.resilience import ResilienceSpec
from policies.route import PriorityClass
from xds_server.decide.admission.ceiling import admission_decision, ceiling_for_role
from xds_server.decide.admission.degradation_level import FallbackView, degradation_due_s, degradation_state
from xds_server.decide.admission.engine_capacity import engine_capacities
from xds_server.decide.decisions import (
    AdmissionDecision,
    DegradationState,
    EndpointWeight,
    EngineCapacity,
    EngineDecision,
    Health,
    HedgeDecision,
    PoolDecisions,
    RetryDecision,
    TimeLimits,
    ZoneShares,
)
from xds_server.decide.ejection.engine_decisions import engine_decisions
from xds_server.decide.routing.endpoint_weights import endpoint_weights, endpoint_weights_due_s, weights_moved_at_s
from xds_server.decide.routing.hedge_decision import hedge_decision, hedge_due_s
from xds_server.decide.routing.region_shares import RegionRouting, region_routing, regions_due_s
from xds_server.decide.routing.retry_statuses import retries_due_s, retry_statuses
from xds_server.decide.routing.time_limits import limits_due_s, time_limits
from xds_server.decide.routing.zone_shares import MIN_INTERVAL_S, zone_shares
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.order import Order
from xds_server.model.pool_traffic import PoolTraffic, Proxy
from xds_server.model.view import GATEWAY, SIDECAR

REEVALUATE_S: Final = 0.5
"""While a pool has traffic its rates, tails and timers move by themselves, and are looked at again so soon."""

TRAFFIC_MEMORY_S: Final = 120.0
"""Traffic older than this moves nothing any more."""

_ROLES: Final = frozenset({GATEWAY, SIDECAR})


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedInputs:
    """What all pools share: who asks, from where, and when."""

    proxies: Mapping[str, Proxy]
    proxies_by_role: Mapping[str, int]
    calling_zones: frozenset[str]
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolInputs:
    """One pool and what concerns only it."""

    spec: EnginePoolSpec
    resilience: ResilienceSpec
    engines: tuple[Engine, ...]
    classes: frozenset[PriorityClass]
    traffic: PoolTraffic | None
    orders: Mapping[EngineId, Order]
    fallback: FallbackView | None
    before: PoolDecisions


@dataclass(frozen=True, slots=True, kw_only=True)
class _AdmissionStep:
    """What was decided on how much is let in of a pool's traffic, and when time alone may change it."""

    capacities: Mapping[EngineId, EngineCapacity]
    degradation: DegradationState
    admission: AdmissionDecision
    due_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _RoutingStep:
    """What was decided on where a pool's traffic goes, and when time alone may change it."""

    hedge: HedgeDecision
    retries: RetryDecision
    limits: TimeLimits
    endpoint_weights: Mapping[EngineId, EndpointWeight]
    zones: Mapping[str, ZoneShares]
    regions: RegionRouting
    due_s: tuple[float, ...]


def pool_decisions(pool: PoolInputs, shared: SharedInputs) -> PoolDecisions:
    """The decisions for one pool; those of the last round where nothing they were made of has changed."""
    before, now_s = pool.before, shared.now_s
    made_of = (
        pool.spec,
        pool.resilience,
        pool.traffic,
        shared.proxies,
        tuple(sorted(shared.proxies_by_role.items())),
        shared.calling_zones,
        pool.classes,
        pool.orders,
        pool.fallback,
    )
    if now_s < before.valid_until_s and _same_inputs(before, pool.engines, made_of):
        return before
    outcome = engine_decisions(
        pool.spec,
        pool.resilience,
        pool.engines,
        pool.traffic,
        overrides=pool.orders,
        before=before,
        now_s=now_s,
    )
    let_in = _admission_step(pool, shared, outcome.engines)
    routed = _routing_step(pool, shared, outcome.engines, let_in)
    return PoolDecisions(
        engines=outcome.engines,
        zones=routed.zones,
        ceilings={
            role: ceiling_for_role(let_in.admission, pool.resilience, role, shared.proxies_by_role)
            for role in sorted(_ROLES.union(shared.proxies_by_role))
        },
        declared=pool.engines,
        inputs=made_of,
        valid_until_s=_valid_until_s((outcome.until_s, *let_in.due_s, *routed.due_s), pool.traffic, now_s),
        breakers=outcome.breakers,
        stragglers=outcome.stragglers,
        flaps=outcome.flaps,
        lost_since_s=outcome.lost_since_s,
        admission=let_in.admission,
        hedge=routed.hedge,
        retries=routed.retries,
        limits=routed.limits,
        degradation=let_in.degradation,
        endpoint_weights=routed.endpoint_weights,
        regions=routed.regions.shares,
        region_zones=routed.regions.zones,
        revisions=routed.regions.revisions,
    )


def _admission_step(
    pool: PoolInputs, shared: SharedInputs, engines: Mapping[EngineId, EngineDecision]
) -> _AdmissionStep:
    """How much is let in, given which engines are."""
    last, degradation, now_s = pool.before.admission, pool.resilience.degradation, shared.now_s
    able = engine_capacities(
        pool.spec,
        pool.resilience,
        pool.engines,
        pool.traffic,
        decisions=engines,
        before=pool.before.restored_capacities if last is None else last.capacities,
        now_s=now_s,
    )
    level = degradation_state(
        degradation,
        pool.before.degradation,
        pressure=None if last is None else last.pressure,
        capacity=any_admitted(engines),
        fallback=pool.fallback,
        shadow=pool.resilience.shadowed(degradation.mode),
        now_s=now_s,
    )
    admitted = admission_decision(
        pool.spec,
        pool.resilience,
        pool.engines,
        engines,
        able,
        traffic=pool.traffic,
        classes=pool.classes,
        proxies=shared.proxies,
        proxies_by_role=shared.proxies_by_role,
        ladder=level,
        before=last,
        now_s=now_s,
    )
    return _AdmissionStep(
        capacities=able,
        degradation=level,
        admission=admitted,
        due_s=(degradation_due_s(degradation, level, now_s),),
    )


def _routing_step(
    pool: PoolInputs, shared: SharedInputs, engines: Mapping[EngineId, EngineDecision], let_in: _AdmissionStep
) -> _RoutingStep:
    """Where what is let in goes."""
    before, resilience, now_s = pool.before, pool.resilience, shared.now_s
    hedging = hedge_decision(
        resilience.hedging,
        before.hedge,
        traffic=pool.traffic,
        utilization=let_in.admission.utilization,
        ladder=let_in.degradation,
        gated=pool.spec.first_token_gate,
        shadow=resilience.shadowed(resilience.hedging.mode),
        now_s=now_s,
    )
    retries = retry_statuses(resilience, before.retries, traffic=pool.traffic, engines=engines, now_s=now_s)
    limits = time_limits(
        pool.spec,
        resilience,
        before.limits,
        traffic=pool.traffic,
        engines=pool.engines,
        admission=let_in.admission,
        hedge=hedging,
        now_s=now_s,
    )
    picked = endpoint_weights(
        pool.engines,
        engines,
        let_in.capacities,
        learn=resilience.limits.learn and let_in.admission.in_force,
        wait_s=let_in.admission.wait_s,
        proxies=sum(shared.proxies_by_role.values()),
        zones_moved_s=max((shares.since_s for shares in before.zones.values()), default=-math.inf),
        before=before.endpoint_weights,
        now_s=now_s,
    )
    zones = zone_shares(
        pool.engines,
        engines,
        resilience.zones,
        callers=shared.calling_zones,
        capacities=let_in.capacities,
        demand=let_in.admission.demand,
        proxies=shared.proxies,
        shadow=resilience.shadowed(resilience.zones.mode),
        previous=before.zones,
        picked_at_s=weights_moved_at_s(picked),
        now_s=now_s,
    )
    regions = region_routing(
        pool.engines,
        engines,
        resilience,
        capacities=let_in.capacities,
        demand=let_in.admission.demand,
        proxies=shared.proxies,
        calling_zones=shared.calling_zones,
        before=before,
        picked_at_s=weights_moved_at_s(picked),
        now_s=now_s,
    )
    return _RoutingStep(
        hedge=hedging,
        retries=retries,
        limits=limits,
        endpoint_weights=picked,
        zones=zones,
        regions=regions,
        due_s=(
            *regions_due_s(regions.shares, resilience.regions),
            hedge_due_s(hedging, now_s),
            retries_due_s(retries, now_s),
            limits_due_s(limits, now_s),
            endpoint_weights_due_s(picked),
            weights_moved_at_s(picked) + MIN_INTERVAL_S,
            *(shares.since_s + MIN_INTERVAL_S for shares in zones.values()),
            *(one.since_s + MIN_INTERVAL_S for some in regions.zones.values() for one in some.values()),
        ),
    )


def _same_inputs(before: PoolDecisions, engines: tuple[Engine, ...], made_of: tuple[object, ...]) -> bool:
    """Whether decisions were made of this: the large parts by identity, the small ones by value."""
    return (
        before.declared is engines
        and all(was is now for was, now in zip(before.inputs[:4], made_of[:4], strict=True))
        and before.inputs[4:] == made_of[4:]
    )


def _valid_until_s(parts_s: Iterable[float], traffic: PoolTraffic | None, now_s: float) -> float:
    """When time alone may change a decision: a report grows old, a cooldown ends, held-back weights are due."""
    due_s = [moment for moment in parts_s if moment > now_s]
    if traffic is not None and now_s - traffic.heard_at_s < TRAFFIC_MEMORY_S:
        due_s.append(now_s + REEVALUATE_S)
    return min(due_s, default=math.inf)


def any_admitted(engines: Mapping[EngineId, EngineDecision]) -> bool:
    """Whether an engine takes requests at all."""
    return any(one.health is Health.HEALTHY for one in engines.values())
