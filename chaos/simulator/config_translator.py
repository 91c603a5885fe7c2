"""Translate decisions into a simulated proxy's configuration, with the functions that configure Envoy. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from envoy_data_plane.envoy.service.runtime.v3 import Runtime

from chaos.simulator.caller_rules import (
    NO_PERCENTAGES,
    DeadlineRoute,
    deadline_routes,
    percentages,
    share_filters,
)
from chaos.simulator.proxy_config import (
    ClusterConfig,
    LocalityConfig,
    OutlierDetectionConfig,
    ProxyConfig,
    RequestLimits,
    RouteConfig,
    RouteEntries,
    UpstreamHost,
)
from chaos.simulator.quota_buckets import QuotaConfig, QuotaParts, quota_config
from chaos.testbed.request_shape import KINDS, RequestKind, RequestShape, meets
from policies.model import PolicySet
from policies.resilience import ResilienceSpec
from policies.route import ModelRoute, PriorityClass
from xds_server.decide.decisions import NO_PORT_PARTS, Decisions, DegradationState, Health
from xds_server.model.fleet import Fleet
from xds_server.model.memo import Memo
from xds_server.model.pool_traffic import Proxy
from xds_server.model.view import View
from xds_server.translate.affinity import bounded_load, slack_by_pool
from xds_server.translate.cluster_weights import barred_fallbacks, live_weights, ready_pools
from xds_server.translate.deadlines import deadline_mutations
from xds_server.translate.effective_spec import (
    RouteDecisions,
    at_most_once_spec,
    effective_spec,
    route_decisions,
)
from xds_server.translate.endpoints import ENGINE_LABEL, HEALTH_STATUS, EndpointForm, load_assignment
from xds_server.translate.engine_selection import engine_selection
from xds_server.translate.internal_listeners import uses_internal_listeners
from xds_server.translate.lua_scripts import STATIC_ANSWER
from xds_server.translate.pool_clusters import CHOICE_COUNT, outlier_detection
from xds_server.translate.prefillers import decode_pools, parsed_list, prefiller_lists, prefillers
from xds_server.translate.retry_policy import hedge_delay_s, try_timers
from xds_server.translate.route_configuration import (
    ALLOW_MODEL_CHANGE_HEADER,
    IDEMPOTENCY_KEY_HEADER,
    SIDE_EFFECTS_HEADER,
    by_specificity,
    entries_with_exit,
    envoy_routes,
    fallback_variants,
    reachable_pools,
    retries_may_leave,
    retries_suffice_to_leave,
    route_pools,
    weights_with_exit,
    with_route_failures,
)
from xds_server.translate.runtime import with_hedge_budget
from xds_server.translate.runtime_layers import runtime_resource
from xds_server.translate.strict_sessions import is_strict, session_hosts, session_token, strict_pools
from xds_server.translate.tenant_parts import tenant_costs
from xds_server.translate.tenant_quotas import QUOTA_FILTER, tenant_quotas
from xds_server.translate.tenant_share_limits import tenant_key

_HEALTHY: Final = HEALTH_STATUS[Health.HEALTHY]
_DRAINING: Final = HEALTH_STATUS[Health.DRAINING]
_STATUS_CODES: Final = "retriable-status-codes"
_VARIANT_HEADERS: Final = frozenset({SIDE_EFFECTS_HEADER, IDEMPOTENCY_KEY_HEADER, ALLOW_MODEL_CHANGE_HEADER})
"""Headers by which the Envoy routes of a ModelRoute differ, except that of deadlines."""


class ProxyConfigTranslator:
    """Translates decisions into each proxy's configuration; caches its results."""

    def __init__(self, policies: PolicySet, shape: RequestShape, port: int) -> None:
        self.port = port
        self._policies = policies
        self._memo = Memo()
        on_port = [one for one in policies.routes.values() if one.spec.listener.port == port]
        self._routes = by_specificity(on_port)
        self._listener = on_port[0].spec.listener if on_port else None
        deadline = None if self._listener is None else self._listener.deadline
        self._mutations = tuple(deadline_mutations(deadline))
        self._shares = {one.metadata.name: share_filters(tenant_key(one)) for one in on_port}
        self._shape = shape
        self._prefilled_by = decode_pools(policies)
        self._slacks = slack_by_pool(policies.routes)
        self._strict = strict_pools(policies.routes)
        self._clusters = {
            name: MappingProxyType(
                {
                    cuts: _cluster(policies.effective[name], cuts=cuts, slack_percent=self._slacks.get(name))
                    for cuts in (False, True)
                }
            )
            for name in policies.pools
        }

    def proxy_config(self, fleet: Fleet, decisions: Decisions, proxy: Proxy) -> ProxyConfig:
        """Configuration of this proxy for these decisions."""
        pools = self._policies.pools
        return ProxyConfig(
            clusters=MappingProxyType({name: self._clusters[name][proxy.cuts] for name in pools}),
            localities=MappingProxyType({name: self._localities(name, fleet, decisions, proxy) for name in pools}),
            limits=MappingProxyType({name: self._limits(name, decisions, proxy) for name in pools}),
            rules=MappingProxyType(
                {
                    kind: rules
                    for kind in KINDS
                    if (rules := self._rules(fleet, decisions, proxy, kind)) is not None
                }
            ),
            prefillers=self._prefillers(fleet, decisions),
            cut=frozenset(
                (key.pool, key.engine)
                for key, one in decisions.engines.items()
                if one.cut and proxy.cuts and uses_internal_listeners(self._policies.effective[key.pool])
            ),
            quotas=self._quotas(decisions),
            parts=self._parts(decisions, proxy),
            mutations=self._mutations,
            percentages=self._percentages(fleet, decisions, proxy),
        )

    def _quotas(self, decisions: Decisions) -> QuotaConfig | None:
        """The buckets of the port's tenants."""
        listener = self._listener
        if listener is None or listener.tenants is None or not listener.tenants.has_quotas:
            return None
        proxies = decisions.quota_proxies.get(self.port, 1)
        return self._memo.of(
            "quotas", (proxies,), lambda: quota_config(tenant_quotas(listener, proxies)[QUOTA_FILTER])
        )

    def _parts(self, decisions: Decisions, proxy: Proxy) -> QuotaParts | None:
        """What requests of the port's tenants take from these buckets at this proxy."""
        tenants = None if self._listener is None else self._listener.tenants
        if tenants is None or not tenants.has_quotas:
            return None
        parts = decisions.quota_parts.get(self.port, NO_PORT_PARTS)
        return self._memo.identical(
            ("parts", proxy.node),
            (parts,),
            lambda: QuotaParts(header=tenants.header, costs=tenant_costs(tenants, parts, proxy.node)),
        )

    def _percentages(self, fleet: Fleet, decisions: Decisions, proxy: Proxy) -> Mapping[str, float]:
        """The runtime layer's parts of requests, if routes or filters look them up."""
        if not self._mutations and not any(self._shares.values()):
            return NO_PERCENTAGES
        layer = runtime_resource(
            self._policies, fleet, decisions, View(role=proxy.role), proxy.node, memo=self._memo
        ).message
        assert isinstance(layer, Runtime)  # noqa: S101 -- the resource of this type
        return self._memo.identical(("percentages", proxy.node), (layer,), lambda: percentages(layer))

    def _deadlines(
        self,
        route: ModelRoute,
        said: ResilienceSpec,
        decided: RouteDecisions,
        models: Mapping[str, str],
        *,
        gated: bool,
        streaming: bool,
    ) -> tuple[DeadlineRoute, ...]:
        """The generated routes, as far as they read deadlines."""
        deadline = route.spec.listener.deadline
        if deadline is None:
            return ()
        return self._memo.of(
            ("deadlines", route.metadata.name, streaming),
            (said, decided.route_inputs, gated),
            lambda: deadline_routes(
                envoy_routes(route, said, gated=gated, decided=decided, models=models),
                streaming=streaming,
                headers={*_VARIANT_HEADERS, deadline.header},
            ),
        )

    def _localities(
        self, pool: str, fleet: Fleet, decisions: Decisions, proxy: Proxy
    ) -> tuple[LocalityConfig, ...]:
        spec = load_assignment(
            pool,
            fleet.pools[pool],
            decisions,
            proxy.zone,
            self._memo,
            region=proxy.region,
            form=EndpointForm(hashed=pool in self._slacks, strict=pool in self._strict),
        )
        return tuple(
            LocalityConfig(
                zone=one.zone,
                weight=one.weight,
                hosts=tuple(
                    UpstreamHost(
                        engine=str(dict(host.labels)[ENGINE_LABEL]),
                        weight=host.weight or 1,
                        healthy=host.health == _HEALTHY,
                        draining=host.health == _DRAINING,
                    )
                    for host in one.endpoints
                ),
                priority=one.priority,
                overprovisioning=(spec.overprovisioning_percent or 100) / 100,
            )
            for one in spec.localities
        )

    def _prefillers(
        self, fleet: Fleet, decisions: Decisions
    ) -> Mapping[tuple[str, str], tuple[tuple[str, int], ...]]:
        """The lists of all decode engines, as their endpoints carry them."""
        found: dict[tuple[str, str], tuple[tuple[str, int], ...]] = {}
        for pool, partner in self._prefilled_by.items():
            if not partner:
                continue
            engines = prefillers(self._policies, fleet, decisions, partner)
            names = {one.address: one.engine.id.engine for one in engines}
            for key, text in prefiller_lists(fleet.pools[pool], decisions, engines).items():
                entries = parsed_list(text)
                found[key.pool, key.engine] = tuple(
                    (names.get(address, ""), weight) for address, weight in entries
                )
        return MappingProxyType(found)

    def _limits(self, pool: str, decisions: Decisions, proxy: Proxy) -> RequestLimits:
        decided = decisions.pools.get(pool)
        own = None if decided is None or decided.admission is None else decided.admission.by_proxy.get(proxy.node)
        ceiling = own or decisions.ceilings.get((pool, proxy.role))
        if ceiling is None:
            return RequestLimits()
        hedging = self._policies.effective[pool].hedging
        ceiling = with_hedge_budget(ceiling, hedging, None if decided is None else decided.hedge)
        return RequestLimits(
            interactive=ceiling.interactive,
            batch=ceiling.batch,
            retry_percent=ceiling.retry_percent,
            retry_min_concurrency=ceiling.retry_min_concurrency,
        )

    def _rules(self, fleet: Fleet, decisions: Decisions, proxy: Proxy, kind: RequestKind) -> RouteConfig | None:
        """Configuration of the route that matches such a request; None without a match."""
        route = next((one for one in self._routes if meets(one, self._shape, kind)), None)
        return None if route is None else self._of_route(route, fleet, decisions, proxy, streaming=kind.streaming)

    def _of_route(
        self, route: ModelRoute, fleet: Fleet, decisions: Decisions, proxy: Proxy, *, streaming: bool
    ) -> RouteConfig:
        # As in Envoy: the first pool's settings apply to all of the route's pools.
        first = route.spec.pools[0].pool
        said, gated = self._policies.effective[first], self._policies.pools[first].spec.first_token_gate
        decided = decisions.pools.get(first)
        in_force = route_decisions(decided, said, cuts=proxy.cuts)
        models = {pool: self._policies.pools[pool].spec.model for pool in route_pools(route)}
        deadlines = self._deadlines(route, said, in_force, models, gated=gated, streaming=streaming)
        spec = with_route_failures(route, said, effective_spec(said, in_force, streaming=streaming))
        level = in_force.degradation
        if route.spec.side_effects:
            spec, gated = at_most_once_spec(spec), False
        # Simulated callers never accept another model; the last variant is for those that do.
        pools = reachable_pools(route, fallback_variants(route, models)[-1])
        ladders = {name: one.degradation for name, one in decisions.pools.items() if one.degradation is not None}
        ready = ready_pools(fleet, decisions)
        weights = live_weights(route, pools, ready, ladders)
        barred = barred_fallbacks(route, self._policies, fleet, decisions)
        rules = _rules(
            spec,
            weights,
            batch=route.spec.priority is PriorityClass.BATCH,
            streaming=streaming,
            gated=gated,
            level=level,
            refuse=_answer_without_engine(route, level),
            other_models=_other_models(route, models),
        )
        rules = replace(
            rules,
            deadlines=deadlines,
            shares=self._shares[route.metadata.name],
            among=self._among(route, fleet) if route.spec.adapter else None,
        )
        if route.spec.prefill is not None:
            prefill = route.spec.prefill
            rules = replace(rules, prefill_percent=prefill.percent, prefill_above=prefill.tokens_above or 0)
        if is_strict(route):
            rules = replace(rules, sessions=self._sessions(route, fleet, decisions))
        elif route.spec.affinity is not None:
            rules = replace(rules, keyed=True)
        if rules.hedges or not (
            retries_may_leave(route, pools, models, barred) and retries_suffice_to_leave(rules.attempts)
        ):
            return rules
        usable = next((tier for tier in ready if tier), {})
        exits = {
            pool: RouteEntries(entries=entries_with_exit(route, pool), weight=weight)
            for pool, weight in weights_with_exit(route, weights, usable).items()
        }
        return replace(rules, exits=MappingProxyType(exits))

    def _among(self, route: ModelRoute, fleet: Fleet) -> frozenset[str]:
        """Engines of all pools that may serve the route's adapter."""
        selected = engine_selection(route, self._policies)
        return frozenset(
            engine.id.engine
            for pool in route_pools(route)
            for engine in fleet.pools[pool]
            if selected.admits(engine, self._policies.pools[pool].spec.model)
        )

    def _sessions(self, route: ModelRoute, fleet: Fleet, decisions: Decisions) -> Mapping[str, float]:
        """Engines that keep sessions of a strict route, with the percentage that each keeps."""
        pool = route.spec.pools[0].pool
        hosts = session_hosts(
            route,
            engine_selection(route, self._policies),
            fleet,
            decisions,
            model=self._policies.pools[pool].spec.model,
            hop=False,
        )
        names = {session_token(one.id): one.id.engine for one in fleet.pools.get(pool, ())}
        return MappingProxyType({names[one.token]: one.kept_percent for one in hosts})


