"""ModelRoute fields whose outcome in the Gateway API depends on the value or on other fields."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from istio.gateway_api.gateway_field_context import GatewayFieldContext, Judge
from istio.gateway_api.http_route_match import path_match
from policies.fidelity import FieldOutcome, approximated, kept, lost
from policies.model import PolicySet
from policies.route import MODEL_HEADER, STREAM_HEADER, HeaderMatch, ModelChange, PriorityClass


def _address(seen: GatewayFieldContext) -> FieldOutcome | None:
    address = seen.policies.routes[seen.name].spec.listener.address
    return None if address in {"0.0.0.0", "::"} else lost("the Gateway sets its listeners")


def _path(seen: GatewayFieldContext) -> FieldOutcome | None:
    prefix = seen.policies.routes[seen.name].spec.match.path_prefix
    if path_match(prefix)["type"] != "PathPrefix":
        return approximated("a regular expression; support depends on the implementation", "HTTPRoute")
    if prefix != "/":
        return approximated("compared by path element: /v1 does not match /v1x, and /v1/ equals /v1", "HTTPRoute")
    return None


def _header(seen: GatewayFieldContext, name: str) -> FieldOutcome | None:
    headers = seen.policies.routes[seen.name].spec.match.headers
    return None if any(_says(one, name) for one in headers) else kept("not set", "")


def _says(one: HeaderMatch, name: str) -> bool:
    if name == "present":
        others = (one.exact, one.prefix, one.regex)
        return one.present is not None or all(other is None for other in others)
    return getattr(one, name) is not None


def _judge_header(name: str) -> Judge:
    return lambda seen: _header(seen, name)


def _field(field: str, stated: FieldOutcome) -> Judge:
    """The field's declared outcome, only if the match sets it; ``stated`` if callers state it in a header."""

    def judged(seen: GatewayFieldContext) -> FieldOutcome | None:
        route = seen.policies.routes[seen.name].spec
        if getattr(route.match, field) is None:
            return kept("any is taken", "")
        return stated if route.listener.reads_headers else None

    return judged


def _size(seen: GatewayFieldContext) -> FieldOutcome | None:
    of_any = seen.policies.routes[seen.name].spec.match.tokens_above is None
    return kept("any size is taken", "") if of_any else None


_MODEL: Final = kept(f"a condition on the same header, {MODEL_HEADER}", "HTTPRoute")
_STREAM: Final = approximated(
    f"the header {STREAM_HEADER} must be there, in lower case: absent does not count as false", "HTTPRoute"
)


def _request_fields(seen: GatewayFieldContext) -> FieldOutcome | None:
    if not seen.policies.routes[seen.name].spec.listener.reads_headers:
        return None
    return approximated("conditions on the same headers; no 400 for a missing or malformed one", "HTTPRoute")


def _pools(seen: GatewayFieldContext) -> FieldOutcome | None:
    route = seen.policies.routes[seen.name]
    names = [share.pool for share in route.spec.pools]
    if len({_stack(seen.policies, name) for name in names}) > 1:
        return approximated(
            f"the policy of {names[0]}, the first pool, applies to all pools of the route", "HTTPRoute"
        )
    if len({seen.policies.pools[name].spec.model for name in names}) > 1:
        return approximated("the pools have different models, and bodies are not rewritten", "HTTPRoute")
    return None


def _stack(policies: PolicySet, pool: str) -> tuple[str, ...]:
    return policies.layers.get(pool, ())


def _priority(seen: GatewayFieldContext) -> FieldOutcome | None:
    if seen.site.plain:
        return lost("the Gateway API has no admission limits and no classes")
    route = seen.policies.routes[seen.name]
    pools = {share.pool for share in route.spec.pools}
    others = {
        other.spec.priority
        for other in seen.policies.routes.values()
        if pools & {share.pool for share in other.spec.pools}
    }
    if len(others) > 1:
        return approximated(
            "each class has its own limit; it cannot use capacity that the other leaves free",
            "BackendTrafficPolicy",
        )
    if route.spec.priority is PriorityClass.BATCH:
        return approximated("the limit of batch requests; the route has only these", "BackendTrafficPolicy")
    return None


def _fallback(seen: GatewayFieldContext) -> FieldOutcome | None:
    if not seen.policies.routes[seen.name].spec.fallbacks:
        return None
    return lost("no fallback between backends; without engines callers get 503")


def _model_change(seen: GatewayFieldContext) -> FieldOutcome | None:
    spec = seen.policies.routes[seen.name].spec
    if not spec.fallbacks or spec.model_change is ModelChange.NEVER:
        return None
    return lost("no fallback, so callers never get another model")


def _side_effects(seen: GatewayFieldContext) -> FieldOutcome | None:
    if not seen.site.plain:
        return None
    return approximated(
        "only connections and requests that never reached an engine are tried again, as implementations do; the "
        "header of a single request is not looked at",
        "HTTPRoute",
    )


def _regions(seen: GatewayFieldContext) -> FieldOutcome | None:
    regions = seen.policies.routes[seen.name].spec.allowed_regions
    return lost("backends have no regions: requests may go anywhere") if regions else None


def _affinity(seen: GatewayFieldContext) -> FieldOutcome | None:
    if seen.policies.routes[seen.name].spec.affinity is None:
        return kept("not set")
    return lost("session persistence of the Gateway API has no key of the caller") if seen.site.plain else None


def _affinity_mode(seen: GatewayFieldContext) -> FieldOutcome | None:
    affinity = seen.policies.routes[seen.name].spec.affinity
    if affinity is None or not affinity.is_strict:
        return kept("not set" if affinity is None else "soft, as every consistent hash")
    how = "no key of the caller" if seen.site.plain else "a consistent hash instead"
    return lost(f"{how}: sessions move when engines come and go")


def _move_within(seen: GatewayFieldContext) -> FieldOutcome | None:
    affinity = seen.policies.routes[seen.name].spec.affinity
    return None if affinity is not None and affinity.is_strict else kept("no strict sessions")


def _unless_set(attribute: str) -> Judge:
    """A judge of a field of affinity that loses nothing while it has its default, which is empty."""

    def judge(seen: GatewayFieldContext) -> FieldOutcome | None:
        return None if getattr(seen.policies.routes[seen.name].spec.affinity, attribute, None) else kept("not set")

    return judge


def _body(seen: GatewayFieldContext) -> FieldOutcome | None:
    return lost("the Gateway API has no body limit") if seen.site.plain else None


JUDGES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        "spec.listener.address": _address,
        "spec.match.pathPrefix": _path,
        **{
            f"spec.match.headers[].{name}": _judge_header(name) for name in ("exact", "prefix", "regex", "present")
        },
        "spec.listener.requestFields": _request_fields,
        "spec.match.model": _field("model", _MODEL),
        "spec.match.stream": _field("stream", _STREAM),
        "spec.match.tokensAbove": _size,
        "spec.pools[].pool": _pools,
        "spec.priority": _priority,
        "spec.fallbacks": _fallback,
        "spec.modelChange": _model_change,
        "spec.sideEffects": _side_effects,
        "spec.allowedRegions": _regions,
        "spec.affinity.mode": _affinity_mode,
        "spec.affinity.moveWithin": _move_within,
        "spec.affinity.tenant": _unless_set("tenant"),
        "spec.affinity.returnAfter": _unless_set("return_after"),
        "spec.affinity.header": _affinity,
        "spec.affinity.cookie.name": _affinity,
        "spec.affinity.cookie.ttl": _affinity,
        "spec.maxBodyBytes": _body,
    }
)
