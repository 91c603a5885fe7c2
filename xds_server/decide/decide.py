"""From policies, fleet and time to decisions: the one function the rest of the control plane calls.

Each pool is decided by itself (``pool``). Pools depend on each other only through fallbacks, and there only on the
last round. So a pool of which nothing is new keeps its decisions.
"""

from collections.abc import Mapping
from types import MappingProxyType

from policies.model import PolicySet
from policies.route import ModelChange
from xds_server.decide.admission.ceiling import classes_by_pool
from xds_server.decide.admission.degradation_level import FallbackView
from xds_server.decide.decisions import (
    NO_DECISIONS,
    UNDECIDED,
    Decisions,
    EngineDecision,
    Health,
    PoolDecisions,
)
from xds_server.decide.ejection.removed_engines import removed_engines
from xds_server.decide.pool_decisions import PoolInputs, SharedInputs, any_admitted, pool_decisions
from xds_server.model.fleet import EngineId, Fleet
from xds_server.model.order import Order
from xds_server.model.pool_traffic import Proxy


def decide(
    policies: PolicySet,
    fleet: Fleet,
    previous: Decisions | None,
    *,
    proxies_by_role: Mapping[str, int],
    calling_zones: frozenset[str],
    now_s: float,
    proxies: Mapping[str, Proxy] = MappingProxyType({}),
    overrides: Mapping[EngineId, Order] = MappingProxyType({}),
) -> Decisions:
    """Everything that is decided at ``now_s``, which is on the monotonic clock of the fleet's reports.

    ``previous`` is what was decided last, None at start. ``proxies`` are connected now, by node id;
    ``proxies_by_role`` and ``calling_zones`` also count those that left a moment ago and may be on their way back.
    """
    shared = SharedInputs(
        proxies=proxies, proxies_by_role=proxies_by_role, calling_zones=calling_zones, now_s=now_s
    )
    classes = classes_by_pool(policies)
    fallbacks = _fallbacks(policies)
    before = NO_DECISIONS if previous is None else previous
    known = before.pools
    ordered: dict[str, dict[EngineId, Order]] = {}
    for key, override in overrides.items():
        ordered.setdefault(key.pool, {})[key] = override
    pools = {
        name: pool_decisions(
            PoolInputs(
                spec=policies.pools[name].spec,
                resilience=policies.effective[name],
                engines=engines,
                classes=classes.get(name, frozenset()),
                traffic=fleet.traffic.get(name),
                orders=ordered.get(name, {}),
                fallback=_fallback_view(known, name, fallbacks.get(name)),
                before=known.get(name, UNDECIDED),
            ),
            shared,
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
        leaving=MappingProxyType(removed_engines(policies, fleet, before.leaving, before.engines, now_s)),
    )


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


def _fallback_view(known: Mapping[str, PoolDecisions], name: str, fallback: str | None) -> FallbackView | None:
    """A pool's fallback as the last round left it; None where there is none, or nothing was decided of it yet."""
    pool = UNDECIDED if fallback is None else known.get(fallback, UNDECIDED)
    if pool.admission is None:
        return None
    asks = _served_per_s(known.get(name, UNDECIDED))
    return FallbackView(
        pressure=pool.admission.pressure,
        ready=any_admitted(pool.engines),
        relative_capacity=_served_per_s(pool) / asks if asks else 1.0,
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
