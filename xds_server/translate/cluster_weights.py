"""Live weights of each route: declared weights, moved off pools that are gone, failing or full.

Envoy has no failover for full or missing pools that also keeps requests in flight, so the control plane moves
weights by RTDS, in milliseconds.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from policies.model import PolicySet
from policies.resilience import AcrossRevisions
from policies.route import ModelRoute
from xds_server.decide.decisions import Decisions, DegradationState, Ejector, EngineDecision, Health
from xds_server.decide.routing.region_shares import revision_key
from xds_server.model.fleet import Fleet
from xds_server.model.memo import Memo
from xds_server.translate.engine_selection import EVERY_ENGINE, EngineSelection
from xds_server.translate.route_configuration import (
    declared_weights,
    fallback_variants,
    reachable_pools,
    retries_may_leave,
    weights_name,
    weights_with_exit,
)

WEIGHT_RESOLUTION: Final = 10_000
"""Sum of a route's weights while a share is moved: resolution 0.01 %."""


UsableShares: TypeAlias = Mapping[str, float]
"""Pool -> percent of its traffic that it can take, above 0; pools that can take none are absent."""


def ready_pools(
    fleet: Fleet,
    decisions: Decisions,
    selected: EngineSelection = EVERY_ENGINE,
    models: Mapping[str, str] = MappingProxyType({}),
    *,
    pools: Iterable[str] | None = None,
    memo: Memo | None = None,
) -> tuple[UsableShares, UsableShares]:
    """Of these pools, by default all: those that serve; and, as a last resort, those with any engine in rotation.

    A pool serves while one engine is in rotation on its own merits, as far as the pool as a whole answers. Engines
    that fail but are kept in rotation by the capacity floor are better than none; a fallback is better than they.
    If the only others are on trial, the pool is on trial. An engine without decision counts as well. With
    ``selected`` only the engines that it admits count; ``models`` are those of the pools.
    """
    memo = memo or Memo()
    ready = {
        pool: memo.identical(
            ("ready", pool, selected, models.get(pool, "")),
            pool_state(fleet, decisions, pool),
            lambda pool=pool: _readiness(fleet, decisions, pool, selected, models.get(pool, "")),  # type: ignore[misc]
        )
        for pool in (fleet.pools if pools is None else pools)
    }
    return (
        {pool: percent for pool, (percent, _) in ready.items() if percent},
        {pool: 100.0 for pool, (_, any_left) in ready.items() if any_left},
    )


def pool_state(fleet: Fleet, decisions: Decisions, *pools: str) -> tuple[object, ...]:
    """What of the fleet and the decisions concerns these pools: the same objects until something of it changes."""
    return tuple(
        one for pool in pools for one in (fleet.pools.get(pool), decisions.pools.get(pool, decisions.engines))
    )


def _readiness(
    fleet: Fleet, decisions: Decisions, pool: str, selected: EngineSelection, model: str
) -> tuple[float, bool]:
    """Percent of its traffic that the pool can take on its merits; and whether any engine is in rotation."""
    taking = [
        decision
        for engine in fleet.pools.get(pool, ())
        if selected.admits(engine, model)
        and ((decision := decisions.engines.get(engine.id)) is None or decision.health is Health.HEALTHY)
    ]
    merits = (100.0 if one is None else one.traffic_percent for one in taking if not _failing(one))
    return min(_serves_percent(decisions, pool), max(merits, default=0.0)), bool(taking)


def _serves_percent(decisions: Decisions, pool: str) -> float:
    decided = decisions.pools.get(pool)
    return 100.0 if decided is None else decided.serves_percent


