"""The decisions for one pool: the order of the steps.

First ``ejection``: which engines take requests. Then ``admission``: their capacity, the degradation level, and how
much is admitted. Then ``routing``: hedging, retries, time limits, weights of engines, zones and regions. Each step
sees the steps before it and the memory of the last round.

A pool whose engines, traffic, policies and orders are the same objects as last time, and whose proxies would share
it alike, keeps its decisions until time alone would change one. This only saves work and changes no result.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from policies.resilience import ResilienceSpec
from xds_server.decide.admission.ceiling import admission_decision, ceiling_for_role
from xds_server.decide.admission.degradation_level import (
    FallbackView,
    degradation_due_s,
    degradation_state,
    ordered_level,
)
from xds_server.decide.admission.engine_capacity import engine_capacities
from xds_server.decide.admission.pool_breaker import PoolAnswers, breaker_due_s, pool_breaker, serves_percent
from xds_server.decide.admission.pool_strain import pool_strain
from xds_server.decide.admission.requests_in_prefill import PrefillLoad, traffic_in_decode
from xds_server.decide.admission.retry_budget import retry_budget
from xds_server.decide.admission.tenant_shares import fair_shares
from xds_server.decide.decision_memory import (
    AdmissionMemory,
    CapacityMemory,
    DeadlineMemory,
    DegradationMemory,
    EndpointWeight,
    FairShareMemory,
    HedgeMemory,
    PoolBreakerMemory,
    PoolMemory,
    RegionMemory,
    RetryMemory,
    TimeLimitMemory,
    ZoneMemory,
)
from xds_server.decide.decisions import AdmissionDecision, EngineDecision, Health, PoolDecisions
from xds_server.decide.ejection.engine_decisions import engine_decisions
from xds_server.decide.pool_inputs import Callers, ConnectedProxies, PoolEngines, PoolPolicy
from xds_server.decide.routing.deadline_refusals import deadline_refusals
from xds_server.decide.routing.endpoint_weights import (
    endpoint_weights,
    endpoint_weights_due_s,
    weight_factors,
    weights_moved_at_s,
)
from xds_server.decide.routing.hedge_decision import hedge_decision, hedge_due_s
from xds_server.decide.routing.key_hold import key_hold
from xds_server.decide.routing.large_retries import large_retries
from xds_server.decide.routing.prefill_choice import prefill_choice
from xds_server.decide.routing.region_shares import region_routing, regions_due_s
from xds_server.decide.routing.retry_statuses import retries_due_s, retry_statuses
from xds_server.decide.routing.session_drain import kept_sessions, session_drain_due_s
from xds_server.decide.routing.slow_start import share_ramps, slow_start, slow_start_due_s
from xds_server.decide.routing.time_limits import limits_due_s, time_limits
from xds_server.decide.routing.zone_relief import zone_relief
from xds_server.decide.routing.zone_shares import MIN_INTERVAL_S, zone_shares
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.order import Order
from xds_server.model.pool_traffic import STALE_S, PoolTraffic, Proxy
from xds_server.model.view import GATEWAY, SIDECAR

REEVALUATE_S: Final = 0.5
"""A pool with traffic is evaluated this often: its rates, tails and timers move by themselves."""

TRAFFIC_MEMORY_S: Final = 120.0
"""Older traffic changes nothing."""

_ROLES: Final = frozenset({GATEWAY, SIDECAR})


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolInputs:
    """One pool and its own inputs. ``prefill``: its requests at prefill engines."""

    policy: PoolPolicy
    engines: tuple[Engine, ...]
    traffic: PoolTraffic | None
    orders: Mapping[EngineId, Order]
    fallback: FallbackView | None
    prefill: PrefillLoad | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _AdmissionStep:
    """How much of a pool's traffic is admitted."""

    capacity: CapacityMemory
    breaker: PoolBreakerMemory
    serves_percent: float
    degradation: DegradationMemory
    admission: AdmissionMemory
    fair_shares: FairShareMemory | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _RoutingStep:
    """Where a pool's traffic goes."""

    hedge: HedgeMemory
    retries: RetryMemory
    limits: TimeLimitMemory
    deadline: DeadlineMemory | None
    endpoint_weights: Mapping[EngineId, EndpointWeight]
    zones: ZoneMemory
    regions: RegionMemory


