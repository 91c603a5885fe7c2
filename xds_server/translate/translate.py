"""Policies, fleet and decisions as the Envoy resources of one view: from what is wanted to what is served.

The order is fixed (runtime, clusters, secrets, endpoints, listeners, routes; each by name), so that equal inputs
give equal output on every replica. Whatever an item was made from is an input of its ``Memo`` entry: unchanged
pools come out as the same items as last time.
"""

from collections.abc import Sequence

from envoy_data_plane.envoy.config.route.v3 import Route

from policies.model import PolicySet
from policies.route import ModelRoute
from xds_server.decide.decisions import Decisions
from xds_server.decide.routing.time_limits import where_cut
from xds_server.fleet import EngineId, Fleet
from xds_server.secrets.secret import UNKNOWN, Certificates
from xds_server.translate.certificates import names_to_prove, secret_items
from xds_server.translate.clusters import cluster
from xds_server.translate.endpoints import assignment, picking_factors, zone_weights
from xds_server.translate.engine_tls import tls_socket
from xds_server.translate.grpc_client import ROLE as GRPC_ROLE
from xds_server.translate.grpc_client import api_listener, plain_cluster
from xds_server.translate.hops import (
    engine_listener,
    engine_listener_name,
    hop_cluster,
    hop_cluster_name,
    hopped,
    passage,
)
from xds_server.translate.in_force import in_force
from xds_server.translate.item import Item
from xds_server.translate.layers import runtime_item
from xds_server.translate.listeners import connection_manager, listener, listener_name
from xds_server.translate.memo import Memo
from xds_server.translate.origins import cluster_origins, pool_origins, route_origins
from xds_server.translate.residency import Allowed, allowed_by_pool, nobody_left
from xds_server.translate.routes import (
    envoy_routes,
    route_configuration,
    route_configuration_name,
    route_pools,
)
from xds_server.translate.runtime import EVERYTHING_PERCENT
from xds_server.translate.served import served
from xds_server.translate.tiers import tiers
from xds_server.translate.view import View
from xds_server.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE, RUNTIME


def translate(
    policies: PolicySet,
    fleet: Fleet,
    decisions: Decisions,
    view: View,
    memo: Memo | None = None,
    *,
    access_log_percent: float = EVERYTHING_PERCENT,
    certificates: Certificates = UNKNOWN,
) -> tuple[Item, ...]:
    """Every resource of the view. ``memo`` carries items from one call to the next, of any view.

    ``access_log_percent`` is the share of requests of which proxies are to tell. ``certificates`` are those for
    connections to engines.
    """
    memo = memo or Memo()
    here = served(policies, view)
    bounds = memo.of(("bounds",), (policies.routes,), lambda: allowed_by_pool(policies.routes, route_pools))
    if view.role == GRPC_ROLE:
        return (
            *(_plain_cluster(policies, pool, memo) for pool in here.pools),
            *(
                _assignment(policies, fleet, decisions, view, pool, memo=memo, allowed=bounds.get(pool, ()))
                for pool in here.pools
            ),
            *(_api_listener(policies, pool, memo) for pool in here.pools),
        )
    hops = frozenset(pool for pool in here.pools if view.cuts and hopped(policies.effective[pool]))
    return (
        _runtime(policies, fleet, decisions, view, access_log_percent, memo=memo),
        *(
            _cluster(
                policies,
                pool,
                memo,
                hop=pool in hops,
                allowed=bounds.get(pool, ()),
                certified=_certified(policies, pool, certificates),
            )
            for pool in here.pools
        ),
        *(_hop_cluster(policies, pool, memo) for pool in here.pools if view.cuts),
        *secret_items(policies, here.pools, certificates.secrets, memo, keys=view.keys),
        *(
            _assignment(
                policies,
                fleet,
                decisions,
                view,
                pool,
                memo=memo,
                hop=pool in hops,
                allowed=bounds.get(pool, ()),
            )
            for pool in here.pools
        ),
        # Of every pool: one whose policy no longer wants hops may still have requests on their way through them.
        *(
            one
            for pool in here.pools
            if view.cuts
            for one in _engine_listeners(policies, fleet, decisions, pool, memo)
        ),
        *(_listener(policies, view, port, routes, memo) for port, routes in here.routes.items()),
        *(
            _routes(policies, fleet, decisions, port, routes, memo=memo, cuts=view.cuts)
            for port, routes in here.routes.items()
        ),
    )


