"""Routes that answer instead of an engine: nothing matches, maintenance, more asked for than is served now.

All of them forward to a cluster that does not exist rather than answer directly: a body is read before its route
is known, and only a forwarding route lets one above 1 MiB be read at all.
"""

from dataclasses import dataclass
from typing import Final

from envoy_data_plane.envoy.config.route.v3 import (
    Route,
    RouteAction,
    RouteActionClusterNotFoundResponseCode,
    RouteMatch,
)
from envoy_data_plane.envoy.type.matcher.v3 import DoubleMatcher, MetadataMatcher, ValueMatcher
from envoy_data_plane.envoy.type.v3 import DoubleRange

from policies.route import ModelRoute
from xds_server.translate.lua_scripts import lua_local_reply
from xds_server.translate.route_match import body_field_matcher, route_match

NO_ROUTE: Final = "no_route"
"""Route and cluster of what nothing matches. No pool can have this name, so Envoy knows no such cluster."""

TOKEN_LIMIT_FIELDS: Final = ("max_tokens", "max_completion_tokens")
"""Where a body says how many tokens it asks for."""

MAINTENANCE_RETRY_AFTER_S: Final = 30
"""Somebody is at work; nothing is won by asking each second."""

TOKEN_LIMIT_RETRY_AFTER_S: Final = 5
"""The least time after which the ladder goes a level down, unless its policy says otherwise."""

REGION_UNAVAILABLE_RETRY_AFTER_S: Final = 5
"""The regions that may serve have nobody left; that lasts longer than a slot takes to become free."""

_MORE_THAN_ANYONE_ASKS: Final = 1e18


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalReply:
    """What callers are told: ``reason`` by a header, ``message`` in the body."""

    reason: str
    message: str
    retry_after_s: int


def no_route_reply() -> Route:
    """The last route of a port."""
    return Route(
        name=NO_ROUTE,
        match=RouteMatch(prefix="/"),
        route=RouteAction(
            cluster=NO_ROUTE, cluster_not_found_response_code=RouteActionClusterNotFoundResponseCode.NOT_FOUND
        ),
    )


def maintenance_reply(route: ModelRoute, message: str) -> Route:
    """The answer to every request of the route."""
    return _local_reply_route(
        route,
        "maintenance",
        _LocalReply(reason="maintenance", message=message, retry_after_s=MAINTENANCE_RETRY_AFTER_S),
    )


def region_unavailable_reply(route: ModelRoute) -> Route:
    """The answer to every request of a route while no engine of its regions takes any."""
    regions = ", ".join(sorted(frozenset(route.spec.allowed_regions)))
    return _local_reply_route(
        route,
        "outside",
        _LocalReply(
            reason="no-engine-in-region",
            message=f"requests of this route may only be served in {regions}, and no engine there takes any now",
            retry_after_s=REGION_UNAVAILABLE_RETRY_AFTER_S,
        ),
    )


def token_limit_replies(route: ModelRoute, max_tokens: int) -> tuple[Route, ...]:
    """The answer to requests that ask for more than so many tokens; one route for each way to ask."""
    refusal = _LocalReply(
        reason="too-long-now",
        message=f"answers are limited to {max_tokens} tokens while the model is overloaded",
        retry_after_s=TOKEN_LIMIT_RETRY_AFTER_S,
    )
    above = ValueMatcher(
        double_match=DoubleMatcher(range=DoubleRange(start=float(max_tokens + 1), end=_MORE_THAN_ANYONE_ASKS))
    )
    return tuple(
        _local_reply_route(route, f"too-long/{field}", refusal, body_field_matcher(field, above))
        for field in TOKEN_LIMIT_FIELDS
    )


def _local_reply_route(route: ModelRoute, name: str, refusal: _LocalReply, *fields: MetadataMatcher) -> Route:
    full_name = f"{route.metadata.name}/{name}"
    return Route(
        name=full_name,
        match=route_match(route.spec.match, streaming=bool(route.spec.match.stream), fields=fields),
        # Were the script ever to fail, the cluster that is not there would still refuse.
        route=RouteAction(
            cluster=NO_ROUTE,
            cluster_not_found_response_code=RouteActionClusterNotFoundResponseCode.SERVICE_UNAVAILABLE,
        ),
        typed_per_filter_config=dict(lua_local_reply(refusal.reason, refusal.message, refusal.retry_after_s)),
        request_body_buffer_limit=route.spec.max_body_bytes,
        stat_prefix=full_name.replace("/", "."),
    )