def _rules(
    spec: ResilienceSpec,
    weights: Mapping[str, int],
    *,
    batch: bool,
    streaming: bool,
    gated: bool,
    level: DegradationState | None,
    refuse: str,
    other_models: frozenset[str],
) -> RouteConfig:
    timers = try_timers(spec, streaming=streaming, gated=gated)
    hedges = hedge_delay_s(spec, streaming=streaming, gated=gated) is not None
    retries = spec.retries
    conditions = {one.value for one in retries.conditions} if retries.attempts else set()
    if retries.attempts and retries.statuses_in_force:
        conditions.add(_STATUS_CODES)
    return RouteConfig(
        weights=weights,
        batch=batch,
        retried=frozenset(conditions),
        statuses=frozenset(retries.statuses_in_force if retries.attempts else ()),
        attempts=max(retries.attempts, 1) if hedges else retries.attempts,
        hedges=hedges,
        elsewhere=True,
        per_try_s=timers.per_try_s,
        per_try_idle_s=timers.per_try_idle_s,
        idle_s=timers.idle_s,
        total_s=0.0 if streaming else spec.timeouts.non_streaming.total,
        stream_total_s=spec.timeouts.streaming.total if streaming else 0.0,
        backoff_base_s=retries.backoff.base,
        backoff_max_s=max(retries.backoff.base, retries.backoff.max),
        retry_after_most_s=retries.retry_after.max if retries.retry_after.honour else None,
        refuse=refuse,
        max_tokens=None if level is None else level.max_tokens,
        reduces_answers=level is not None and level.reduces_answers,
        other_models=other_models,
    )