def pool_decisions(pool: PoolInputs, proxies: ConnectedProxies, before: PoolMemory, now_s: float) -> PoolMemory:
    """The decisions for one pool, and its memory; ``before`` itself if no input changed."""
    if now_s < before.valid_until_s and _same_inputs(before, pool.engines, _inputs(pool, proxies, before, now_s)):
        return before
    resilience = pool.policy.resilience
    outcome = engine_decisions(
        pool.policy.spec,
        resilience,
        pool.engines,
        pool.traffic,
        orders=pool.orders,
        before=before,
        now_s=now_s,
        relief=lambda: zone_relief(resilience, pool.engines, pool.policy.residency, before, now_s),
    )
    let_in = _admission_step(pool, proxies, outcome.engines, before, now_s)
    engines = PoolEngines(
        engines=pool.engines,
        decisions=outcome.engines,
        capacities=let_in.capacity.capacities,
        in_flight=_in_flight(pool.traffic, now_s),
    )
    ramps = slow_start(
        resilience,
        outcome.engines,
        pool.traffic,
        known=before.decided.engines,
        before=before.slow_start,
        now_s=now_s,
        hold=key_hold(
            pool.policy.return_after_s, engines, before.slow_start, crowded=let_in.admission.decided.crowded
        ),
    )
    engines = replace(engines, ramps=share_ramps(ramps, resilience.slow_start))
    routed = _routing_step(pool, proxies, engines, let_in, before=before, now_s=now_s)
    decided = PoolDecisions(
        engines=outcome.engines,
        zones=routed.zones.shares,
        ceilings={
            role: ceiling_for_role(let_in.admission, resilience, role, proxies.by_role)
            for role in sorted(_ROLES.union(proxies.by_role))
        },
        declared=pool.engines,
        breakers=outcome.breakers,
        slow=outcome.slow,
        admission=let_in.admission.decided,
        hedge=routed.hedge.decided,
        retries=routed.retries.decided,
        large_retries=large_retries(
            resilience.retries.large,
            before.decided.large_retries,
            utilization=let_in.admission.decided.utilization,
            shadow=resilience.shadowed(None),
        ),
        prefill=prefill_choice(
            pool.policy.spec,
            None if pool.traffic is None else pool.traffic.prefill,
            before.decided.prefill,
            now_s,
        )
        if pool.policy.compares_prefill
        else None,
        limits=routed.limits.decided,
        deadline=None if routed.deadline is None else routed.deadline.decided,
        degradation=let_in.degradation.decided,
        serves_percent=let_in.serves_percent,
        weight_factors=weight_factors(
            routed.endpoint_weights,
            engines,
            wait_s=let_in.admission.decided.wait_s,
            proxies=sum(proxies.by_role.values()),
        ),
        ramps=engines.ramps,
        sessions=kept_sessions(pool.policy.move_within_s, pool.engines, outcome.engines, now_s),
        regions=routed.regions.shares,
        region_zones={region: zones.shares for region, zones in routed.regions.zones.items()},
        fair_shares=None if let_in.fair_shares is None else let_in.fair_shares.decided,
    )
    memory = PoolMemory(
        decided=decided,
        ejection=outcome.memory,
        breaker=let_in.breaker,
        capacity=let_in.capacity,
        admission=let_in.admission,
        fair_shares=let_in.fair_shares,
        degradation=let_in.degradation,
        hedge=routed.hedge,
        retries=routed.retries,
        limits=routed.limits,
        deadline=routed.deadline,
        slow_start=ramps,
        endpoint_weights=routed.endpoint_weights,
        zones=routed.zones,
        regions=routed.regions,
    )
    due_s = (
        outcome.until_s,
        breaker_due_s(let_in.breaker, now_s),
        degradation_due_s(resilience.degradation, let_in.degradation, now_s),
        slow_start_due_s(ramps, resilience.slow_start, now_s),
        session_drain_due_s(pool.policy.move_within_s, pool.engines, outcome.engines, now_s),
        *_routing_due_s(routed, resilience, now_s),
    )
    return replace(
        memory,
        inputs=_inputs(pool, proxies, memory, now_s),
        valid_until_s=_valid_until_s(due_s, pool.traffic, now_s),
    )


