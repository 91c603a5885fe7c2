"""Routes: one RouteConfiguration per port, with everything an operator edits about requests.

Routes follow an edit without touching what is in flight. Each ModelRoute becomes a streaming and a non-streaming
Envoy route, because their time limits differ. Weights live in the runtime layer (``weights``), so a fallback that
flips does not even change this resource.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from envoy_data_plane.envoy.config.core.v3 import RoutingPriority
from envoy_data_plane.envoy.config.route.v3 import (
    HeaderMatcher,
    Route,
    RouteAction,
    RouteActionClusterNotFoundResponseCode,
    RouteActionMaxStreamDuration,
    RouteConfiguration,
    RouteMatch,
    VirtualHost,
    WeightedCluster,
    WeightedClusterClusterWeight,
)
from envoy_data_plane.envoy.type.matcher.v3 import (
    MetadataMatcher,
    MetadataMatcherPathSegment,
    RegexMatcher,
    StringMatcher,
    ValueMatcher,
)

from policies.resilience import ResilienceSpec
from policies.route import HeaderMatch, ModelRoute, PriorityClass
from xds_server.translate.retries import hedge_policy, retry_policy, try_timers
from xds_server.translate.runtime import weights_prefix
from xds_server.translate.shapes import seconds

REQUEST_METADATA: Final = "switchgear.request"
"""Where the listener leaves ``model`` and ``stream`` of a JSON body."""

PRIORITY: Final = {
    PriorityClass.INTERACTIVE: RoutingPriority.HIGH,
    PriorityClass.BATCH: RoutingPriority.DEFAULT,
}
"""Envoy counts the two apart, so each class has a ceiling of its own."""

NO_ROUTE: Final = "no_route"
"""Route and cluster of what nothing matches. No pool can have this name, so Envoy knows no such cluster."""


def route_configuration_name(port: int) -> str:
    """Name of the routes of this port."""
    return f"port-{port}"


def by_specificity(routes: Iterable[ModelRoute]) -> list[ModelRoute]:
    """Routes in the order in which Envoy tries them: the more a route asks for, the earlier; then by name."""

    def rank(route: ModelRoute) -> tuple[int, int, bool, bool, str]:
        match = route.spec.match
        return (
            -len(match.path_prefix),
            -len(match.headers),
            match.model is None,
            match.stream is None,
            route.metadata.name,
        )

    return sorted(routes, key=rank)


def route_configuration(port: int, routes: Sequence[Route], body_limit_bytes: int) -> RouteConfiguration:
    """The routes of a port, in this order, with an answer for what none of them matches.

    ``body_limit_bytes`` is the largest of the routes' limits: a body is read before its route is known.
    """
    return RouteConfiguration(
        name=route_configuration_name(port),
        virtual_hosts=[
            VirtualHost(
                name=route_configuration_name(port),
                domains=["*"],
                routes=[*routes, _no_route()],
                include_request_attempt_count=True,
                request_body_buffer_limit=body_limit_bytes,
            )
        ],
        # A cluster may arrive after the route that names it; Envoy then answers 503 and says which.
        validate_clusters=False,
    )


def envoy_routes(route: ModelRoute, spec: ResilienceSpec, *, gated: bool) -> tuple[Route, ...]:
    """The Envoy routes of a ModelRoute: streaming first, then the rest; one alone where the match says which."""
    wanted = route.spec.match.stream
    kinds = (True, False) if wanted is None else (wanted,)
    return tuple(_envoy_route(route, spec, streaming=streaming, gated=gated) for streaming in kinds)


def _envoy_route(route: ModelRoute, spec: ResilienceSpec, *, streaming: bool, gated: bool) -> Route:
    timeouts = spec.timeouts
    timers = try_timers(spec, streaming=streaming, gated=gated)
    action = RouteAction(
        priority=PRIORITY[route.spec.priority],
        # Zero turns Envoy's own 15 s off.
        timeout=seconds(0 if streaming else timeouts.non_streaming.total),
        idle_timeout=seconds(timers.idle_s or 0),
        max_stream_duration=RouteActionMaxStreamDuration(
            max_stream_duration=seconds(timeouts.streaming.total if streaming else 0)
        ),
        retry_policy=retry_policy(spec, streaming=streaming, gated=gated),
        hedge_policy=hedge_policy(spec, streaming=streaming, gated=gated),
    )
    pools = route_pools(route)
    if len(pools) == 1:
        action.cluster = pools[0]
    else:
        action.weighted_clusters = _weighted(route)
    kind = "streaming" if streaming else "non-streaming"
    return Route(
        name=f"{route.metadata.name}/{kind}",
        match=_match(route, streaming=streaming),
        route=action,
        request_body_buffer_limit=route.spec.max_body_bytes,
        stat_prefix=f"{route.metadata.name}.{kind}",
    )


def route_pools(route: ModelRoute) -> tuple[str, ...]:
    """The pools a route can send to, the fallback last; each once."""
    names = [share.pool for share in route.spec.pools]
    if route.spec.fallback is not None:
        names.append(route.spec.fallback)
    return tuple(dict.fromkeys(names))


def declared_weights(route: ModelRoute) -> dict[str, int]:
    """Weight of each pool as the operator declared it; a fallback has none until it is needed."""
    weights = dict.fromkeys(route_pools(route), 0)
    for share in route.spec.pools:
        weights[share.pool] += share.weight
    if not any(weights.values()):
        # Envoy refuses weights that are all zero; nobody said how to share, so share evenly.
        weights |= {share.pool: 1 for share in route.spec.pools}
    return weights


def _weighted(route: ModelRoute) -> WeightedCluster:
    return WeightedCluster(
        clusters=[
            WeightedClusterClusterWeight(name=pool, weight=weight)
            for pool, weight in declared_weights(route).items()
        ],
        runtime_key_prefix=weights_prefix(route.metadata.name),
    )


def _match(route: ModelRoute, *, streaming: bool) -> RouteMatch:
    match = route.spec.match
    metadata: list[MetadataMatcher] = []
    if match.model is not None:
        metadata.append(_body_field("model", ValueMatcher(string_match=StringMatcher(exact=match.model))))
    if streaming:
        metadata.append(_body_field("stream", ValueMatcher(bool_match=True)))
    elif match.stream is False:
        # Also where the body does not say, which means false to the engine.
        metadata.append(_body_field("stream", ValueMatcher(bool_match=True), invert=True))
    return RouteMatch(
        prefix=match.path_prefix,
        headers=[matcher for header in match.headers for matcher in _header(header)],
        dynamic_metadata=metadata,
    )


def _body_field(field: str, value: ValueMatcher, *, invert: bool = False) -> MetadataMatcher:
    return MetadataMatcher(
        filter=REQUEST_METADATA, path=[MetadataMatcherPathSegment(key=field)], value=value, invert=invert
    )


def _header(match: HeaderMatch) -> list[HeaderMatcher]:
    texts = [
        StringMatcher(exact=match.exact) if match.exact is not None else None,
        StringMatcher(prefix=match.prefix) if match.prefix is not None else None,
        StringMatcher(safe_regex=RegexMatcher(regex=match.regex)) if match.regex is not None else None,
    ]
    matchers = [
        HeaderMatcher(name=match.name, string_match=text, invert_match=match.invert)
        for text in texts
        if text is not None
    ]
    if match.present is not None or not matchers:
        matchers.append(
            HeaderMatcher(name=match.name, present_match=match.present is not False, invert_match=match.invert)
        )
    return matchers


def _no_route() -> Route:
    # A forwarding route to nowhere rather than a direct response: before its fields are known a request has this
    # route, and only a forwarding route gives its body room to be read in.
    return Route(
        name=NO_ROUTE,
        match=RouteMatch(prefix="/"),
        route=RouteAction(
            cluster=NO_ROUTE, cluster_not_found_response_code=RouteActionClusterNotFoundResponseCode.NOT_FOUND
        ),
    )
