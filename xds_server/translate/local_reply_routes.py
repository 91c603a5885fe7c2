"""Routes that reply locally: no match, maintenance, too many tokens requested.

They forward to a missing cluster instead of replying directly: the body is read before its route is known, and
only a forwarding route allows bodies above 1 MiB.
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
from xds_server.translate.public_routes import unchecked
from xds_server.translate.request_fields import TOKEN_LIMIT_FIELDS
from xds_server.translate.route_match import body_field_matcher, route_match

NO_ROUTE: Final = "no_route"
"""Catch-all route and its cluster. No pool can have this name, so the cluster is always missing."""

MAINTENANCE_RETRY_AFTER_S: Final = 30
"""Maintenance takes time; frequent retries are useless."""

TOKEN_LIMIT_RETRY_AFTER_S: Final = 5
"""Minimum time before the degradation level falls, unless the policy sets another."""

REGION_UNAVAILABLE_RETRY_AFTER_S: Final = 5
"""No engine left in the allowed regions; that lasts longer than a full pool."""

_MORE_THAN_ANYONE_ASKS: Final = 1e18


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalReply:
    """Reply to the caller: ``reason`` as header, ``message`` in the body."""

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
    """Reply to every request of a route in maintenance."""
    return _local_reply_route(
        route,
        "maintenance",
        _LocalReply(reason="maintenance", message=message, retry_after_s=MAINTENANCE_RETRY_AFTER_S),
    )


def region_unavailable_reply(route: ModelRoute) -> Route:
    """Reply to every request of a route without available engine in its regions."""
    regions = ", ".join(sorted(frozenset(route.spec.allowed_regions)))
    return _local_reply_route(
        route,
        "outside",
        _LocalReply(
            reason="no-engine-in-region",
            message=f"this route may only be served in {regions}, where no engine is available now",
            retry_after_s=REGION_UNAVAILABLE_RETRY_AFTER_S,
        ),
    )


def token_limit_replies(route: ModelRoute, max_tokens: int) -> tuple[Route, ...]:
    """Reply to requests above the token limit; one route per body field."""
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
        # If the script failed, the missing cluster would still refuse the request.
        route=RouteAction(
            cluster=NO_ROUTE,
            cluster_not_found_response_code=RouteActionClusterNotFoundResponseCode.SERVICE_UNAVAILABLE,
        ),
        typed_per_filter_config={
            **unchecked(route),
            **lua_local_reply(refusal.reason, refusal.message, refusal.retry_after_s),
        },
        request_body_buffer_limit=route.spec.max_body_bytes,
        stat_prefix=full_name.replace("/", "."),
    )
