"""Live weights of each route: declared weights, moved off pools that are gone, failing or full.

Envoy has no failover for full or missing pools that also keeps requests in flight, so the control plane moves
weights by RTDS, in milliseconds.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeAlias

from policies.model import PolicySet
from policies.resilience import AcrossRevisions
from policies.route import ModelRoute
from xds_server.decide.decisions import Decisions, DegradationState, Ejector, EngineDecision, Health
from xds_server.decide.routing.region_shares import revision_key
from xds_server.model.fleet import Fleet
from xds_server.translate.route_configuration import (
    declared_weights,
    fallback_variants,
    reachable_pools,
    weights_name,
)

WEIGHT_RESOLUTION: Final = 10_000
"""Sum of a route's weights while a share is moved: resolution 0.01 %."""


UsableShares: TypeAlias = Mapping[str, float]
"""Pool -> percent of its traffic that it can take, above 0; pools that can take none are absent."""


def ready_pools(
    fleet: Fleet, decisions: Decisions, inside: Collection[str] | None = None
) -> tuple[UsableShares, UsableShares]:
    """Pools that serve; and, as a last resort, pools with any engine in rotation.

    A pool serves while one engine is in rotation on its own merits, as far as the pool as a whole answers. Engines
    that fail but are kept in rotation by the capacity floor are better than none; a fallback is better than they.
    If the only others are on trial, the pool is on trial. An engine without decision counts as well. With
    ``inside`` only engines of these regions count.
    """
    taking = {
        pool: [
            decision
            for engine in engines
            if (inside is None or engine.region in inside)
            and ((decision := decisions.engines.get(engine.id)) is None or decision.health is Health.HEALTHY)
        ]
        for pool, engines in fleet.pools.items()
    }
    serving = {
        pool: min(
            _serves_percent(decisions, pool),
            max(
                (100.0 if one is None else one.traffic_percent for one in engines if not _failing(one)),
                default=0.0,
            ),
        )
        for pool, engines in taking.items()
    }
    return (
        {pool: percent for pool, percent in serving.items() if percent},
        {pool: 100.0 for pool, engines in taking.items() if engines},
    )


def _serves_percent(decisions: Decisions, pool: str) -> float:
    decided = decisions.pools.get(pool)
    return 100.0 if decided is None else decided.serves_percent


def incompatible_fallback(route: ModelRoute, policies: PolicySet, fleet: Fleet) -> str:
    """The fallback if it serves another revision of the same model and must not; else empty.

    Revisions of different models are not comparable; ``modelChange`` governs those.
    """
    first, fallback = route.spec.pools[0].pool, route.spec.fallback
    if fallback is None or policies.pools[first].spec.model != policies.pools[fallback].spec.model:
        return ""
    across = policies.effective[first].regions.across_revisions
    own, other = (
        {revision_key(engine.revision, across) for engine in fleet.pools.get(pool, ())}
        for pool in (first, fallback)
    )
    return fallback if own and other and own.isdisjoint(other) and across is not AcrossRevisions.ANY else ""


def without_pool(ready: Sequence[UsableShares], pool: str) -> Sequence[UsableShares]:
    """The usable pools without this one."""
    return tuple([{name: percent for name, percent in usable.items() if name != pool} for usable in ready])


def _failing(decision: EngineDecision | None) -> bool:
    return decision is not None and decision.floor and decision.ejector is Ejector.ERRORS


def route_weights(
    route: ModelRoute,
    ready: Sequence[UsableShares],
    ladders: Mapping[str, DegradationState],
    models: Mapping[str, str],
) -> Mapping[str, Mapping[str, int]]:
    """Live weights of a route by name in the runtime layer; empty without a choice."""
    sets = (reachable_pools(route, who) for who in fallback_variants(route, models))
    return {
        weights_name(route, pools): live_weights(route, pools, ready, ladders) for pools in sets if len(pools) > 1
    }


def live_weights(
    route: ModelRoute, pools: Sequence[str], ready: Sequence[UsableShares], ladders: Mapping[str, DegradationState]
) -> Mapping[str, int]:
    """Live weight of each of these pools of a route; ``ready``: usable pools, best first.

    The weight of an unusable pool moves to the fallback; without a usable fallback the route's other pools share
    it by their own weights. A full pool gives up the share set by its degradation level. If no pool is usable,
    the declared weights stay.
    """
    declared = declared_weights(route, pools)
    for usable in ready:
        live = _moved(route, declared, usable, ladders)
        if any(live.values()):
            return live
    return declared


def _moved(
    route: ModelRoute, declared: Mapping[str, int], usable: UsableShares, ladders: Mapping[str, DegradationState]
) -> Mapping[str, int]:
    fallback = route.spec.fallback
    if fallback is None or fallback not in declared or fallback not in usable or _closed(ladders.get(fallback)):
        return {pool: weight if pool in usable else 0 for pool, weight in declared.items()}
    total = sum(declared.values())
    kept = {
        pool: weight * usable.get(pool, 0.0) / 100 * (1 - _share(ladders.get(pool)))
        for pool, weight in declared.items()
        if pool != fallback
    }
    if all(share in {0, declared[pool]} for pool, share in kept.items()):
        whole = {pool: declared[pool] if share else 0 for pool, share in kept.items()}
        return {**whole, fallback: total - sum(whole.values())}
    parts = {pool: round(share * WEIGHT_RESOLUTION / total) for pool, share in kept.items()}
    # Shares that are rounded up individually may exceed the total.
    return {**parts, fallback: max(0, WEIGHT_RESOLUTION - sum(parts.values()))}


def _share(ladder: DegradationState | None) -> float:
    return 0.0 if ladder is None else ladder.fallback_percent / 100


def _closed(ladder: DegradationState | None) -> bool:
    return ladder is not None and bool(ladder.maintenance)