def _answer_without_engine(route: ModelRoute, level: DegradationState | None) -> str:
    """Reason of the answer that every request of the route gets at this level; empty if engines answer."""
    if level is None:
        return ""
    answer = route.spec.static_answer
    if answer is not None and answer.applies_at(level.acting_level):
        return STATIC_ANSWER
    return "maintenance" if level.maintenance else ""


def _cluster(spec: ResilienceSpec, *, cuts: bool, slack_percent: float | None) -> ClusterConfig:
    said = outlier_detection(spec.breaker, hedged=spec.hedging.enabled, hop=cuts and uses_internal_listeners(spec))
    enforced_local = bool(said.enforcing_consecutive_local_origin_failure)
    as_gateway = bool(said.enforcing_consecutive_gateway_failure)
    return ClusterConfig(
        round_robin=False,
        choices=CHOICE_COUNT,
        panic_percent=0.0,
        connect_s=spec.timeouts.connect,
        connections=spec.limits.max_connections,
        hedged=spec.hedging.enabled,
        bound_percent=None if slack_percent is None else bounded_load(slack_percent).hash_balance_factor,
        outliers=OutlierDetectionConfig(
            statuses=frozenset(spec.breaker.count_statuses),
            consecutive=(said.consecutive_5xx or 0) if said.enforcing_consecutive_5xx else 0,
            consecutive_local=(
                (said.consecutive_local_origin_failure or 0)
                if enforced_local
                else (said.consecutive_gateway_failure or 0)
                if as_gateway
                else 0
            ),
            split=bool(said.split_external_local_origin_errors),
            local_as_gateway=as_gateway,
            failure_percent=(said.failure_percentage_threshold or 0) if said.enforcing_failure_percentage else 0,
            failure_volume=said.failure_percentage_request_volume or 0,
            interval_s=min(spec.breaker.interval, spec.breaker.local_ejection),
            base_ejection_s=spec.breaker.local_ejection,
            max_ejection_s=max(spec.breaker.cooldown, spec.breaker.local_ejection),
            max_ejection_percent=float(said.max_ejection_percent or 0),
        ),
    )


def _other_models(route: ModelRoute, models: Mapping[str, str]) -> frozenset[str]:
    """Fallbacks that answer with another model and are marked as such."""
    model = models.get(route.spec.pools[0].pool)
    return frozenset(pool for pool in route.spec.fallbacks if models.get(pool) != model)