def incompatible_fallbacks(route: ModelRoute, policies: PolicySet, fleet: Fleet) -> frozenset[str]:
    """Fallbacks that serve another revision of the same model and must not.

    Revisions of different models are not comparable; ``modelChange`` governs those.
    """
    first = route.spec.pools[0].pool
    across = policies.effective[first].regions.across_revisions
    model = policies.pools[first].spec.model
    alike = [pool for pool in route.spec.fallbacks if policies.pools[pool].spec.model == model]
    if not alike or across is AcrossRevisions.ANY:
        return frozenset()

    def revisions(pool: str) -> set[str]:
        known = {engine.revision for engine in fleet.pools.get(pool, ())}
        return {revision_key(one, across) for one in known}

    own = revisions(first)
    return frozenset(pool for pool in alike if own and (other := revisions(pool)) and own.isdisjoint(other))


def barred_fallbacks(route: ModelRoute, policies: PolicySet, fleet: Fleet, decisions: Decisions) -> frozenset[str]:
    """Fallbacks that retries must not leave for: of another revision, or in maintenance."""
    return incompatible_fallbacks(route, policies, fleet) | {
        pool
        for pool in route.spec.fallbacks
        if (decided := decisions.pools.get(pool)) is not None and _closed(decided.degradation)
    }


def without_pools(ready: Sequence[UsableShares], pools: Collection[str]) -> Sequence[UsableShares]:
    """The usable pools without these."""
    if not pools:
        return ready
    return tuple([{name: percent for name, percent in usable.items() if name not in pools} for usable in ready])


def _failing(decision: EngineDecision | None) -> bool:
    return decision is not None and decision.floor and decision.ejector is Ejector.ERRORS


def route_weights(
    route: ModelRoute,
    ready: Sequence[UsableShares],
    ladders: Mapping[str, DegradationState],
    models: Mapping[str, str],
    barred: Collection[str] = (),
) -> Mapping[str, Mapping[str, int]]:
    """Live weights of a route by name in the runtime layer; empty without a choice.

    ``barred``: pools that retries must not leave for.
    """
    sets = [pools for who in fallback_variants(route, models) if len(pools := reachable_pools(route, who)) > 1]
    found = {}
    for pools in sets:
        live = live_weights(route, pools, ready, ladders)
        if retries_may_leave(route, pools, models, barred):
            usable = next((tier for tier in ready if tier), {})
            live = weights_with_exit(route, live, usable)
        found[weights_name(route, pools)] = live
    return found


def live_weights(
    route: ModelRoute, pools: Sequence[str], ready: Sequence[UsableShares], ladders: Mapping[str, DegradationState]
) -> Mapping[str, int]:
    """Live weight of each of these pools of a route; ``ready``: usable pools, best first.

    The weight of an unusable pool moves to the first usable fallback; without one the route's other pools share
    it by their own weights. A full pool gives up the share set by its degradation level; a full fallback gives up
    such a share of what it got, to the next. If no pool is usable, the declared weights stay.
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
    chain = [
        pool
        for pool in route.spec.fallbacks
        if pool in declared and pool in usable and not _closed(ladders.get(pool))
    ]
    if not chain:
        return {pool: weight if pool in usable else 0 for pool, weight in declared.items()}
    # Part of what each pool is offered that it takes; the last fallback takes what is left.
    takes = {pool: usable.get(pool, 0.0) / 100 * (1 - _share(ladders.get(pool))) for pool in declared}
    total = sum(declared.values())
    divided = [pool for pool, weight in declared.items() if weight and pool not in chain] + chain[:-1]
    scale = total if all(takes[pool] in {0.0, 1.0} for pool in divided) else WEIGHT_RESOLUTION
    live = {
        pool: 0 if pool in chain else round(weight * takes[pool] * scale / total)
        for pool, weight in declared.items()
    }
    # Shares that are rounded up individually may exceed the total.
    left = max(0, scale - sum(live.values()))
    for pool in chain[:-1]:
        live[pool] = round(left * takes[pool])
        left -= live[pool]
    return {**live, chain[-1]: left}


def _share(ladder: DegradationState | None) -> float:
    return 0.0 if ladder is None else ladder.fallback_percent / 100


def _closed(ladder: DegradationState | None) -> bool:
    return ladder is not None and bool(ladder.maintenance)