def _runtime(
    policies: PolicySet,
    fleet: Fleet,
    decisions: Decisions,
    view: View,
    access_log_percent: float,
    *,
    memo: Memo,
) -> Item:
    item = runtime_item(policies, fleet, decisions, view, memo=memo, access_log_percent=access_log_percent)
    # Held until the next one is made, so that it is found again while nothing has changed.
    return memo.of((RUNTIME, view), (item,), lambda: item)


def _cluster(
    policies: PolicySet, pool: str, memo: Memo, *, hop: bool, allowed: tuple[Allowed, ...], certified: bool
) -> Item:
    spec, tls = policies.effective[pool], policies.pools[pool].spec.tls
    origins = cluster_origins(policies, pool)
    return memo.of(
        (CLUSTER, pool, hop),
        (spec, origins, allowed, tls, certified),
        lambda: Item(
            type_url=CLUSTER,
            name=pool,
            message=cluster(
                pool,
                spec,
                hop=hop,
                allowed=allowed,
                tls=None if tls is None else tls_socket(tls, certified=certified),
            ),
            origins=origins,
        ),
    )


def _certified(policies: PolicySet, pool: str, certificates: Certificates) -> bool:
    """Whether proxies show engines of the pool a certificate."""
    tls = policies.pools[pool].spec.tls
    return tls is not None and certificates.has_certificate(tls.secret)


def _hop_cluster(policies: PolicySet, pool: str, memo: Memo) -> Item:
    spec = policies.effective[pool]
    origins = cluster_origins(policies, pool)
    name = hop_cluster_name(pool)
    return memo.of(
        (CLUSTER, name),
        (spec, origins),
        lambda: Item(type_url=CLUSTER, name=name, message=hop_cluster(pool, spec), origins=origins),
    )


def _engine_listeners(
    policies: PolicySet, fleet: Fleet, decisions: Decisions, pool: str, memo: Memo
) -> tuple[Item, ...]:
    """The listeners that engines are reached through, without those of engines that are cut off.

    An engine that has left the pool keeps its own while it may still be answering.
    """
    names = [engine.id.engine for engine in fleet.pools.get(pool, ()) if not _is_cut(decisions, engine.id)]
    names += sorted(key.engine for key in decisions.leaving if key.pool == pool)
    origins = pool_origins(policies, pool)
    return memo.of(
        ("engine listeners", pool),
        (names, origins),
        lambda: tuple(_engine_listener(pool, engine, origins, memo) for engine in names),
    )


def _engine_listener(pool: str, engine: str, origins: tuple[str, ...], memo: Memo) -> Item:
    name = engine_listener_name(pool, engine)
    through = memo.of(("passage", pool), (), lambda: passage(pool))
    return memo.of(
        (LISTENER, name),
        (origins,),
        lambda: Item(
            type_url=LISTENER, name=name, message=engine_listener(pool, engine, through), origins=origins
        ),
    )


def _is_cut(decisions: Decisions, engine: EngineId) -> bool:
    decision = decisions.engines.get(engine)
    return decision is not None and decision.cut


def _plain_cluster(policies: PolicySet, pool: str, memo: Memo) -> Item:
    spec = policies.effective[pool]
    origins = cluster_origins(policies, pool)
    return memo.of(
        (CLUSTER, GRPC_ROLE, pool),
        (spec, origins),
        lambda: Item(type_url=CLUSTER, name=pool, message=plain_cluster(pool, spec), origins=origins),
    )


def _api_listener(policies: PolicySet, pool: str, memo: Memo) -> Item:
    origins = pool_origins(policies, pool)
    return memo.of(
        (LISTENER, GRPC_ROLE, pool),
        (origins,),
        lambda: Item(type_url=LISTENER, name=pool, message=api_listener(pool), origins=origins),
    )


