"""Routes: one RouteConfiguration per port, with all request settings that operators edit.

Routes apply edits and slow-changing decisions (``in_force``) without affecting requests in flight. Each
ModelRoute becomes a streaming and a non-streaming Envoy route with different timeouts. Requests that must not run
twice, or that accept another model, have separate routes before these. Weights are in the runtime layer
(``weights``), so activating a fallback does not change this resource.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from envoy_data_plane.envoy.config.core.v3 import (
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
    RoutingPriority,
)
from envoy_data_plane.envoy.config.route.v3 import (
    HeaderMatcher,
    Route,
    RouteAction,
    RouteActionMaxStreamDuration,
    RouteConfiguration,
    VirtualHost,
    WeightedCluster,
    WeightedClusterClusterWeight,
)
from envoy_data_plane.google.protobuf import Any

from policies.deadline import Deadline
from policies.listener import Listener
from policies.merge import BAD_GATEWAY
from policies.resilience import ResilienceSpec
from policies.route import ModelChange, ModelRoute, PriorityClass
from xds_server.decide.decisions import DeadlineSteps, TokenTimeLimit, UsedUpQuota
from xds_server.translate.adapter_canary import canary_routes
from xds_server.translate.affinity import hash_policy
from xds_server.translate.deadlines import deadline_below, states_deadline
from xds_server.translate.effective_spec import (
    NO_ROUTE_DECISIONS,
    RouteDecisions,
    at_most_once_spec,
    effective_spec,
    unhedged_spec,
)
from xds_server.translate.envoy_values import seconds
from xds_server.translate.local_reply_routes import (
    adapter_load_refusal,
    answer_limit,
    deadline_replies,
    maintenance_reply,
    no_route_reply,
    static_reply,
    token_limit_replies,
    unselected_reply,
    with_runtime_key,
)
from xds_server.translate.lua_scripts import AnswerLimit, limit_answers, rewrite_model
from xds_server.translate.prefill_filters import callers_headers, names_prefiller
from xds_server.translate.public_routes import unchecked
from xds_server.translate.request_fields import ESTIMATED_TOKENS_KEY, LIMITED_TO_KEY, REQUEST_METADATA
from xds_server.translate.request_sizes import SizeRule, full_key, size_rules, time_limit_metadata
from xds_server.translate.residency import metadata_match
from xds_server.translate.retry_policy import hedge_policy, retry_policy, try_timers
from xds_server.translate.route_match import (
    header_absent,
    header_is_true,
    header_present,
    route_match,
    tokens_field_above,
)
from xds_server.translate.runtime import weights_prefix
from xds_server.translate.served_model import SERVED_MODEL_HEADER, of_an_engine
from xds_server.translate.stated_fields import stated_field_refusals, well_formed
from xds_server.translate.strict_sessions import (
    HOST_HEADER,
    SERVED_FORMAT,
    SERVED_HEADER,
    SessionHost,
    session_config,
)
from xds_server.translate.tenant_quotas import NO_QUOTA_USED_UP, tenant_quotas
from xds_server.translate.tenant_share_limits import tenant_key, tenant_key_headers

ROUTING_PRIORITY: Final = {
    PriorityClass.INTERACTIVE: RoutingPriority.HIGH,
    PriorityClass.BATCH: RoutingPriority.DEFAULT,
}
"""Envoy counts priorities separately, so each class has its own admission limit."""

SIDE_EFFECTS_HEADER: Final = "x-switchgear-side-effects"
IDEMPOTENCY_KEY_HEADER: Final = "idempotency-key"
ALLOW_MODEL_CHANGE_HEADER: Final = "x-switchgear-allow-model-change"
FALLBACK_HEADER: Final = "x-switchgear-fallback"
ANSWER_LIMIT_HEADER: Final = "x-switchgear-answer-limit"
"""On answers whose request a degradation level changed: the most tokens that it asked the engine for."""

TRIES_IN_A_POOL: Final = 2
"""Tries in the pools that a request was routed to before a retry may leave for a fallback.