def _admission_step(
    pool: PoolInputs,
    proxies: ConnectedProxies,
    decisions: Mapping[EngineId, EngineDecision],
    before: PoolMemory,
    now_s: float,
) -> _AdmissionStep:
    """How much is admitted, given the decision on each engine."""
    policy, last = pool.policy, before.decided.admission
    resilience, degradation = policy.resilience, policy.resilience.degradation
    able = engine_capacities(
        policy.spec,
        resilience,
        pool.engines,
        traffic_in_decode(pool.traffic, pool.prefill),
        decisions=decisions,
        before=before.capacity,
        past=before.ejection.past_speeds,
        now_s=now_s,
    )
    breaker = pool_breaker(
        resilience.breaker,
        PoolAnswers(engines=pool.engines, decisions=decisions, traffic=pool.traffic, capacities=able.capacities),
        before.breaker,
        now_s,
    )
    shadowed = resilience.shadowed(resilience.breaker.mode)
    percent = 100.0 if shadowed else serves_percent(resilience.breaker, breaker)
    level = degradation_state(
        degradation,
        before.degradation,
        strain=pool_strain(
            policy.spec.probe,
            pool.engines,
            decisions,
            pool.traffic,
            pressure=None if last is None else last.pressure,
            now_s=now_s,
        ),
        lost=_lost(decisions, "" if percent else breaker.why, pool.fallback),
        fallback=pool.fallback,
        ordered=ordered_level(pool.orders.values()),
        shadow=resilience.shadowed(degradation.mode),
        now_s=now_s,
    )
    engines = PoolEngines(engines=pool.engines, decisions=decisions, capacities=able.capacities)
    admitted = admission_decision(
        policy,
        engines,
        traffic=pool.traffic,
        proxies=proxies,
        degradation=level.decided,
        before=before.admission,
        now_s=now_s,
        prefill=pool.prefill,
    )
    return _AdmissionStep(
        capacity=able,
        breaker=breaker,
        serves_percent=percent,
        degradation=level,
        admission=admitted,
        fair_shares=fair_shares(
            policy.shares,
            pool.traffic,
            per_s=_answers_per_s(engines, admitted.decided),
            before=before.fair_shares,
            now_s=now_s,
        ),
    )


def _answers_per_s(engines: PoolEngines, admission: AdmissionDecision) -> float:
    """Answers per second of the engines in rotation; fewer if the admission limit leaves slots unused."""
    used = min(1.0, admission.total / admission.slots) if admission.slots and admission.in_force else 1.0
    return used * math.fsum(engines.able_per_s(one.id) for one in engines.engines)


def _in_flight(traffic: PoolTraffic | None, now_s: float) -> Mapping[str, int]:
    """Requests in flight by engine name, as proxies report them now."""
    if traffic is None or now_s - traffic.heard_at_s >= STALE_S:
        return {}
    return {name: one.in_flight for name, one in traffic.engines.items() if one.in_flight is not None}


def _lost(decisions: Mapping[EngineId, EngineDecision], failing: str, fallback: FallbackView | None) -> str:
    """Why the pool should get no requests; empty if it serves. A failing pool serves while nothing else does."""
    if not any_admitted(decisions):
        return "no engine in rotation"
    return failing if fallback is not None and fallback.ready else ""


def _routing_step(
    pool: PoolInputs,
    proxies: ConnectedProxies,
    engines: PoolEngines,
    let_in: _AdmissionStep,
    *,
    before: PoolMemory,
    now_s: float,
) -> _RoutingStep:
    """Where admitted requests go."""
    spec, resilience, admission = pool.policy.spec, pool.policy.resilience, let_in.admission.decided
    hedging = hedge_decision(
        resilience.hedging,
        before.hedge,
        traffic=pool.traffic,
        utilization=admission.utilization,
        degradation=let_in.degradation.decided,
        gated=spec.first_token_gate,
        shadow=resilience.shadowed(resilience.hedging.mode),
        now_s=now_s,
    )
    retries = retry_statuses(
        resilience, before.retries, traffic=pool.traffic, engines=engines.decisions, now_s=now_s
    )
    limits = time_limits(
        spec,
        resilience,
        before.limits,
        traffic=pool.traffic,
        engines=pool.engines,
        admission=admission,
        hedge=hedging.decided,
        now_s=now_s,
    )
    deadline = deadline_refusals(
        before.deadline,
        stated=pool.policy.deadlines,
        traffic=pool.traffic,
        engines=engines,
        now_s=now_s,
    )
    weights = endpoint_weights(
        engines,
        let_in.capacity.estimates,
        learn=resilience.limits.learn and admission.in_force,
        wait_s=admission.wait_s,
        proxies=sum(proxies.by_role.values()),
        zones_moved_s=max((shares.since_s for shares in before.zones.shares.values()), default=-math.inf),
        before=before.endpoint_weights,
        now_s=now_s,
    )
    callers = Callers(zones=proxies.calling_zones, proxies=proxies.by_node, demand=let_in.admission.demand)
    zones = zone_shares(
        engines,
        resilience.zones,
        callers,
        shadow=resilience.shadowed(resilience.zones.mode),
        before=before.zones,
        weighed_at_s=weights_moved_at_s(weights),
        now_s=now_s,
    )
    regions = region_routing(
        engines,
        resilience,
        callers,
        before=before.regions,
        weighed_at_s=weights_moved_at_s(weights),
        now_s=now_s,
    )
    return _RoutingStep(
        hedge=hedging,
        retries=retries,
        limits=limits,
        deadline=deadline,
        endpoint_weights=weights,
        zones=zones,
        regions=regions,
    )