def _assignment(
    policies: PolicySet,
    fleet: Fleet,
    decisions: Decisions,
    view: View,
    pool: str,
    *,
    memo: Memo,
    hop: bool = False,
    allowed: tuple[Allowed, ...],
) -> Item:
    engines, zone, region = fleet.pools.get(pool, ()), view.zone, view.region
    decided = decisions.pools.get(pool)
    names = memo.of(("names", pool), (policies.pools[pool],), lambda: names_to_prove(policies.pools[pool]))
    if decided is None:
        spec = assignment(
            pool, engines, decisions, zone, memo, region=region, hop=hop, allowed=allowed, names=names
        )
    else:
        # What endpoints are made of, in a form that compares in microseconds: most pools have not changed.
        spec = memo.of(
            ("assignment", pool, zone, region, hop),
            (
                policies.pools[pool],
                tuple([engine.address for engine in engines]),
                tuple(decided.engines.values()),
                tiers(decisions, pool, engines, zone=zone, region=region)
                or zone_weights(pool, engines, decisions, zone),
                picking_factors(decided.picking),
                allowed,
            ),
            lambda: assignment(
                pool, engines, decisions, zone, memo, region=region, hop=hop, allowed=allowed, names=names
            ),
        )
    origins = pool_origins(policies, pool)
    return memo.of(
        (ENDPOINT, pool, zone, region, hop),
        (spec, origins),
        lambda: Item(type_url=ENDPOINT, name=pool, message=spec, origins=origins),
    )


def _listener(policies: PolicySet, view: View, port: int, routes: Sequence[ModelRoute], memo: Memo) -> Item:
    # The loader refuses routes that disagree about the address of a port; the order makes it one in any case.
    address = view.listen_address or min(route.spec.listener.address for route in routes)
    origins = route_origins(policies, (route.metadata.name for route in routes))
    # Every proxy may bind an address of its own; packing this anew for each took 10 ms.
    manager = memo.of((LISTENER, port), (), lambda: connection_manager(port))
    return memo.of(
        (LISTENER, port, address),
        (address, origins),
        lambda: Item(
            type_url=LISTENER, name=listener_name(port), message=listener(port, address, manager), origins=origins
        ),
    )


def _routes(
    policies: PolicySet,
    fleet: Fleet,
    decisions: Decisions,
    port: int,
    routes: Sequence[ModelRoute],
    *,
    memo: Memo,
    cuts: bool,
) -> Item:
    names = tuple(route.metadata.name for route in routes)
    origins = route_origins(policies, names)
    limit = max(route.spec.max_body_bytes for route in routes)
    ready = tuple(_envoy_routes(policies, fleet, decisions, route, memo, cuts=cuts) for route in routes)
    return memo.of(
        (ROUTE, port, names, cuts),
        (ready, limit, origins),
        lambda: Item(
            type_url=ROUTE,
            name=route_configuration_name(port),
            message=route_configuration(port, [one for some in ready for one in some], limit),
            origins=origins,
        ),
    )


def _envoy_routes(
    policies: PolicySet, fleet: Fleet, decisions: Decisions, route: ModelRoute, memo: Memo, *, cuts: bool
) -> tuple[Route, ...]:
    # Envoy has one set of limits per route, so the pool that is named first rules all of the route's pools.
    first = route.spec.pools[0].pool
    spec, gated = policies.effective[first], policies.pools[first].spec.first_token_gate
    models = {pool: policies.pools[pool].spec.model for pool in route_pools(route)}
    decided = decisions.pools.get(first)
    hedge, retries, limits, ladder = (
        (decided.hedge, decided.retries, decided.limits, decided.ladder) if decided else (None, None, None, None)
    )
    if limits is not None and cuts and spec.breaker.cut_hung and hopped(spec):
        limits = where_cut(limits, spec.timeouts)
    left_alone = nobody_left(route, route_pools(route), fleet, decisions)
    return memo.of(
        (ROUTE, route.metadata.name, cuts),
        # Decisions come anew with each round, and with a new sentence; routes only with what they are made of.
        (route, spec, gated, models, in_force(hedge, retries, limits, ladder), left_alone),
        lambda: envoy_routes(
            route,
            spec,
            gated=gated,
            hedge=hedge,
            retries=retries,
            limits=limits,
            ladder=ladder,
            models=models,
            nobody_left=left_alone,
        ),
    )