One failed try may be an engine's fault; after two the pool's is likely.
"""

NOT_FOUND: Final = 404
"""vLLM's answer for a model or an adapter that it does not serve."""

_MOST_TRIES: Final = 11
"""The first one and the most retries that a policy may ask for."""

_SCALE: Final = 100_000_000
"""Of weights where retries may leave; Envoy's limit for their sum is 2^32."""

_EXIT_WEIGHT: Final = 100
"""Weight of the fallback that a retry leaves for; others have 1. It gets one in two million first tries."""

_LIMITED_TO: Final = (
    f"%CEL(response.flags == 0 ? metadata.filter_metadata['{REQUEST_METADATA}'].{LIMITED_TO_KEY} : '')%"
)
"""Without a value Envoy adds no header: in local replies, and if the request was not changed."""

_NO_MODELS: Final[Mapping[str, str]] = MappingProxyType({})


def route_configuration_name(listener: Listener) -> str:
    """Name of the routes of this listener.

    Another one if callers state fields in headers: while a port changes between the two, Envoy serves the old
    listener with its own routes until the new one has those it needs.
    """
    return f"{_host_name(listener.port)}{'-headers' if listener.reads_headers else ''}"


def _host_name(port: int) -> str:
    return f"port-{port}"


def by_specificity(routes: Iterable[ModelRoute]) -> list[ModelRoute]:
    """Routes in Envoy's matching order: more conditions first, then by name."""
    return sorted(routes, key=lambda route: (specificity(route), route.metadata.name))


def specificity(route: ModelRoute) -> tuple[int, ...]:
    """Rank of a route in Envoy's matching order, without its name."""
    match = route.spec.match
    return (
        -len(match.path_prefix),
        -len(match.headers),
        int(match.model is None),
        int(match.stream is None),
        -(match.tokens_above or 0),
    )


