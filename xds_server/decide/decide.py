"""From policies, fleet and time to decisions: the one function the rest of the control plane calls.

Per pool, in this order: who is in (``engines``), what they can do (``capacity``), how far service is degraded
(``ladder``), how much is let in (``ceiling``), whether to hedge, what to try again and how long to wait
(``hedging``, ``retry_statuses``, ``time_limits``), how unequal engines are filled (``picking``), and who serves
whom (``zones``). Each step sees the steps
before it and what was decided in the last round.

Pools depend on each other only through fallbacks, and there only on the last round. So a pool whose engines,
traffic, policies, proxies and orders are the same objects as last time keeps its decisions until time alone would
change one. That is memory of work done, and changes no answer.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from policies.model import PolicySet
from policies.pool import EnginePoolSpec
from policies.resilience import ResilienceSpec
from policies.route import ModelChange, PriorityClass
from xds_server.decide.admission.capacity import capacities
from xds_server.decide.admission.ceiling import GATEWAY, SIDECAR, admission, ceiling_for_role, classes_by_pool
from xds_server.decide.admission.ladder import FallbackView, ladder, ladder_due_s
from xds_server.decide.decisions import Capacity, Decisions, EngineDecision, Health, PoolDecisions, ZoneShares
from xds_server.decide.engines.engines import engine_decisions
from xds_server.decide.engines.leaving import leaving
from xds_server.decide.routing.hedging import hedge, hedge_due_s
from xds_server.decide.routing.picking import NONE, picked_at_s, picking, picking_due_s
from xds_server.decide.routing.retry_statuses import retries_due_s, retry_statuses
from xds_server.decide.routing.time_limits import limits_due_s, time_limits
from xds_server.decide.routing.zones import MIN_INTERVAL_S, zone_shares
from xds_server.fleet import Engine, EngineId, Fleet
from xds_server.overrides import Override
from xds_server.traffic import PoolTraffic, Proxy

SETTLE_S: Final = 0.5
"""While a pool has traffic its rates, tails and timers move by themselves, and are looked at again so soon."""

REMEMBERED_S: Final = 120.0
"""Traffic older than this moves nothing any more."""

_ROLES: Final = frozenset({GATEWAY, SIDECAR})
_NO_ZONES: Final[Mapping[str, ZoneShares]] = MappingProxyType({})
_NOBODY: Final[Mapping[EngineId, float]] = MappingProxyType({})
_NO_CAPACITIES: Final[Mapping[EngineId, Capacity]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Around:
    """What all pools share: who asks, from where, what was ordered, and when."""

    proxies: Mapping[str, Proxy]
    proxies_by_role: Mapping[str, int]
    calling_zones: frozenset[str]
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """One pool and what concerns only it."""

    spec: EnginePoolSpec
    resilience: ResilienceSpec
    engines: tuple[Engine, ...]
    classes: frozenset[PriorityClass]
    traffic: PoolTraffic | None
    overrides: Mapping[EngineId, Override]
    fallback: FallbackView | None
    before: PoolDecisions | None


def decide(
    policies: PolicySet,
    fleet: Fleet,
    previous: Decisions | None,
    *,
    proxies_by_role: Mapping[str, int],
    calling_zones: frozenset[str],
    now_s: float,
    proxies: Mapping[str, Proxy] = MappingProxyType({}),
    overrides: Mapping[EngineId, Override] = MappingProxyType({}),
) -> Decisions:
    """Everything that is decided at ``now_s``, which is on the monotonic clock of the fleet's reports.

    ``previous`` is what was decided last, None at start. ``proxies`` are connected now, by node id;
    ``proxies_by_role`` and ``calling_zones`` also count those that left a moment ago and may be on their way back.
    """
    around = _Around(proxies=proxies, proxies_by_role=proxies_by_role, calling_zones=calling_zones, now_s=now_s)
    classes = classes_by_pool(policies)
    fallbacks = _fallbacks(policies)
    known: Mapping[str, PoolDecisions] = previous.pools if previous is not None else {}
    ordered: dict[str, dict[EngineId, Override]] = {}
    for key, override in overrides.items():
        ordered.setdefault(key.pool, {})[key] = override
    pools = {
        name: _decided(
            _Pool(
                spec=policies.pools[name].spec,
                resilience=policies.effective[name],
                engines=engines,
                classes=classes.get(name, frozenset()),
                traffic=fleet.traffic.get(name),
                overrides=ordered.get(name, {}),
                fallback=_seen(known, known.get(name), fallbacks.get(name)),
                before=known.get(name),
            ),
            around,
        )
        for name, engines in fleet.pools.items()
        if name in policies.pools
    }
    decided: dict[EngineId, EngineDecision] = {}
    for pool in pools.values():
        decided.update(pool.engines)
    return Decisions(
        engines=MappingProxyType(decided),
        zone_weights=MappingProxyType(
            {(name, zone): shares.weights for name, pool in pools.items() for zone, shares in pool.zones.items()}
        ),
        ceilings=MappingProxyType(
            {(name, role): limit for name, pool in pools.items() for role, limit in pool.ceilings.items()}
        ),
        pools=MappingProxyType(pools),
        leaving=MappingProxyType(leaving(policies, fleet, previous.leaving, previous.engines, now_s))
        if previous is not None
        else _NOBODY,
    )


def _decided(pool: _Pool, around: _Around) -> PoolDecisions:
    """The decisions for one pool; those of the last round where nothing they were made of has changed."""
    before, now_s = pool.before, around.now_s
    made_of = (
        pool.spec,
        pool.resilience,
        pool.traffic,
        around.proxies,
        tuple(sorted(around.proxies_by_role.items())),
        around.calling_zones,
        pool.classes,
        pool.overrides,
        pool.fallback,
    )
    if before is not None and now_s < before.valid_until_s and _same(before, pool.engines, made_of):
        return before
    last = None if before is None else before.admission
    outcome = engine_decisions(
        pool.spec,
        pool.resilience,
        pool.engines,
        pool.traffic,
        overrides=pool.overrides,
        before=before,
        now_s=now_s,
    )
    able = capacities(
        pool.spec,
        pool.resilience,
        pool.engines,
        pool.traffic,
        decisions=outcome.engines,
        before=_NO_CAPACITIES if last is None else last.capacities,
        now_s=now_s,
    )
    level = ladder(
        pool.resilience.degradation,
        None if before is None else before.ladder,
        pressure=None if last is None else last.pressure,
        capacity=any(one.health is Health.HEALTHY for one in outcome.engines.values()),
        fallback=pool.fallback,
        shadow=pool.resilience.shadowed(pool.resilience.degradation.mode),
        now_s=now_s,
    )
    admitted = admission(
        pool.spec,
        pool.resilience,
        pool.engines,
        outcome.engines,
        able,
        traffic=pool.traffic,
        classes=pool.classes,
        proxies=around.proxies,
        proxies_by_role=around.proxies_by_role,
        ladder=level,
        before=last,
        now_s=now_s,
    )
    hedging = hedge(
        pool.resilience.hedging,
        None if before is None else before.hedge,
        traffic=pool.traffic,
        utilization=admitted.utilization,
        ladder=level,
        gated=pool.spec.first_token_gate,
        shadow=pool.resilience.shadowed(pool.resilience.hedging.mode),
        now_s=now_s,
    )
    retries = retry_statuses(
        pool.resilience,
        None if before is None else before.retries,
        traffic=pool.traffic,
        engines=outcome.engines,
        now_s=now_s,
    )
    limits = time_limits(
        pool.spec,
        pool.resilience,
        None if before is None else before.limits,
        traffic=pool.traffic,
        engines=pool.engines,
        admission=admitted,
        hedge=hedging,
        now_s=now_s,
    )
    picked = picking(
        pool.engines,
        outcome.engines,
        able,
        learn=pool.resilience.limits.learn and admitted.in_force,
        wait_s=admitted.wait_s,
        proxies=sum(around.proxies_by_role.values()),
        zones_moved_s=max((one.since_s for one in before.zones.values()), default=-math.inf)
        if before
        else -math.inf,
        before=NONE if before is None else before.picking,
        now_s=now_s,
    )
    zones = zone_shares(
        pool.engines,
        outcome.engines,
        pool.resilience.zones,
        callers=around.calling_zones,
        capacities=able,
        demand=admitted.demand,
        proxies=around.proxies,
        shadow=pool.resilience.shadowed(pool.resilience.zones.mode),
        previous=_NO_ZONES if before is None else before.zones,
        picked_at_s=picked_at_s(picked),
        now_s=now_s,
    )
    return PoolDecisions(
        engines=outcome.engines,
        zones=zones,
        ceilings={
            role: ceiling_for_role(admitted, pool.resilience, role, around.proxies_by_role)
            for role in sorted(_ROLES.union(around.proxies_by_role))
        },
        declared=pool.engines,
        made_of=made_of,
        valid_until_s=_valid_until_s(
            (
                outcome.until_s,
                ladder_due_s(pool.resilience.degradation, level, now_s),
                hedge_due_s(hedging, now_s),
                retries_due_s(retries, now_s),
                limits_due_s(limits, now_s),
                picking_due_s(picked),
                picked_at_s(picked) + MIN_INTERVAL_S,
            ),
            zones,
            pool.traffic,
            now_s,
        ),
        breakers=outcome.breakers,
        stragglers=outcome.stragglers,
        comebacks=outcome.comebacks,
        admission=admitted,
        hedge=hedging,
        retries=retries,
        limits=limits,
        ladder=level,
        picking=picked,
    )


def _same(before: PoolDecisions, engines: tuple[Engine, ...], made_of: tuple[object, ...]) -> bool:
    """Whether decisions were made of this: the large parts by identity, the small ones by value."""
    return (
        before.declared is engines
        and all(was is now for was, now in zip(before.made_of[:4], made_of[:4], strict=True))
        and before.made_of[4:] == made_of[4:]
    )


def _valid_until_s(
    parts_s: Iterable[float], zones: Mapping[str, ZoneShares], traffic: PoolTraffic | None, now_s: float
) -> float:
    """When time alone may change a decision: a report grows old, a cooldown ends, held-back weights are due."""
    due_s = [*parts_s, *(shares.since_s + MIN_INTERVAL_S for shares in zones.values())]
    if traffic is not None and now_s - traffic.heard_at_s < REMEMBERED_S:
        due_s.append(now_s + SETTLE_S)
    return min((moment for moment in due_s if moment > now_s), default=float("inf"))


def _fallbacks(policies: PolicySet) -> Mapping[str, str]:
    """The pool that takes over from each pool: that of its first route, by name, that has one it may use."""
    found: dict[str, str] = {}
    for name in sorted(policies.routes):
        spec = policies.routes[name].spec
        if spec.fallback is None:
            continue
        model = policies.pools[spec.fallback].spec.model
        for share in spec.pools:
            if spec.model_change is not ModelChange.NEVER or policies.pools[share.pool].spec.model == model:
                found.setdefault(share.pool, spec.fallback)
    return found


def _seen(
    known: Mapping[str, PoolDecisions], own: PoolDecisions | None, fallback: str | None
) -> FallbackView | None:
    """A fallback pool as the last round left it; None where there is none, or nothing was decided of it yet."""
    pool = known.get(fallback) if fallback is not None else None
    if pool is None or pool.admission is None:
        return None
    serves = _served_per_s(pool)
    asks = _served_per_s(own) if own is not None else 0.0
    return FallbackView(
        pressure=pool.admission.pressure,
        ready=any(one.health is Health.HEALTHY for one in pool.engines.values()),
        relative_capacity=serves / asks if asks else 1.0,
    )


def _served_per_s(pool: PoolDecisions) -> float:
    """Calls per second that the engines which are in can serve."""
    if pool.admission is None:
        return 0.0
    return sum(
        able.slots / able.service_s
        for key, able in pool.admission.capacities.items()
        if (decision := pool.engines.get(key)) is not None and decision.health is Health.HEALTHY
    )
