"""Routes that reply locally: no match, static answer, maintenance, too many tokens asked, refused configuration.

They forward to a missing cluster instead of replying directly: the body is read before its route is known, and
only a forwarding route allows bodies above 1 MiB.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from envoy_data_plane.envoy.config.core.v3 import RuntimeFractionalPercent
from envoy_data_plane.envoy.config.route.v3 import (
    HeaderMatcher,
    Route,
    RouteAction,
    RouteActionClusterNotFoundResponseCode,
    RouteMatch,
)
from envoy_data_plane.envoy.type.matcher.v3 import MetadataMatcher, RegexMatcher, ValueMatcher
from envoy_data_plane.envoy.type.v3 import FractionalPercent, FractionalPercentDenominatorType
from envoy_data_plane.google.protobuf import Any

from policies.route import ModelRoute
from policies.static_answer import StaticAnswer
from xds_server.decide.decisions import DeadlineSteps
from xds_server.translate.deadlines import DEADLINE_KIND, DEADLINE_REASON, deadline_below, deadline_key
from xds_server.translate.lua_scripts import AnswerLimit, LuaReply, lua_local_reply, lua_static_answer
from xds_server.translate.public_routes import unchecked
from xds_server.translate.request_fields import TOKEN_LIMIT_FIELDS
from xds_server.translate.route_match import body_field_matcher, route_match, tokens_field_above
from xds_server.translate.stated_fields import not_streaming, tokens_above

NO_ROUTE: Final = "no_route"
"""Catch-all route and its cluster. No pool can have this name, so the cluster is always missing."""

MAINTENANCE_RETRY_AFTER_S: Final = 30
"""Maintenance takes time; frequent retries are useless."""

TOKEN_LIMIT_RETRY_AFTER_S: Final = 5
"""Minimum time before the degradation level falls, unless the policy sets another."""

HELD_BACK_RETRY_AFTER_S: Final = 30
"""The route stays held back until its policy is edited."""

REGION_UNAVAILABLE_RETRY_AFTER_S: Final = 5
"""No engine left in the allowed regions; that lasts longer than a full pool."""

DEADLINE_RETRY_AFTER_S: Final = 1
"""The wait for a slot changes by the second."""


def no_route_reply() -> Route:
    """The last route of a port."""
    return _without_route(RouteMatch(prefix="/"))


def adapter_load_refusal() -> Route:
    """Keeps callers from loading adapters into engines that accept it, and from unloading them."""
    return _without_route(RouteMatch(safe_regex=RegexMatcher(regex="/v1/(un)?load_lora_adapter/?")))


def _without_route(match: RouteMatch) -> Route:
    return Route(
        name=NO_ROUTE,
        match=match,
        route=RouteAction(
            cluster=NO_ROUTE, cluster_not_found_response_code=RouteActionClusterNotFoundResponseCode.NOT_FOUND
        ),
    )


def maintenance_reply(route: ModelRoute, message: str) -> Route:
    """Reply to every request of a route in maintenance."""
    return _local_reply_route(
        route,
        "maintenance",
        LuaReply(reason="maintenance", message=message, retry_after_s=MAINTENANCE_RETRY_AFTER_S),
    )


def static_reply(
    route: ModelRoute, answer: StaticAnswer, variant: str = "", headers: Sequence[HeaderMatcher] = ()
) -> Route:
    """Reply to requests of a route with its static answer: to all, or to the variant with these headers."""
    return _answering_route(route, f"static{variant}", lua_static_answer(answer), *headers)


def unselected_reply(route: ModelRoute) -> Route:
    """Reply to every request of a route without available engine in its regions, or with its adapter."""
    regions = ", ".join(sorted(frozenset(route.spec.allowed_regions)))
    if route.spec.adapter_name:
        place = f" in {regions}" if regions else ""
        return _local_reply_route(
            route,
            "no-adapter",
            LuaReply(
                reason="no-engine-with-adapter",
                message=f"no engine{place} that has the adapter {route.spec.adapter_name} is available now",
                retry_after_s=REGION_UNAVAILABLE_RETRY_AFTER_S,
            ),
        )
    return _local_reply_route(
        route,
        "outside",
        LuaReply(
            reason="no-engine-in-region",
            message=f"this route may only be served in {regions}, where no engine is available now",
            retry_after_s=REGION_UNAVAILABLE_RETRY_AFTER_S,
        ),
    )


def held_back_reply(route: ModelRoute) -> Route:
    """Reply where a proxy refused a route's configuration; the last route of its port but one.

    It has no regular expression, the likely fault, so it matches more requests than the route.
    """
    headers = tuple(header for header in route.spec.match.headers if header.regex is None)
    match = route.spec.match.model_copy(update={"headers": headers})
    plain = route.model_copy(update={"spec": route.spec.model_copy(update={"match": match})})
    return _local_reply_route(
        plain,
        "held-back",
        LuaReply(
            reason="route-held-back",
            message="this proxy refused the configuration of the route; see switchgear status",
            retry_after_s=HELD_BACK_RETRY_AFTER_S,
        ),
    )


def answer_limit(max_tokens: int) -> AnswerLimit:
    """Limit of answers at a degradation level, and the reply to requests that exceed it."""
    return AnswerLimit(
        tokens=max_tokens,
        refusal=LuaReply(
            reason="too-long-now",
            message=f"answers are limited to {max_tokens} tokens while the model is overloaded",
            retry_after_s=TOKEN_LIMIT_RETRY_AFTER_S,
        ),
    )


def token_limit_replies(route: ModelRoute, max_tokens: int) -> tuple[Route, ...]:
    """Reply to requests above the token limit; one route per body field, or for the header that states it."""
    refusal = answer_limit(max_tokens).refusal
    if route.spec.listener.reads_headers:
        return (_local_reply_route(route, f"too-long/{TOKEN_LIMIT_FIELDS[0]}", refusal, tokens_above(max_tokens)),)
    return tuple(
        _local_reply_route(route, f"too-long/{field}", refusal, tokens_field_above(field, max_tokens))
        for field in TOKEN_LIMIT_FIELDS
    )


def deadline_replies(route: ModelRoute, steps: DeadlineSteps | None, *, streaming: bool) -> tuple[Route, ...]:
    """Replies to requests of this kind with a deadline below a step: a route for each step, none of which replies
    until the runtime layer names it. None if the listener reads no deadlines.
    """
    deadline = route.spec.listener.deadline
    if deadline is None or steps is None:
        return ()
    kind = "streaming" if streaming else "non-streaming"
    refusal = LuaReply(
        reason=DEADLINE_REASON,
        message="no answer can be complete within the deadline of this request now",
        retry_after_s=DEADLINE_RETRY_AFTER_S,
    )
    # Written for these routes only: others of this kind come after those of streams.
    no_stream = () if streaming or route.spec.match.stream is not None else (_no_stream(route),)
    return tuple(
        with_runtime_key(
            _local_reply_route(
                route,
                f"{DEADLINE_KIND}/{kind}/{number}",
                refusal,
                deadline_below(deadline, limit_s),
                *no_stream,
                streaming=streaming,
            ),
            deadline_key(route.metadata.name, kind, number),
        )
        for number, limit_s in enumerate(steps.all_s)
    )


def with_runtime_key(route: Route, key: str) -> Route:
    """The route for the percentage of requests that the runtime layer has under this key; 0 without it."""
    if route.match is not None:
        route.match.runtime_fraction = RuntimeFractionalPercent(
            runtime_key=key,
            default_value=FractionalPercent(numerator=0, denominator=FractionalPercentDenominatorType.HUNDRED),
        )
    return route


def _no_stream(route: ModelRoute) -> MetadataMatcher | HeaderMatcher:
    if route.spec.listener.reads_headers:
        return not_streaming()
    return body_field_matcher("stream", ValueMatcher(bool_match=True), invert=True)


def _local_reply_route(
    route: ModelRoute,
    name: str,
    refusal: LuaReply,
    *conditions: MetadataMatcher | HeaderMatcher,
    streaming: bool | None = None,
) -> Route:
    return _answering_route(route, name, lua_local_reply(refusal), *conditions, streaming=streaming)


def _answering_route(
    route: ModelRoute,
    name: str,
    answer: Mapping[str, Any],
    *conditions: MetadataMatcher | HeaderMatcher,
    streaming: bool | None = None,
) -> Route:
    full_name = f"{route.metadata.name}/{name}"
    return Route(
        name=full_name,
        match=route_match(
            route.spec.match,
            streaming=bool(route.spec.match.stream) if streaming is None else streaming,
            headers=[one for one in conditions if isinstance(one, HeaderMatcher)],
            fields=[one for one in conditions if isinstance(one, MetadataMatcher)],
            stated=route.spec.listener.reads_headers,
        ),
        # If the script failed, the missing cluster would still refuse the request.
        route=RouteAction(
            cluster=NO_ROUTE,
            cluster_not_found_response_code=RouteActionClusterNotFoundResponseCode.SERVICE_UNAVAILABLE,
        ),
        typed_per_filter_config={
            **unchecked(route),
            **answer,
        },
        request_body_buffer_limit=route.spec.max_body_bytes,
        stat_prefix=full_name.replace("/", "."),
    )
