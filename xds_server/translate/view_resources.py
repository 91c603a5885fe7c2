"""Envoy resources of one view, from policies, fleet and decisions.

The order is fixed (runtime, clusters, secrets, endpoints, listeners, routes, parts of quotas; each by name), so
that equal inputs give equal output on every replica. All inputs of an item are part of its ``Memo`` key, so
unchanged pools return the same items.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from envoy_data_plane.envoy.config.route.v3 import Route

from policies.external_service import ServiceReference
from policies.model import PolicySet
from policies.route import ModelRoute
from xds_server.decide.decisions import Decisions, PoolDecisions, UsedUpQuota
from xds_server.model.fleet import Engine, EngineId, Fleet
from xds_server.model.memo import Memo, reuse_tuple
from xds_server.model.secret import UNKNOWN_CERTIFICATES, Certificates
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE, RUNTIME
from xds_server.model.view import GRPC_ROLE, View
from xds_server.translate.affinity import prefix_lengths, slack_by_pool
from xds_server.translate.cluster_weights import barred_fallbacks, pool_state
from xds_server.translate.effective_spec import route_decisions
from xds_server.translate.endpoints import EndpointForm, load_assignment, zone_weights
from xds_server.translate.engine_selection import (
    adapters_by_pool,
    canary_is_served,
    engine_selection,
    lost_pools,
    nobody_left,
)
from xds_server.translate.external_clusters import external_cluster, external_cluster_name
from xds_server.translate.internal_listeners import (
    engine_listener,
    engine_listener_name,
    hop_cluster,
    hop_cluster_name,
    listener_template,
    uses_internal_listeners,
)
from xds_server.translate.listeners import connection_manager, listener, listener_name
from xds_server.translate.local_reply_routes import held_back_reply
from xds_server.translate.origins import cluster_origins, pool_origins, route_origins
from xds_server.translate.pool_clusters import ClusterForm, pool_cluster
from xds_server.translate.prefillers import NO_LISTS, decode_pools, prefiller_lists, prefillers
from xds_server.translate.priorities import locality_priorities
from xds_server.translate.proxyless_grpc import api_listener, grpc_cluster
from xds_server.translate.request_fields import token_estimate
from xds_server.translate.request_sizes import depends_on_size
from xds_server.translate.residency import AllowedRegions, allowed_by_pool
from xds_server.translate.route_configuration import (
    RouteReach,
    envoy_routes,
    route_configuration,
    route_configuration_name,
    route_pools,
    specificity,
)
from xds_server.translate.runtime_layers import runtime_resource
from xds_server.translate.strict_sessions import is_strict, session_hosts, strict_pools
from xds_server.translate.tenant_parts import even_parts
from xds_server.translate.tenant_quotas import NO_QUOTA_USED_UP
from xds_server.translate.translated_resource import TranslatedPart, TranslatedResource, TypeGroup
from xds_server.translate.upstream_tls import engine_host_names, secret_resources, upstream_tls_socket
from xds_server.translate.visibility import visible_policies

_LISTENERS: Final = 4
"""Place of listeners in the groups of a view."""


def translate(
    policies: PolicySet,
    fleet: Fleet,
    decisions: Decisions,
    view: View,
    memo: Memo | None = None,
    *,
    certificates: Certificates = UNKNOWN_CERTIFICATES,
) -> tuple[TranslatedResource, ...]:
    """Every resource of the view. ``memo`` carries items between calls, for all views.

    ``certificates``: for connections to engines.
    """
    groups = translate_by_type(policies, fleet, decisions, view, memo or Memo(), certificates=certificates)
    return tuple(chain.from_iterable(groups))


def translate_by_type(
    policies: PolicySet,
    fleet: Fleet,
    decisions: Decisions,
    view: View,
    memo: Memo,
    *,
    certificates: Certificates = UNKNOWN_CERTIFICATES,
) -> tuple[TypeGroup, ...]:
    """The same by type, in their order; the same group while none of its resources changed."""
    if view.role == GRPC_ROLE:
        return _grpc_groups(policies, fleet, decisions, view, memo)
    known = memo.identical(
        ("view", view),
        (policies, certificates),
        lambda: _ViewState(_fixed_resources(policies, view, memo, certificates)),
    )
    leaving: dict[str, tuple[str, ...]] = {}
    for key in sorted(decisions.leaving):
        leaving[key.pool] = (*leaving.get(key.pool, ()), key.engine)
    changed: dict[str, _PoolState] = {}
    engines_of, decided_of, states = fleet.pools, decisions.pools, known.pools
    prefilled_by = _prefilled_by(policies, memo)
    for pool in known.fixed.pools:
        state, removed = states.get(pool), leaving.get(pool, ())
        engines, decided = engines_of.get(pool), decided_of.get(pool)
        partner = prefilled_by.get(pool, "")
        prefills = (engines_of.get(partner), decided_of.get(partner)) if partner else ()
        if (
            state is None
            or decided is None
            or state.engines is not engines
            or state.decided is not decided
            or state.removed != removed
            or any(was is not now for was, now in zip(state.prefills, prefills, strict=True))
        ):
            made = _pool_resources(
                policies, fleet, decisions, view, pool, removed=removed, memo=memo, certificates=certificates
            )
            changed[pool] = _PoolState(
                engines=engines, decided=decided, removed=removed, prefills=prefills, resources=made
            )
    if changed or not known.groups or known.quotas != _quota_inputs(decisions):
        _update(known, changed, policies=policies, fleet=fleet, decisions=decisions, view=view, memo=memo)
    return known.groups


def _grpc_groups(
    policies: PolicySet, fleet: Fleet, decisions: Decisions, view: View, memo: Memo
) -> tuple[TypeGroup, ...]:
    """The resources of gRPC's own xDS client."""
    pools, bounds = visible_policies(policies, view, memo).pools, _bounds(policies, memo)
    groups = (
        tuple(_plain_cluster(policies, pool, memo) for pool in pools),
        tuple(
            _assignment(
                policies,
                fleet,
                decisions,
                view,
                pool,
                memo=memo,
                form=EndpointForm(allowed=bounds.get(pool, ())),
            )
            for pool in pools
        ),
        tuple(_api_listener(policies, pool, memo) for pool in pools),
    )
    return memo.of(("view", view), groups, lambda: groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PoolResources:
    """The resources of one pool in one view."""

    cluster: TranslatedResource
    hop_cluster: TranslatedResource | None
    assignment: TranslatedResource
    engine_listeners: TypeGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class _PoolState:
    """The resources of one pool, and what of the fleet and the decisions they were made from.

    ``prefills``: the same of the pool that prefills for it; empty without one.
    """

    engines: tuple[Engine, ...] | None
    decided: PoolDecisions | None
    removed: tuple[str, ...]
    prefills: tuple[object, ...]
    resources: _PoolResources


@dataclass(frozen=True, slots=True, kw_only=True)
class _FixedResources:
    """What of a view follows from policies and certificates alone, and the pools that each route sends to."""

    pools: tuple[str, ...]
    routes: Mapping[int, Sequence[ModelRoute]]
    reached: Mapping[str, frozenset[str]]
    external_clusters: TypeGroup
    secrets: TypeGroup
    listeners: TypeGroup


_QuotaInputs = tuple[Mapping[int, int], Mapping[int, Mapping[str, UsedUpQuota]]]


def _quota_inputs(decisions: Decisions) -> _QuotaInputs:
    """What quotas in routes depend on."""
    return decisions.quota_proxies, decisions.used_up


class _ViewState:
    """The resources of a view as last made, by pool, route, port and type."""

    def __init__(self, fixed: _FixedResources) -> None:
        self.fixed = fixed
        self.pools: Mapping[str, _PoolState] = {}
        self.envoy_routes: Mapping[str, tuple[Route, ...]] = {}
        self.routes: Mapping[int, TranslatedResource] = {}
        self.quotas: _QuotaInputs = ({}, {})
        self.groups: tuple[TypeGroup, ...] = ()


def _fixed_resources(policies: PolicySet, view: View, memo: Memo, certificates: Certificates) -> _FixedResources:
    here = visible_policies(policies, view, memo)
    return _FixedResources(
        pools=here.pools,
        routes=here.routes,
        reached={
            route.metadata.name: frozenset(route_pools(route))
            for route in chain.from_iterable(here.routes.values())
        },
        external_clusters=tuple(
            one for port, routes in here.routes.items() for one in _external_clusters(policies, port, routes, memo)
        ),
        secrets=secret_resources(policies, here, certificates.secrets, memo, keys=view.keys),
        listeners=tuple(_listener(policies, view, port, routes, memo) for port, routes in here.routes.items()),
    )


def _update(
    known: _ViewState,
    changed: Mapping[str, _PoolState],
    *,
    policies: PolicySet,
    fleet: Fleet,
    decisions: Decisions,
    view: View,
    memo: Memo,
) -> None:
    """Take over the changed pools of a view, and make what follows from them."""
    fixed, quotas = known.fixed, _quota_inputs(decisions)
    pools = {**known.pools, **changed}
    envoy_routes = {
        name: _envoy_routes(policies, fleet, decisions, policies.routes[name], memo, cuts=view.cuts)
        for name, reached in fixed.reached.items()
        if name not in known.envoy_routes or not reached.isdisjoint(changed)
    }
    fresh = {name for name, one in envoy_routes.items() if known.envoy_routes.get(name) is not one}
    envoy_routes = {**known.envoy_routes, **envoy_routes}
    routes = {**known.routes}
    for port, some in fixed.routes.items() if fresh or quotas != known.quotas else ():
        ready = tuple([envoy_routes[route.metadata.name] for route in some])
        routes[port] = _routes(policies, decisions, port, some, ready, memo=memo, cuts=view.cuts)
    made = [pool.resources for pool in pools.values()]
    groups: tuple[TypeGroup, ...] = (
        (_runtime(policies, fleet, decisions, view, memo=memo),),
        (
            *(one.cluster for one in made),
            *(one.hop_cluster for one in made if one.hop_cluster is not None),
            *fixed.external_clusters,
        ),
        fixed.secrets,
        tuple([one.assignment for one in made]),
        _all_listeners(known, changed, made),
        tuple(routes.values()),
        tuple([one for some in fixed.routes.values() for one in even_parts(some[0], decisions, memo)]),
    )
    known.groups = tuple(reuse_tuple(was, now) for was, now in zip(known.groups or groups, groups, strict=True))
    known.pools, known.envoy_routes, known.routes, known.quotas = pools, envoy_routes, routes, quotas


def _all_listeners(
    known: _ViewState, changed: Mapping[str, _PoolState], made: Sequence[_PoolResources]
) -> TypeGroup:
    """The listeners of engines, perhaps ten thousand, and those of ports."""
    before = known.pools
    if known.groups and all(
        pool in before and before[pool].resources.engine_listeners is now.resources.engine_listeners
        for pool, now in changed.items()
    ):
        return known.groups[_LISTENERS]
    return (*(listener for one in made for listener in one.engine_listeners), *known.fixed.listeners)


def _pool_resources(
    policies: PolicySet,
    fleet: Fleet,
    decisions: Decisions,
    view: View,
    pool: str,
    *,
    removed: tuple[str, ...],
    memo: Memo,
    certificates: Certificates,
) -> _PoolResources:
    """The resources of one pool, shared by views that see it alike."""

    def made() -> _PoolResources:
        bounds, slacks = _bounds(policies, memo), _slacks(policies, memo)
        strict = pool in memo.of(("strict",), (policies.routes,), lambda: strict_pools(policies.routes))
        adapters = memo.of(("adapters",), (policies.routes, policies.pools), lambda: adapters_by_pool(policies))
        hop = view.cuts and uses_internal_listeners(policies.effective[pool])
        engines = fleet.pools.get(pool, ())
        return _PoolResources(
            cluster=_cluster(
                policies,
                pool,
                memo,
                form=ClusterForm(
                    hop=hop,
                    allowed=bounds.get(pool, ()),
                    slack_percent=slacks.get(pool),
                    decodes=pool in prefilled_by,
                    strict=strict,
                ),
                certified=_certified(policies, pool, certificates),
            ),
            hop_cluster=_hop_cluster(policies, pool, memo) if view.cuts else None,
            assignment=_assignment(
                policies,
                fleet,
                decisions,
                view,
                pool,
                memo=memo,
                form=EndpointForm(
                    hop=hop,
                    allowed=bounds.get(pool, ()),
                    adapters=adapters.get(pool, ()),
                    hashed=pool in slacks,
                    prefillers=prefiller_lists(engines, decisions, prefillers(policies, fleet, decisions, partner))
                    if partner
                    else NO_LISTS,
                    strict=strict,
                ),
            ),
            # For every pool: one whose policy no longer needs hops may still have requests in flight through them.
            engine_listeners=_engine_listeners(policies, fleet, decisions, pool, removed=removed, memo=memo)
            if view.cuts
            else (),
        )

    names = memo.of(("removed", pool), (removed,), lambda: removed)
    prefilled_by = _prefilled_by(policies, memo)
    # A proxy that may not see the prefill pool learns no address of it.
    partner = one if (one := prefilled_by.get(pool, "")) and view.may_see((one,)) else ""
    return memo.identical(
        ("pool", pool, view.cuts, view.zone, view.region, partner),
        (policies, certificates, names, *pool_state(fleet, decisions, pool, *((partner,) if partner else ()))),
        made,
    )


def _prefilled_by(policies: PolicySet, memo: Memo) -> Mapping[str, str]:
    """All decode pools, and the pool that prefills for each."""
    return memo.of(("prefilled by",), (policies.routes, policies.pools), lambda: decode_pools(policies))


def _bounds(policies: PolicySet, memo: Memo) -> Mapping[str, tuple[AllowedRegions, ...]]:
    """The sets of regions that routes are limited to, by pool."""
    return memo.of(("bounds",), (policies.routes,), lambda: allowed_by_pool(policies.routes, route_pools))


def _slacks(policies: PolicySet, memo: Memo) -> Mapping[str, float]:
    """The load that affinity allows above the mean, by pool."""
    return memo.of(("slacks",), (policies.routes,), lambda: slack_by_pool(policies.routes))


def _runtime(
    policies: PolicySet,
    fleet: Fleet,
    decisions: Decisions,
    view: View,
    *,
    memo: Memo,
) -> TranslatedResource:
    item = runtime_resource(policies, fleet, decisions, view, memo=memo)
    # Kept until the next call, so that unchanged items are found again.
    return memo.of((RUNTIME, view), (item,), lambda: item)


def _cluster(
    policies: PolicySet, pool: str, memo: Memo, *, form: ClusterForm, certified: bool
) -> TranslatedResource:
    spec, tls = policies.effective[pool], policies.pools[pool].spec.tls
    origins = cluster_origins(policies, pool)
    return memo.of(
        (CLUSTER, pool, form.hop),
        (spec, origins, form, tls, certified),
        lambda: TranslatedResource(
            type_url=CLUSTER,
            name=pool,
            message=pool_cluster(
                pool, spec, form=form, tls=None if tls is None else upstream_tls_socket(tls, certified=certified)
            ),
            origins=origins,
        ),
    )


def _certified(policies: PolicySet, pool: str, certificates: Certificates) -> bool:
    """Whether proxies present a client certificate to the pool's engines."""
    tls = policies.pools[pool].spec.tls
    return tls is not None and certificates.has_certificate(tls.secret)


def _hop_cluster(policies: PolicySet, pool: str, memo: Memo) -> TranslatedResource:
    spec = policies.effective[pool]
    origins = cluster_origins(policies, pool)
    name = hop_cluster_name(pool)
    return memo.of(
        (CLUSTER, name),
        (spec, origins),
        lambda: TranslatedResource(type_url=CLUSTER, name=name, message=hop_cluster(pool, spec), origins=origins),
    )


def _external_clusters(
    policies: PolicySet, port: int, routes: Sequence[ModelRoute], memo: Memo
) -> Sequence[TranslatedResource]:
    services = tuple(routes[0].spec.listener.external_services())
    if not services:
        return ()
    origins = route_origins(policies, (route.metadata.name for route in routes))
    return [_external_cluster(port, one, origins, memo) for one in services]


def _external_cluster(
    port: int, reference: ServiceReference, origins: tuple[str, ...], memo: Memo
) -> TranslatedResource:
    name = external_cluster_name(port, reference.field)
    return memo.of(
        (CLUSTER, name),
        (reference, origins),
        lambda: TranslatedResource(
            type_url=CLUSTER,
            name=name,
            message=external_cluster(name, reference.service, http2=reference.grpc),
            origins=origins,
        ),
    )


def _engine_listeners(
    policies: PolicySet,
    fleet: Fleet,
    decisions: Decisions,
    pool: str,
    *,
    removed: Sequence[str],
    memo: Memo,
) -> tuple[TranslatedResource, ...]:
    """Listeners of engines, except those of engines whose requests are cut.

    An engine removed from the pool keeps its listener while it may still be answering.
    """
    names = [engine.id.engine for engine in fleet.pools.get(pool, ()) if not _is_cut(decisions, engine.id)]
    names += removed
    origins = pool_origins(policies, pool)
    return memo.of(
        ("engine listeners", pool),
        (names, origins),
        lambda: tuple(_engine_listener(pool, engine, origins, memo) for engine in names),
    )


def _engine_listener(pool: str, engine: str, origins: tuple[str, ...], memo: Memo) -> TranslatedResource:
    name = engine_listener_name(pool, engine)
    through = memo.of(("passage", pool), (), lambda: listener_template(pool))
    return memo.of(
        (LISTENER, name),
        (origins,),
        lambda: TranslatedResource(
            type_url=LISTENER, name=name, message=engine_listener(pool, engine, through), origins=origins
        ),
    )


def _is_cut(decisions: Decisions, engine: EngineId) -> bool:
    decision = decisions.engines.get(engine)
    return decision is not None and decision.cut


def _plain_cluster(policies: PolicySet, pool: str, memo: Memo) -> TranslatedResource:
    spec = policies.effective[pool]
    origins = cluster_origins(policies, pool)
    return memo.of(
        (CLUSTER, GRPC_ROLE, pool),
        (spec, origins),
        lambda: TranslatedResource(type_url=CLUSTER, name=pool, message=grpc_cluster(pool, spec), origins=origins),
    )


def _api_listener(policies: PolicySet, pool: str, memo: Memo) -> TranslatedResource:
    origins = pool_origins(policies, pool)
    return memo.of(
        (LISTENER, GRPC_ROLE, pool),
        (origins,),
        lambda: TranslatedResource(type_url=LISTENER, name=pool, message=api_listener(pool), origins=origins),
    )


def _assignment(
    policies: PolicySet,
    fleet: Fleet,
    decisions: Decisions,
    view: View,
    pool: str,
    *,
    memo: Memo,
    form: EndpointForm,
) -> TranslatedResource:
    engines, zone, region = fleet.pools.get(pool, ()), view.zone, view.region
    hop, allowed, hashed, strict = form.hop, form.allowed, form.hashed, form.strict
    decided = decisions.pools.get(pool)
    names = memo.of(("names", pool), (policies.pools[pool],), lambda: engine_host_names(policies.pools[pool]))
    form = replace(form, names=names)
    if decided is None:
        spec = load_assignment(pool, engines, decisions, zone, memo, region=region, form=form)
    else:
        # Inputs of the endpoints in a form that compares in microseconds: most pools are unchanged.
        spec = memo.of(
            ("assignment", pool, zone, region, hop, hashed, strict),
            (
                policies.pools[pool],
                tuple([engine.address for engine in engines]),
                tuple(decided.engines.values()),
                locality_priorities(decisions, pool, engines, zone=zone, region=region)
                or zone_weights(pool, engines, decisions, zone),
                decided.weight_factors,
                decided.ramps,
                allowed,
                [(one.label, [one.admits(engine, one.model) for engine in engines]) for one in form.adapters],
                form.prefillers,
            ),
            lambda: load_assignment(pool, engines, decisions, zone, memo, region=region, form=form),
        )
    origins = pool_origins(policies, pool)
    return memo.of(
        (ENDPOINT, pool, zone, region, hop, hashed, strict),
        (spec, origins),
        lambda: TranslatedResource(type_url=ENDPOINT, name=pool, message=spec, origins=origins),
    )


def _listener(
    policies: PolicySet, view: View, port: int, routes: Sequence[ModelRoute], memo: Memo
) -> TranslatedResource:
    names = tuple([route.metadata.name for route in routes])
    return memo.identical(
        ("listener", port, names, view.listen_address, view.listener_buffers, view.no_prompt_keys),
        (policies,),
        lambda: _listener_of(policies, view, port, routes, memo),
    )


def _listener_of(
    policies: PolicySet, view: View, port: int, routes: Sequence[ModelRoute], memo: Memo
) -> TranslatedResource:
    # The loader refuses routes that disagree about a port's listener; the order is deterministic anyway.
    address = view.listen_address or min(route.spec.listener.address for route in routes)
    origins = route_origins(policies, (route.metadata.name for route in routes))
    spec = routes[0].spec.listener
    # Each proxy may have its own bind address; packing this for each took 10 ms.
    # An Envoy that cannot read such keys balances requests as without one.
    lengths = () if view.no_prompt_keys else prefix_lengths(routes)
    static = any(route.spec.static_answer is not None for route in routes)
    strict = any(is_strict(route) for route in routes)
    prefill = any(route.spec.prefill is not None for route in routes)
    rules = [policies.effective[route.spec.pools[0].pool] for route in routes]
    estimate = token_estimate(
        routes,
        sized=any(depends_on_size(one) for one in rules),
        timed=any(one.timeouts.non_streaming.by_tokens.enabled for one in rules),
    )
    manager = memo.of(
        (LISTENER, port, view.no_prompt_keys),
        (spec, lengths, estimate, static, strict, prefill),
        lambda: connection_manager(
            spec, lengths, estimate, static_answers=static, keeps_sessions=strict, prefill=prefill
        ),
    )
    buffer_bytes = max(route.spec.max_body_bytes for route in routes) if view.listener_buffers else None
    return memo.of(
        (LISTENER, port, address, view.listener_buffers, view.no_prompt_keys),
        (address, origins, spec, buffer_bytes, lengths, estimate, static, strict, prefill),
        lambda: TranslatedResource(
            type_url=LISTENER,
            name=listener_name(port),
            message=listener(port, address, manager, tls=spec.tls, buffer_bytes=buffer_bytes),
            origins=origins,
        ),
    )


def _routes(
    policies: PolicySet,
    decisions: Decisions,
    port: int,
    routes: Sequence[ModelRoute],
    ready: tuple[tuple[Route, ...], ...],
    *,
    memo: Memo,
    cuts: bool,
) -> TranslatedResource:
    """The routes of a port; ``ready`` are the Envoy routes of each."""
    names = tuple([route.metadata.name for route in routes])
    proxies, used_up = decisions.quota_proxies.get(port, 1), decisions.used_up.get(port, NO_QUOTA_USED_UP)
    origins, places, limits = memo.identical(
        ("route origins", port, names),
        (policies,),
        lambda: (
            route_origins(policies, names),
            tuple(route_origins(policies, (name,)) for name in names),
            tuple(route.spec.max_body_bytes for route in routes),
        ),
    )
    return memo.of(
        (ROUTE, port, names, cuts),
        (ready, limits, places, routes[0].spec.listener.tenants, proxies, used_up),
        lambda: TranslatedResource(
            type_url=ROUTE,
            name=route_configuration_name(routes[0].spec.listener),
            message=route_configuration(routes, [one for some in ready for one in some], proxies, used_up),
            origins=origins,
            parts=tuple(
                TranslatedPart(
                    name=route.metadata.name,
                    count=len(mine),
                    rank=specificity(route),
                    instead=held_back_reply(route),
                    origins=place,
                )
                for route, mine, place in zip(routes, ready, places, strict=True)
            ),
        ),
    )


def _envoy_routes(
    policies: PolicySet, fleet: Fleet, decisions: Decisions, route: ModelRoute, memo: Memo, *, cuts: bool
) -> tuple[Route, ...]:
    state = pool_state(fleet, decisions, *route_pools(route))
    return memo.identical(
        ("envoy routes", route.metadata.name, cuts),
        (policies, *state),
        lambda: _envoy_routes_of(policies, fleet, decisions, route, memo, cuts=cuts),
    )


def _envoy_routes_of(
    policies: PolicySet, fleet: Fleet, decisions: Decisions, route: ModelRoute, memo: Memo, *, cuts: bool
) -> tuple[Route, ...]:
    # Envoy has one set of limits per route, so the first pool's limits apply to all of the route's pools.
    first = route.spec.pools[0].pool
    pool = policies.pools[first].spec
    spec, gated = policies.effective[first], pool.first_token_gate
    models = {name: policies.pools[name].spec.model for name in route_pools(route)}
    decided = route_decisions(decisions.pools.get(first), spec, cuts=cuts, longest_s=pool.longest_service_time)
    selected = engine_selection(route, policies)
    without = lost_pools(selected, route_pools(route), policies, fleet, decisions)
    left_alone = nobody_left(selected, route_pools(route), without)
    barred = barred_fallbacks(route, policies, fleet, decisions)
    answer = route.spec.static_answer
    lost = without | barred if answer is not None and answer.when_lost else frozenset()
    hop = cuts and uses_internal_listeners(spec)
    reach = RouteReach(
        nobody_left=left_alone,
        barred=barred,
        lost=lost,
        sessions=session_hosts(route, selected, fleet, decisions, model=pool.model, hop=hop),
        canary=canary_is_served(route, policies, fleet, decisions),
        loads_adapters=any(policies.pools[name].spec.adapters for name in models),
    )
    return memo.of(
        (ROUTE, route.metadata.name, cuts),
        # Decisions have a new reason each round; routes change only with their inputs.
        (route, spec, gated, models, decided.route_inputs, reach),
        lambda: envoy_routes(route, spec, gated=gated, decided=decided, models=models, reach=reach),
    )
