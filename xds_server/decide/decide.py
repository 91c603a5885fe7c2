"""Decisions from policies, fleet, time and the last round's memory: the one entry point.

Each pool has its own decisions (``pool_decisions``). Pools depend on each other only through fallbacks, and there
only on the last round, and decode pools on their prefill pool. So a pool without new inputs keeps its decisions.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from policies.model import PolicySet
from policies.route import ModelChange, ModelRoute
from xds_server.decide.admission.ceiling import classes_by_pool
from xds_server.decide.admission.degradation_level import FallbackView
from xds_server.decide.admission.quota_parts import quota_parts
from xds_server.decide.admission.quota_periods import used_up_quotas
from xds_server.decide.admission.quota_proxies import quota_proxies
from xds_server.decide.admission.requests_in_prefill import PrefillLoad, in_flight, prefill_load
from xds_server.decide.admission.tenant_shares import share_rules
from xds_server.decide.decision_memory import NO_POOL_MEMORY, DecisionMemory
from xds_server.decide.decisions import Decisions, EnginesOfPools, PoolDecisions
from xds_server.decide.ejection.removed_engines import removed_engines
from xds_server.decide.pool_decisions import PoolInputs, any_admitted, pool_decisions
from xds_server.decide.pool_inputs import ConnectedProxies, PoolPolicy, ShareRule, able_per_s
from xds_server.model.fleet import EngineId, Fleet
from xds_server.model.order import Order
from xds_server.model.pool_traffic import TenantId
from xds_server.model.tenant_usage import NO_USAGE, TenantUsage

_NO_SHARES: Final[Mapping[TenantId, ShareRule]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPolicies:
    """Policies and fallbacks by pool. ``prefilled_by``: the pool that prefills for each decode pool with one."""

    pools: Mapping[str, PoolPolicy]
    fallbacks: Mapping[str, tuple[str, ...]]
    prefilled_by: Mapping[str, str]


def prepared_policies(policies: PolicySet) -> PreparedPolicies:
    """What decisions ask of these policies."""
    classes, residency = classes_by_pool(policies), _residency_by_pool(policies)
    moves, returns, shares = _moves_by_pool(policies), return_after_by_pool(policies.routes), share_rules(policies)
    # Envoy has one set of limits per route: those of the first pool.
    hurried = {
        route.spec.pools[0].pool for route in policies.routes.values() if route.spec.listener.deadline is not None
    }
    compared = {
        share.pool
        for route in policies.routes.values()
        if route.spec.prefill is not None and route.spec.prefill.while_faster
        for share in route.spec.pools
    }
    return PreparedPolicies(
        pools={
            name: PoolPolicy(
                spec=pool.spec,
                resilience=policies.effective[name],
                classes=classes.get(name, frozenset()),
                residency=residency.get(name, frozenset()),
                move_within_s=moves.get(name, 0.0),
                return_after_s=returns.get(name, 0.0),
                deadlines=name in hurried,
                compares_prefill=name in compared,
                shares=shares.get(name, _NO_SHARES),
            )
            for name, pool in policies.pools.items()
        },
        fallbacks=_fallbacks(policies),
        prefilled_by={
            share.pool: route.spec.prefill.pool
            for route in policies.routes.values()
            if route.spec.prefill is not None
            for share in route.spec.pools
        },
    )


def decide(
    policies: PolicySet,
    fleet: Fleet,
    memory: DecisionMemory,
    *,
    proxies: ConnectedProxies,
    now_s: float,
    orders: Mapping[EngineId, Order] = MappingProxyType({}),
    prepared: PreparedPolicies | None = None,
    usage: TenantUsage = NO_USAGE,
) -> tuple[Decisions, DecisionMemory]:
    """The decisions at ``now_s`` (monotonic, as in reports), and the memory for the next round.

    ``memory`` is that of the last round, ``NO_MEMORY`` at the start; ``orders`` are the operator orders in force.
    ``prepared``: these policies, where the caller keeps them from round to round. ``usage`` of tenants decides
    about nothing but quotas of calendar periods; recordings do not have it.
    """
    of_pools = prepared or prepared_policies(policies)
    ordered: dict[str, dict[EngineId, Order]] = {}
    for key, order in orders.items():
        ordered.setdefault(key.pool, {})[key] = order
    pools = {
        name: pool_decisions(
            PoolInputs(
                policy=of_pools.pools[name],
                engines=engines,
                traffic=fleet.traffic.get(name),
                orders=ordered.get(name, {}),
                fallback=_fallback_view(memory, name, of_pools.fallbacks.get(name, ())),
                prefill=_prefill_load(of_pools.prefilled_by, name, fleet, memory, now_s),
            ),
            proxies,
            memory.pools.get(name, NO_POOL_MEMORY),
            now_s,
        )
        for name, engines in fleet.pools.items()
        if name in policies.pools
    }
    decided = MappingProxyType({name: pool.decided for name, pool in pools.items()})
    leaving = MappingProxyType(removed_engines(policies, fleet, memory, now_s))
    counts = quota_proxies(policies, proxies)
    parts = MappingProxyType(quota_parts(policies, counts, proxies, memory.quota_parts, now_s))
    decisions = Decisions(
        engines=EnginesOfPools(decided),
        zone_weights=MappingProxyType(
            {
                (name, zone): shares.weights
                for name, pool in pools.items()
                for zone, shares in pool.decided.zones.items()
            }
        ),
        ceilings=MappingProxyType(
            {(name, role): limit for name, pool in pools.items() for role, limit in pool.decided.ceilings.items()}
        ),
        pools=decided,
        leaving=leaving,
        quota_proxies=MappingProxyType(counts),
        quota_parts=parts,
        used_up=MappingProxyType(used_up_quotas(policies, usage)),
    )
    return decisions, DecisionMemory(
        pools=MappingProxyType(pools), leaving=leaving, places=fleet.places, quota_parts=parts
    )


def _residency_by_pool(policies: PolicySet) -> Mapping[str, frozenset[frozenset[str]]]:
    """The sets of regions that routes to each pool are limited to."""
    found: dict[str, set[frozenset[str]]] = {}
    for route in policies.routes.values():
        if route.spec.allowed_regions:
            for pool in (*(share.pool for share in route.spec.pools), *route.spec.fallbacks):
                found.setdefault(pool, set()).add(frozenset(route.spec.allowed_regions))
    return {pool: frozenset(sets) for pool, sets in found.items()}


def _moves_by_pool(policies: PolicySet) -> Mapping[str, float]:
    """Seconds in which strict sessions leave a draining engine of each pool: the shortest of its routes."""
    found: dict[str, float] = {}
    for route in policies.routes.values():
        affinity = route.spec.affinity
        if affinity is not None and affinity.is_strict:
            for share in route.spec.pools:
                found[share.pool] = min(found.get(share.pool, math.inf), affinity.move_within)
    return found


def return_after_by_pool(routes: Mapping[str, ModelRoute]) -> Mapping[str, float]:
    """Seconds for which each pool holds back the keys of a returned engine: the shortest of its routes."""
    found: dict[str, float] = {}
    for route in routes.values():
        affinity = route.spec.affinity
        if affinity is not None and not affinity.is_strict:
            for share in route.spec.pools:
                found[share.pool] = min(found.get(share.pool, math.inf), affinity.return_after)
    return found


def _fallbacks(policies: PolicySet) -> Mapping[str, tuple[str, ...]]:
    """The fallbacks of each pool, in order: those of its first route, by name, that has some and may use them.

    A pool that is only a fallback itself has the next ones of its route.
    """
    of_targets: dict[str, tuple[str, ...]] = {}
    of_fallbacks: dict[str, tuple[str, ...]] = {}
    for name in sorted(policies.routes):
        spec = policies.routes[name].spec
        model = policies.pools[spec.pools[0].pool].spec.model
        usable = tuple(
            pool
            for pool in spec.fallbacks
            if spec.model_change is not ModelChange.NEVER or policies.pools[pool].spec.model == model
        )
        if not usable:
            continue
        for share in spec.pools:
            of_targets.setdefault(share.pool, usable)
        for number, pool in enumerate(usable[:-1]):
            of_fallbacks.setdefault(pool, usable[number + 1 :])
    return {**of_fallbacks, **of_targets}


def _fallback_view(memory: DecisionMemory, name: str, fallbacks: Sequence[str]) -> FallbackView | None:
    """A pool's fallbacks together, as of the last round; None without one, or before their first decision."""
    decided = [
        (pool, pool.admission)
        for pool in (_last_decisions(memory, fallback) for fallback in fallbacks)
        if pool.admission is not None
    ]
    if not decided:
        return None
    ready = [one for one in decided if any_admitted(one[0].engines) and one[0].serves_percent > 0]
    able = [(_served_per_s(pool), admission.pressure) for pool, admission in ready or decided]
    served, asks = sum(per_s for per_s, _ in able), _served_per_s(_last_decisions(memory, name))
    known = [(per_s, pressure) for per_s, pressure in able if pressure is not None]
    if len(able) == 1:
        pressure = able[0][1]
    else:
        pressure = sum(per_s * one for per_s, one in known) / served if known and served else None
    return FallbackView(pressure=pressure, ready=bool(ready), relative_capacity=served / asks if asks else 1.0)


