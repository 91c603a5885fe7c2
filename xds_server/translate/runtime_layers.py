"""Runtime layers: one per view, and one per proxy whose admission limits follow its demand, or that samples.

A thousand sidecars have a thousand layers, mostly equal. Results are cached by content, so that equal numbers
share one item, encoded once and pushed as one bytes object.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Final

from policies.model import PolicySet
from policies.resilience.mode import Mode
from policies.route import ModelRoute
from xds_server.decide.decisions import Ceiling, Decisions
from xds_server.model.fleet import Fleet
from xds_server.model.memo import Memo
from xds_server.model.type_urls import RUNTIME
from xds_server.model.view import GRPC_ROLE, View
from xds_server.translate.cluster_weights import (
    barred_fallbacks,
    incompatible_fallbacks,
    pool_state,
    ready_pools,
    route_weights,
    without_pools,
)
from xds_server.translate.deadlines import deadline_key
from xds_server.translate.engine_selection import engine_selection
from xds_server.translate.request_sizes import full_key
from xds_server.translate.route_configuration import route_pools
from xds_server.translate.runtime import EVERYTHING_PERCENT, LAYER, runtime_layer, with_hedge_budget
from xds_server.translate.tenant_share_limits import share_key
from xds_server.translate.translated_resource import TranslatedResource
from xds_server.translate.visibility import visible_policies

_ALL_REPORT_ALL: Final[Mapping[str, float]] = MappingProxyType({})

_NO_LAYERS: Final[Mapping[str, TranslatedResource]] = MappingProxyType({})

_Weights = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ViewLayer:
    """Common part of the layers of a view: pools with the role's admission limit, weights, keys of the steps of
    deadlines in force, and percentages of requests of tenants above their share.
    """

    ceilings: tuple[tuple[str, Ceiling], ...]
    weights: _Weights
    deadlines: tuple[str, ...]
    shares: tuple[tuple[str, float], ...]


def runtime_resource(
    policies: PolicySet,
    fleet: Fleet,
    decisions: Decisions,
    view: View,
    node: str = "",
    *,
    memo: Memo,
    access_log_percent: float = EVERYTHING_PERCENT,
) -> TranslatedResource:
    """Runtime layer of the proxy with this node id, or of its view.

    A pool's admission limit is the one decided for this proxy, else for its role. Proxies with equal numbers
    share the item while it is referenced.
    """
    shared = _view_layer(policies, fleet, decisions, view, memo)
    made = partial(
        _runtime_resource,
        policies,
        decisions,
        shared,
        node,
        memo=memo,
        access_log_percent=access_log_percent,
    )
    if node or access_log_percent != EVERYTHING_PERCENT:
        return made()
    # Views of all zones have the same.
    pools = tuple([pool for pool, _ in shared.ceilings])
    hedges = [decided.hedge if (decided := decisions.pools.get(pool)) else None for pool in pools]
    return memo.identical(("view runtime", view.role, pools), (policies, shared, *hedges), made)


def _runtime_resource(
    policies: PolicySet,
    decisions: Decisions,
    shared: _ViewLayer,
    node: str,
    *,
    memo: Memo,
    access_log_percent: float,
) -> TranslatedResource:
    ceilings = {
        pool: with_hedge_budget(
            _own_ceiling(decisions, pool, node) or ceiling,
            policies.effective[pool].hedging,
            decided.hedge if (decided := decisions.pools.get(pool)) else None,
        )
        for pool, ceiling in shared.ceilings
    }
    return memo.interned(
        (
            RUNTIME,
            tuple(_numbers(*one) for one in ceilings.items()),
            shared.weights,
            shared.deadlines,
            shared.shares,
            access_log_percent,
        ),
        lambda: TranslatedResource(
            type_url=RUNTIME,
            name=LAYER,
            message=runtime_layer(
                ceilings,
                {route: dict(weights) for route, weights in shared.weights},
                access_log_percent,
                shared.deadlines,
                dict(shared.shares),
            ),
        ),
    )


def proxy_runtime_resources(
    policies: PolicySet,
    fleet: Fleet,
    decisions: Decisions,
    views: Mapping[str, View],
    *,
    memo: Memo,
    access_log_shares: Mapping[str, float] = _ALL_REPORT_ALL,
) -> Mapping[str, TranslatedResource]:
    """Layers of proxies with their own admission limit or sampling ratio, by node id.

    ``views`` and ``access_log_shares`` are by node id, too.
    """
    parts = [pool.admission.by_proxy for pool in decisions.pools.values() if pool.admission]
    if not any(parts) and not access_log_shares:
        return _NO_LAYERS
    return memo.identical(
        ("own layers",),
        (policies, views, access_log_shares, *pool_state(fleet, decisions, *policies.pools)),
        lambda: _own_layers(policies, fleet, decisions, views, memo=memo, access_log_shares=access_log_shares),
    )


def _own_layers(
    policies: PolicySet,
    fleet: Fleet,
    decisions: Decisions,
    views: Mapping[str, View],
    *,
    memo: Memo,
    access_log_shares: Mapping[str, float],
) -> Mapping[str, TranslatedResource]:
    heard = {node for pool in decisions.pools.values() if pool.admission for node in pool.admission.by_proxy}
    shared = {
        view: _view_layer(policies, fleet, decisions, view, memo)
        for view in {views[node] for node in {*heard, *access_log_shares} if node in views}
        if view.role != GRPC_ROLE
    }
    items = {
        node: _runtime_resource(
            policies,
            decisions,
            shared[view],
            node,
            memo=memo,
            access_log_percent=EVERYTHING_PERCENT * access_log_shares.get(node, 1.0),
        )
        for node, view in views.items()
        if (node in heard or node in access_log_shares) and view in shared
    }
    # Kept until the next call, so that it finds unchanged items.
    return memo.of(("last own layers",), (items,), lambda: items)


def _own_ceiling(decisions: Decisions, pool: str, node: str) -> Ceiling | None:
    decided = decisions.pools.get(pool) if node else None
    return None if decided is None or decided.admission is None else decided.admission.by_proxy.get(node)


def _view_layer(policies: PolicySet, fleet: Fleet, decisions: Decisions, view: View, memo: Memo) -> _ViewLayer:
    here = visible_policies(policies, view, memo)
    split = memo.identical(
        ("split routes", view),
        (policies,),
        lambda: [route for route in chain.from_iterable(here.routes.values()) if len(route_pools(route)) > 1],
    )
    ceilings = tuple(
        [
            (pool, ceiling)
            for pool in here.pools
            if (ceiling := decisions.ceilings.get((pool, view.role))) is not None
        ]
    )
    weights = tuple([one for route in split for one in _weights(policies, fleet, decisions, route, memo)])
    hurried = memo.identical(
        ("routes with deadlines", view),
        (policies,),
        lambda: [
            route
            for route in chain.from_iterable(here.routes.values())
            if route.spec.listener.deadline is not None and route.spec.listener.deadline.mode is Mode.ENFORCE
        ],
    )
    deadlines = tuple([key for route in hurried for key in _deadline_keys(route, decisions)])
    shares = tuple(
        [one for pool in here.pools for one in (*_refused_shares(pool, decisions), *_full_pool(pool, decisions))]
    )
    return memo.of(
        ("view layer", view.role, here.pools),
        (ceilings, weights, deadlines, shares),
        lambda: _ViewLayer(ceilings=ceilings, weights=weights, deadlines=deadlines, shares=shares),
    )


def _refused_shares(pool: str, decisions: Decisions) -> Iterator[tuple[str, float]]:
    """Runtime keys and percentages of tenants above their share of a pool."""
    decided = decisions.pools.get(pool)
    if decided is None or decided.fair_shares is None:
        return
    for (port, tenant), share in decided.fair_shares.tenants.items():
        if share.refused_percent:
            yield share_key(pool, port, tenant), share.refused_percent


def _full_pool(pool: str, decisions: Decisions) -> Iterator[tuple[str, float]]:
    """Runtime key and percentage that end the retries of large requests; none while they are retried."""
    decided = decisions.pools.get(pool)
    if decided is not None and decided.large_retries is not None and decided.large_retries.full:
        yield full_key(pool), EVERYTHING_PERCENT


def _deadline_keys(route: ModelRoute, decisions: Decisions) -> Iterator[str]:
    """Keys of the steps in force of a route, by which it refuses requests with a short deadline."""
    decided = decisions.pools.get(route.spec.pools[0].pool)
    if decided is None or decided.deadline is None:
        return
    for kind, steps in (("streaming", decided.deadline.stream), ("non-streaming", decided.deadline.answer)):
        if steps is not None and steps.in_force is not None:
            yield deadline_key(route.metadata.name, kind, steps.in_force)


def _weights(policies: PolicySet, fleet: Fleet, decisions: Decisions, route: ModelRoute, memo: Memo) -> _Weights:
    """The live weights of a route to several pools; computed for changed pools only."""
    pools = route_pools(route)

    def live() -> _Weights:
        models = {pool: policies.pools[pool].spec.model for pool in pools}
        ready = ready_pools(fleet, decisions, engine_selection(route, policies), models, pools=pools, memo=memo)
        found = route_weights(
            route,
            without_pools(ready, incompatible_fallbacks(route, policies, fleet)),
            {
                pool: decided.degradation
                for pool in pools
                if (decided := decisions.pools.get(pool)) is not None and decided.degradation is not None
            },
            models,
            barred_fallbacks(route, policies, fleet, decisions),
        )
        return tuple((name, tuple(sorted(weights.items()))) for name, weights in found.items())

    state = pool_state(fleet, decisions, *pools)
    return memo.identical(("weights", route.metadata.name), (policies, *state), live)


def _numbers(pool: str, ceiling: Ceiling) -> tuple[str, int, int, float, int]:
    """Numbers of an admission limit without the reason, which Envoy does not need."""
    return pool, ceiling.interactive, ceiling.batch, ceiling.retry_percent, ceiling.retry_min_concurrency