def route_configuration(
    of: Sequence[ModelRoute],
    routes: Sequence[Route],
    proxies: int = 1,
    used_up: Mapping[str, UsedUpQuota] = NO_QUOTA_USED_UP,
) -> RouteConfiguration:
    """Routes of a port in this order, with replies for unmatched requests. ``of``: the ModelRoutes of the port.

    ``proxies`` divide the quotas of the port's tenants; ``used_up`` are quotas of calendar periods, by tenant.
    """
    listener = of[0].spec.listener
    return RouteConfiguration(
        name=route_configuration_name(listener),
        virtual_hosts=[
            VirtualHost(
                name=_host_name(listener.port),
                domains=["*"],
                routes=[*routes, *stated_field_refusals(of), no_route_reply()],
                include_request_attempt_count=True,
                typed_per_filter_config=tenant_quotas(listener, proxies, used_up),
                # The largest: a body may be read before its route is known.
                request_body_buffer_limit=max(route.spec.max_body_bytes for route in of),
            )
        ],
        # A cluster may arrive after its route; Envoy then replies 503 and names it.
        validate_clusters=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteVariant:
    """Some requests of a route: those with these headers, and what is allowed for them.

    ``name``: part of the Envoy route's name. ``fallbacks``: those that may serve them, in order. ``once``: must
    not run twice. ``deadline``: they have one. ``hurried``: it is too short for another try that a timer starts.
    """

    name: str = ""
    headers: tuple[HeaderMatcher, ...] = ()
    fallbacks: tuple[str, ...] = ()
    once: bool = False
    deadline: Deadline | None = None
    hurried: bool = False
    size: SizeRule | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteReach:
    """Which engines a route can reach now.

    ``nobody_left``: no engine in the route's regions, or with its adapter, is in rotation. ``barred``: pools that
    retries must not leave for. ``lost``: pools that the static answer stands in for. ``sessions``: engines that
    may keep sessions. ``canary``: the route's adapter has a canary that each pool can serve. ``loads_adapters``:
    some of them load adapters while they run.
    """

    nobody_left: bool = False
    barred: Collection[str] = ()
    lost: frozenset[str] = frozenset()
    sessions: Sequence[SessionHost] = ()
    canary: bool = False
    loads_adapters: bool = False


_ALL: Final = RouteReach()


def envoy_routes(
    route: ModelRoute,
    spec: ResilienceSpec,
    *,
    gated: bool,
    decided: RouteDecisions = NO_ROUTE_DECISIONS,
    models: Mapping[str, str] = _NO_MODELS,
    reach: RouteReach = _ALL,
) -> tuple[Route, ...]:
    """Envoy routes of a ModelRoute, in order.

    Refusals first, then requests with special headers, then all others; streams first. ``models``: model of each
    pool.
    """
    lost, barred = reach.lost, reach.barred
    level, answer = decided.degradation, route.spec.static_answer
    if answer is not None and level is not None and answer.applies_at(level.acting_level):
        return (static_reply(route, answer),)
    if level is not None and level.maintenance:
        return (maintenance_reply(route, level.maintenance),)
    if reach.nobody_left and not lost:
        return (unselected_reply(route),)
    most = None if level is None else level.max_tokens
    reduces = level is not None and level.reduces_answers
    refused = () if most is None or reduces else token_limit_replies(route, most)
    limit = answer_limit(most) if most is not None and reduces else None
    kept = session_config(route.spec.affinity, reach.sessions)
    wanted = route.spec.match.stream
    rules = {
        streaming: with_route_failures(route, spec, effective_spec(spec, decided, streaming=streaming))
        for streaming in ((True, False) if wanted is None else (wanted,))
    }
    steps = {streaming: _deadline_steps(decided, streaming=streaming) for streaming in rules}
    times = None if decided.limits is None else decided.limits.by_tokens

    def served(who: RouteVariant) -> Iterator[Route]:
        if answer is not None and lost.issuperset(reachable_pools(route, who)):
            yield static_reply(route, answer, who.name, who.headers)
            return
        for streaming, now in rules.items():
            for size in _sizes(route, now, gated=gated):
                sized = replace(who, name=f"{who.name}{size.name}", size=size)
                for some in _deadline_variants(
                    route, size.spec, sized, steps[streaming], streaming=streaming, gated=size.gated
                ):
                    for variant, action in _idempotency_variants(
                        route, some, size, models=models, streaming=streaming, barred=barred, limit=limit
                    ):
                        made = _envoy_route(
                            route, variant, action, streaming=streaming, limit=limit, kept=kept, times=times
                        )
                        if reach.canary:
                            yield from canary_routes(route, made, limit)
                        yield made

    hopeless = (
        reply for streaming in rules for reply in deadline_replies(route, steps[streaming], streaming=streaming)
    )
    closed = (adapter_load_refusal(),) if reach.loads_adapters else ()
    return (
        *closed,
        *refused,
        *hopeless,
        *(one for who in fallback_variants(route, models) for one in served(who)),
    )


def with_route_failures(route: ModelRoute, written: ResilienceSpec, rules: ResilienceSpec) -> ResilienceSpec:
    """These rules, and another try for failures of this kind of route.

    A side-car that could not reach the prefill engine draws another one. An engine that lost the adapter answers
    404 until its list is read again.
    """
    also = {BAD_GATEWAY} if route.spec.prefill is not None else {NOT_FOUND} if route.spec.adapter else set()
    if not also or written.retries.statuses is not None:
        return rules
    statuses = tuple(sorted({*rules.retries.statuses_in_force, *also}))
    return rules.model_copy(update={"retries": rules.retries.model_copy(update={"statuses": statuses})})


def _sizes(route: ModelRoute, spec: ResilienceSpec, *, gated: bool) -> Iterable[SizeRule]:
    """The rules by size; only those of all requests where Envoy does not read bodies."""
    if route.spec.listener.reads_headers:
        return (SizeRule(spec=spec, gated=gated),)
    return size_rules(spec, gated=gated)


def _deadline_steps(decided: RouteDecisions, *, streaming: bool) -> DeadlineSteps | None:
    if decided.deadline is None:
        return None
    return decided.deadline.stream if streaming else decided.deadline.answer


def _deadline_variants(
    route: ModelRoute,
    spec: ResilienceSpec,
    who: RouteVariant,
    steps: DeadlineSteps | None,
    *,
    streaming: bool,
    gated: bool,
) -> Iterator[RouteVariant]:
    """Variants with a deadline before those without one, if the listener reads deadlines."""
    deadline = route.spec.listener.deadline
    if deadline is not None:
        again_s = try_timers(spec, streaming=streaming, gated=gated).per_try_s
        if again_s is not None and steps is not None:
            below = deadline_below(deadline, again_s + steps.base_s)
            headers = (*who.headers, below)
            name = f"{who.name}/short-deadline"
            yield replace(who, name=name, headers=headers, deadline=deadline, hurried=True)
        headers = (*who.headers, states_deadline(deadline))
        yield replace(who, name=f"{who.name}/deadline", headers=headers, deadline=deadline)
    yield who


def _envoy_route(
    route: ModelRoute,
    variant: RouteVariant,
    action: RouteAction,
    *,
    streaming: bool,
    limit: AnswerLimit | None,
    kept: Mapping[str, Any],
    times: TokenTimeLimit | None,
) -> Route:
    kind = "streaming" if streaming else "non-streaming"
    name = f"{route.metadata.name}/{kind}{variant.name}"
    match, stated = route.spec.match, route.spec.listener.reads_headers
    checks = well_formed(match, streaming=streaming) if stated else ()
    told = {} if limit is None else {ANSWER_LIMIT_HEADER: _LIMITED_TO}
    told |= {SERVED_HEADER: SERVED_FORMAT} if kept else {}
    size = variant.size
    fields = [] if size is None or size.above is None else [tokens_field_above(ESTIMATED_TOKENS_KEY, size.above)]
    made = Route(
        name=name,
        match=route_match(
            match, streaming=streaming, headers=(*variant.headers, *checks), fields=fields, stated=stated
        ),
        # Without another try a limit would only end what may yet succeed.
        metadata=None
        if size is None or stated or variant.once
        else time_limit_metadata(size.spec, times, streaming=streaming, hurried=variant.hurried),
        route=action,
        typed_per_filter_config={
            **unchecked(route),
            **limit_answers(limit),
            **names_prefiller(route),
            **kept,
            **tenant_key(route),
        },
        request_headers_to_remove=[
            *callers_headers(route),
            *([HOST_HEADER] if kept else []),
            *tenant_key_headers(route),
        ],
        response_headers_to_add=[_header(key, value) for key, value in told.items()],
        request_body_buffer_limit=route.spec.max_body_bytes,
        stat_prefix=name.replace("/", "."),
    )
    return with_runtime_key(made, full_key(route.spec.pools[0].pool)) if size is not None and size.full else made


def fallback_variants(route: ModelRoute, models: Mapping[str, str]) -> tuple[RouteVariant, ...]:
    """Variants with and without fallbacks that serve another model, in matching order."""
    every, model = route.spec.fallbacks, models.get(route.spec.pools[0].pool)
    same_model = tuple(pool for pool in every if models.get(pool) == model)
    if same_model == every or route.spec.model_change is ModelChange.DISCLOSED:
        return (RouteVariant(fallbacks=every),)
    stays = RouteVariant(fallbacks=same_model)
    if route.spec.model_change is ModelChange.NEVER:
        return (stays,)
    accepts = (header_is_true(ALLOW_MODEL_CHANGE_HEADER),)
    return (RouteVariant(name="/any-model", headers=accepts, fallbacks=every), stays)


def _idempotency_variants(
    route: ModelRoute,
    who: RouteVariant,
    size: SizeRule,
    *,
    models: Mapping[str, str],
    streaming: bool,
    barred: Collection[str],
    limit: AnswerLimit | None,
) -> Iterator[tuple[RouteVariant, RouteAction]]:
    """Variants that may and may not run twice; a single one if there is no difference."""
    pools, spec = reachable_pools(route, who), size.spec

    def action(rules: ResilienceSpec, *, gate: bool) -> RouteAction:
        made = _action(route, rules, who, streaming=streaming, gated=gate)
        if len({models.get(pool) for pool in pools}) == 1:
            made.metadata_match = metadata_match(route, route.spec.adapter_name)
        if len(pools) == 1:
            made.cluster = pools[0]
        elif retries_may_leave(route, pools, models, barred):
            made.weighted_clusters = _weighted_with_exit(route, pools)
            if made.retry_policy is not None and retries_suffice_to_leave(made.retry_policy.num_retries):
                made.retry_policy.refresh_cluster_on_retry = True
        else:
            made.weighted_clusters = _weighted(route, pools, models, limit)
        return made

    freely = action(spec, gate=size.gated)
    # Without the gate's rules: with no retry, no try is given up for a late first token.
    once = action(at_most_once_spec(spec), gate=False)
    name, headers = f"{who.name}/once", who.headers
    keyed = header_present(IDEMPOTENCY_KEY_HEADER)
    if once == freely:
        yield who, freely
    elif route.spec.side_effects:
        yield replace(who, headers=(*headers, keyed)), freely
        yield replace(who, name=name, once=True), once
    else:
        marked = (header_is_true(SIDE_EFFECTS_HEADER), header_absent(IDEMPOTENCY_KEY_HEADER))
        yield replace(who, name=name, headers=(*headers, *marked), once=True), once
        yield who, freely


def _action(
    route: ModelRoute, spec: ResilienceSpec, who: RouteVariant, *, streaming: bool, gated: bool
) -> RouteAction:
    if who.hurried:
        spec = unhedged_spec(spec)
    timeouts, deadline = spec.timeouts, who.deadline
    total_s = timeouts.streaming.total if streaming else timeouts.non_streaming.total
    timers = try_timers(spec, streaming=streaming, gated=gated)
    retries = retry_policy(spec, streaming=streaming, gated=gated)
    if who.hurried:
        retries.per_try_timeout = None
    return RouteAction(
        priority=ROUTING_PRIORITY[route.spec.priority],
        metadata_match=metadata_match(route),
        hash_policy=hash_policy(route),
        # Zero disables Envoy's default of 15 s.
        timeout=seconds(0 if streaming else total_s),
        idle_timeout=seconds(timers.idle_s or 0),
        # Only here: a route with this field, even if zero, ignores its timeout (observed with Envoy 1.40).
        max_stream_duration=None
        if not streaming and deadline is None
        else RouteActionMaxStreamDuration(
            max_stream_duration=seconds(total_s),
            grpc_timeout_header_max=None if deadline is None else seconds(deadline.limit_s(total_s)),
        ),
        retry_policy=retries,
        hedge_policy=hedge_policy(spec, streaming=streaming, gated=gated),
    )


def route_pools(route: ModelRoute) -> tuple[str, ...]:
    """Pools a route can send to, fallbacks last; without duplicates."""
    return reachable_pools(route, RouteVariant(fallbacks=route.spec.fallbacks))


def reachable_pools(route: ModelRoute, who: RouteVariant) -> tuple[str, ...]:
    """Pools these requests can go to, fallbacks last; without duplicates."""
    return tuple(dict.fromkeys((*(share.pool for share in route.spec.pools), *who.fallbacks)))


def declared_weights(route: ModelRoute, pools: Sequence[str]) -> dict[str, int]:
    """Declared weight of each of these pools; 0 for fallbacks."""
    weights = dict.fromkeys(pools, 0)
    for share in route.spec.pools:
        weights[share.pool] += share.weight
    if not any(weights.values()):
        # Envoy refuses all-zero weights; share evenly.
        weights |= {share.pool: 1 for share in route.spec.pools}
    return weights


def weights_name(route: ModelRoute, pools: Sequence[str]) -> str:
    """Name of the live weights over these pools of the route, unique per set of pools."""
    name = route.metadata.name
    return name if len(pools) == len(route_pools(route)) else f"{name}/stay"


def _weighted(
    route: ModelRoute, pools: Sequence[str], models: Mapping[str, str], limit: AnswerLimit | None
) -> WeightedCluster:
    first_model = models.get(route.spec.pools[0].pool)
    # Other models do not have the adapter.
    with_adapter = metadata_match(route, route.spec.adapter_name) if route.spec.adapter_name else None
    return WeightedCluster(
        clusters=[
            _weight(pool, weight, models[pool], is_fallback=pool in route.spec.fallbacks, limit=limit)
            if first_model is not None and models[pool] != first_model
            else WeightedClusterClusterWeight(name=pool, weight=weight, metadata_match=with_adapter)
            for pool, weight in declared_weights(route, pools).items()
        ],
        runtime_key_prefix=weights_prefix(weights_name(route, pools)),
    )


def retries_may_leave(
    route: ModelRoute, pools: Sequence[str], models: Mapping[str, str], barred: Collection[str]
) -> bool:
    """Whether a retry of these requests may go to a fallback: all pools have one model.

    Envoy rewrites the body before the first try, and not again for another pool.
    """
    return (
        any(pool in route.spec.fallbacks for pool in pools)
        and not set(barred).intersection(pools)
        and len({models.get(pool, pool) for pool in pools}) == 1
    )


def retries_suffice_to_leave(retries: int | None) -> bool:
    """Whether a request has a retry left after its tries in a pool."""
    return (retries or 0) >= TRIES_IN_A_POOL


def weights_with_exit(route: ModelRoute, live: Mapping[str, int], usable: Collection[str]) -> dict[str, int]:
    """These weights for ``_weighted_with_exit``; a retry leaves for the first usable fallback.

    No fallback has weight 0: Envoy must find an entry when those of the targets are used up.
    """
    total = sum(live.values())
    fallbacks = [pool for pool in route.spec.fallbacks if pool in live]
    first = next((pool for pool in fallbacks if pool in usable), fallbacks[0])
    least = {pool: _EXIT_WEIGHT if pool == first else 1 for pool in fallbacks}
    return {
        # Shares do not depend on the number of entries.
        pool: max(least.get(pool, 0), round(weight / total * _SCALE * _MOST_TRIES * TRIES_IN_A_POOL / entries))
        for pool, weight in live.items()
        for entries in (entries_with_exit(route, pool),)
    }


def entries_with_exit(route: ModelRoute, pool: str) -> int:
    """How often ``_weighted_with_exit`` lists a pool."""
    return _MOST_TRIES if pool in route.spec.fallbacks else TRIES_IN_A_POOL


def _weighted_with_exit(route: ModelRoute, pools: Sequence[str]) -> WeightedCluster:
    """Each pool several times: for each retry, Envoy draws among the entries that the request has not used.

    So a request has two tries in the pools with weight, and leaves for a fallback then. There it finds enough
    entries for every retry. Envoy before 1.39 ignores it and stays in the pool.
    """
    weights = weights_with_exit(route, declared_weights(route, pools), pools)
    return WeightedCluster(
        clusters=[
            WeightedClusterClusterWeight(name=pool, weight=weight)
            for pool, weight in weights.items()
            for _ in range(entries_with_exit(route, pool))
        ],
        runtime_key_prefix=weights_prefix(weights_name(route, pools)),
    )


def _weight(
    pool: str, weight: int, model: str, *, is_fallback: bool, limit: AnswerLimit | None
) -> WeightedClusterClusterWeight:
    """A pool with another model than the route's first: requests must name its model."""
    told = {SERVED_MODEL_HEADER: model, FALLBACK_HEADER: pool} if is_fallback else {}
    return WeightedClusterClusterWeight(
        name=pool,
        weight=weight,
        typed_per_filter_config=dict(rewrite_model(model, limit)),
        response_headers_to_add=[_header(name, of_an_engine(value)) for name, value in told.items()],
    )


def _header(name: str, value: str) -> HeaderValueOption:
    return HeaderValueOption(
        header=HeaderValue(key=name, value=value),
        append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
    )