def _routing_due_s(routed: _RoutingStep, resilience: ResilienceSpec, now_s: float) -> tuple[float, ...]:
    """When time alone may change the routing."""
    zones = (routed.zones, *routed.regions.zones.values())
    return (
        *regions_due_s(routed.regions.timers, resilience.regions),
        hedge_due_s(routed.hedge, now_s),
        retries_due_s(routed.retries.decided, now_s),
        limits_due_s(routed.limits, now_s),
        endpoint_weights_due_s(routed.endpoint_weights),
        weights_moved_at_s(routed.endpoint_weights) + MIN_INTERVAL_S,
        *(shares.since_s + MIN_INTERVAL_S for memory in zones for shares in memory.shares.values()),
    )


def _inputs(pool: PoolInputs, proxies: ConnectedProxies, memory: PoolMemory, now_s: float) -> tuple[object, ...]:
    """Inputs of a pool's decisions besides its engines and time, where ``memory`` is the result.

    The large parts come first.
    """
    return (
        pool.policy.spec,
        pool.policy.resilience,
        pool.traffic,
        *_inputs_of_proxies(pool, proxies, memory, now_s),
        proxies.calling_zones,
        pool.policy.classes,
        pool.policy.residency,
        pool.policy.deadlines,
        pool.policy.return_after_s,
        pool.policy.move_within_s,
        pool.policy.shares,
        pool.orders,
        pool.fallback,
        pool.prefill,
    )


def _inputs_of_proxies(
    pool: PoolInputs, proxies: ConnectedProxies, memory: PoolMemory, now_s: float
) -> tuple[Mapping[str, Proxy], tuple[object, ...]]:
    """What of the proxies the decisions depend on: a thousand silent sidecars that come one by one change nothing.

    Each proxy counts once any has traffic to the pool, or the weights of engines follow the number of proxies.
    """
    admission, traffic = memory.admission, pool.traffic
    heard = traffic is not None and now_s - traffic.heard_at_s < TRAFFIC_MEMORY_S
    if admission is None or heard or admission.demand or memory.endpoint_weights or memory.decided.weight_factors:
        return proxies.by_node, tuple(sorted(proxies.by_role.items()))
    retries = retry_budget(
        pool.policy.resilience,
        admission.decided.total,
        proxies.by_role,
        memory.decided.degradation,
        in_force=admission.decided.in_force,
    )
    count = proxies.by_role.get(GATEWAY, 0)
    return proxies.kinds.gateways, (count, frozenset(proxies.by_role), retries, proxies.kinds.places)


def _same_inputs(before: PoolMemory, engines: tuple[Engine, ...], inputs: tuple[object, ...]) -> bool:
    """Whether the last decisions follow from these inputs: large parts by identity, others by value."""
    return (
        before.decided.declared is engines
        and all(was is now for was, now in zip(before.inputs[:3], inputs[:3], strict=True))
        and before.inputs[3:] == inputs[3:]
    )


def _valid_until_s(parts_s: Iterable[float], traffic: PoolTraffic | None, now_s: float) -> float:
    """When time alone may change a decision: a report expires, a cooldown ends, held-back weights are due."""
    due_s = [moment for moment in parts_s if moment > now_s]
    if traffic is not None and now_s - traffic.heard_at_s < TRAFFIC_MEMORY_S:
        due_s.append(now_s + REEVALUATE_S)
    return min(due_s, default=math.inf)


def any_admitted(engines: Mapping[EngineId, EngineDecision]) -> bool:
    """Whether any engine is in rotation."""
    return any(one.health is Health.HEALTHY for one in engines.values())
