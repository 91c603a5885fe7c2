"""Where each route's requests go now: declared weights, moved off pools that are gone, failing or full.

No Envoy mechanism fails over on its own when a pool is full or gone and also keeps what is in flight, so the
control plane moves weights, by RTDS, in milliseconds.
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
"""What all weights of a route come to while a share of them is moved: shares are as fine as 0.01 %."""


UsableShares: TypeAlias = Mapping[str, float]
"""Pool -> how much of its traffic it can take, in percent above 0; a pool that can take none is absent."""


def ready_pools(
    fleet: Fleet, decisions: Decisions, inside: Collection[str] | None = None
) -> tuple[UsableShares, UsableShares]:
    """Pools that serve, and pools with any engine that takes new requests, for where none of the first are left.

    A pool serves while one engine is in on its own merits. Engines that answer errors and are in only because too
    few others are left are better than nobody, but a fallback is better than they. Where the only others are on
    trial, the pool is on trial itself. An engine nothing was decided of counts as well. With ``inside`` only
    engines of these regions count.
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
        pool: max(
            (100.0 if one is None else one.traffic_percent for one in engines if not _failing(one)), default=0.0
        )
        for pool, engines in taking.items()
    }
    return (
        {pool: percent for pool, percent in serving.items() if percent},
        {pool: 100.0 for pool, engines in taking.items() if engines},
    )


def incompatible_fallback(route: ModelRoute, policies: PolicySet, fleet: Fleet) -> str:
    """The fallback, where it serves the same model in another revision than the first pool and must not; or empty.

    Pools of different models have revisions that mean nothing to each other; there ``modelChange`` rules.
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
    """The pools to use, without this one."""
    return tuple([{name: percent for name, percent in usable.items() if name != pool} for usable in ready])


def _failing(decision: EngineDecision | None) -> bool:
    return decision is not None and decision.floor and decision.ejector is Ejector.ERRORS


def route_weights(
    route: ModelRoute,
    ready: Sequence[UsableShares],
    ladders: Mapping[str, DegradationState],
    models: Mapping[str, str],
) -> Mapping[str, Mapping[str, int]]:
    """The live weights of a route by their name in the runtime layer; none where there is nothing to choose."""
    sets = (reachable_pools(route, who) for who in fallback_variants(route, models))
    return {
        weights_name(route, pools): live_weights(route, pools, ready, ladders) for pools in sets if len(pools) > 1
    }


def live_weights(
    route: ModelRoute, pools: Sequence[str], ready: Sequence[UsableShares], ladders: Mapping[str, DegradationState]
) -> Mapping[str, int]:
    """Weight of each of these pools of a route now; ``ready`` is which pools to use, the best ones first.

    The weight of a pool that is not ready moves to the fallback; without a ready fallback the other pools of the
    route share it by their own weights. Of a pool that is full the share moves that its ladder says. With nothing
    ready the weights stay as declared.
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
    # Shares that are each rounded up may come to more than all of it.
    return {**parts, fallback: max(0, WEIGHT_RESOLUTION - sum(parts.values()))}


def _share(ladder: DegradationState | None) -> float:
    return 0.0 if ladder is None else ladder.fallback_percent / 100


def _closed(ladder: DegradationState | None) -> bool:
    return ladder is not None and bool(ladder.maintenance)