def _prefill_load(
    prefilled_by: Mapping[str, str], name: str, fleet: Fleet, memory: DecisionMemory, now_s: float
) -> PrefillLoad | None:
    """The pool's requests at prefill engines, with their capacity as of the last round; None without any."""
    partner = prefilled_by.get(name)
    if partner is None:
        return None
    sharers = (pool for pool, other in prefilled_by.items() if other == partner)
    own, all_of_them = (
        in_flight(fleet.traffic.get(name)),
        sum(in_flight(fleet.traffic.get(one)) for one in sharers),
    )
    decided = _last_decisions(memory, partner)
    return prefill_load(
        fleet.pools.get(partner, ()),
        decided.engines,
        {} if decided.admission is None else decided.admission.capacities,
        part=own / all_of_them if all_of_them else 0.0,
        now_s=now_s,
    )


def _last_decisions(memory: DecisionMemory, name: str) -> PoolDecisions:
    return memory.pools.get(name, NO_POOL_MEMORY).decided


def _served_per_s(pool: PoolDecisions) -> float:
    """Answers per second that the engines yield."""
    if pool.admission is None:
        return 0.0
    return sum(
        able_per_s(decision, capacity)
        for key, capacity in pool.admission.capacities.items()
        if (decision := pool.engines.get(key)) is not None
    )
