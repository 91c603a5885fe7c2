"""HTTPRoutes: one for each ModelRoute, so that policies of its pools can be attached to it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from istio.export.istio_objects import Object, governed_by, istio_object
from istio.gateway_api.backends import GatewayBackend, PoolBackends
from istio.gateway_api.gateway_objects import ROUTES, GatewayTarget, gateway_duration
from istio.gateway_api.http_route_match import UnsupportedMatchError, http_route_match
from policies.model import PolicySet
from policies.resilience import ResilienceSpec, RetryCondition
from policies.route import ModelRoute

MOST_BACKENDS: Final = 16
_HEAVIEST: Final = 1_000_000
_NOT_A_TRIGGER: Final = frozenset({RetryCondition.RESET_BEFORE_REQUEST})
_BEFORE_SENT: Final = frozenset({RetryCondition.CONNECT_FAILURE, RetryCondition.REFUSED_STREAM})
_STATUS_CODES: Final = "retriable-status-codes"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRouteExport:
    """An exported route: its object, and its backends."""

    route: ModelRoute
    spec: ResilienceSpec
    made: Object
    backends: tuple[GatewayBackend, ...]


def http_route(
    route: ModelRoute, policies: PolicySet, site: GatewayTarget, pools: Mapping[str, PoolBackends]
) -> HttpRouteExport | UnsupportedMatchError:
    """The HTTPRoute, or why there is none."""
    spec = policies.effective[route.spec.pools[0].pool]
    try:
        wanted = http_route_match(route.spec.match, stated=route.spec.listener.reads_headers)
        refs, used = _refs(route, site, pools)
    except UnsupportedMatchError as reason:
        return reason
    rule: Object = {"matches": [wanted.match], "backendRefs": refs, "timeouts": timeouts(route, spec, site)}
    # Envoy Gateway's own policy has more; the standard channel has no such field, and none takes 0 attempts.
    if site.plain and site.experimental and spec.retries.attempts:
        rule["retry"] = retry(route, spec)
    parent: Object = {
        "group": ROUTES,
        "kind": "Gateway",
        "name": site.gateway,
        "namespace": site.gateway_namespace,
        "port": route.spec.listener.port,
    }
    hosts: Object = {"hostnames": [wanted.host]} if wanted.host else {}
    of = [f"ModelRoute/{route.metadata.name}"]
    for share in route.spec.pools:
        of += [one for one in governed_by(policies, share.pool) if one not in of]
    namespace = site.of(route.metadata)
    found = istio_object(
        "HTTPRoute",
        route.metadata.name,
        namespace,
        {"parentRefs": [parent], **hosts, "rules": [rule]},
        policies=policies,
        of=of,
        version=f"{ROUTES}/v1",
    )
    return HttpRouteExport(route=route, spec=spec, made=found, backends=used)


def _refs(
    route: ModelRoute, site: GatewayTarget, pools: Mapping[str, PoolBackends]
) -> tuple[list[Object], tuple[GatewayBackend, ...]]:
    refs: list[Object] = []
    used: list[GatewayBackend] = []
    for share in route.spec.pools:
        of = pools[share.pool].of
        if not of:
            raise UnsupportedMatchError(f"pool {share.pool} has no backend: none of its engines can be expressed")
        slots = sum(one.slots for one in of)
        for one in of:
            weight = share.weight if len(of) == 1 or not share.weight else share.weight * one.slots / slots
            refs.append(
                _ref(one, min(_HEAVIEST, max(1, round(weight)) if share.weight else 0), site.of(route.metadata))
            )
            used.append(one)
    if len(refs) > MOST_BACKENDS:
        raise UnsupportedMatchError(
            f"HTTPRoute accepts at most {MOST_BACKENDS} backends; this route has {len(refs)}"
        )
    return refs, tuple(used)


def _ref(backend: GatewayBackend, weight: int, namespace: str) -> Object:
    ref: Object = {"group": backend.group, "kind": backend.kind, "name": backend.name, "weight": weight}
    if backend.namespace != namespace:
        ref["namespace"] = backend.namespace
    if backend.port is not None:
        ref["port"] = backend.port
    return ref


def total_s(route: ModelRoute, spec: ResilienceSpec) -> float:
    """The limit of a whole request; 0 is none. Streams are among them unless the route asks for others only."""
    streams, others = spec.timeouts.streaming.total, spec.timeouts.non_streaming.total
    if route.spec.match.stream is not None:
        return streams if route.spec.match.stream else others
    return max(streams, others) if streams and others else 0.0


def per_try_s(route: ModelRoute, spec: ResilienceSpec) -> float:
    """The limit of one try; 0 is none. It would cut streams, so only routes without them have it."""
    if route.spec.match.stream is not False:
        return 0.0
    limit, whole = spec.timeouts.non_streaming.per_try or 0.0, total_s(route, spec)
    return min(limit, whole) if whole else limit


def timeouts(route: ModelRoute, spec: ResilienceSpec, site: GatewayTarget) -> Object:
    """``rules[].timeouts``.

    Envoy Gateway takes ``backendRequest`` of a rule without ``retry`` as the limit of the whole request, so it is
    left out where the BackendTrafficPolicy retries, and limits each try.
    """
    by_policy = not site.plain and bool(retry_triggers(route, spec))
    per_try = 0.0 if by_policy else per_try_s(route, spec)
    limits: Object = {"request": gateway_duration(total_s(route, spec))}
    return {**limits, "backendRequest": gateway_duration(per_try)} if per_try else limits


def retry(route: ModelRoute, spec: ResilienceSpec) -> Object:
    """``rules[].retry`` of the experimental channel."""
    found: Object = {"attempts": spec.retries.attempts}
    codes = sorted(set(statuses(route, spec)))
    if codes:
        found["codes"] = codes
    return {**found, "backoff": gateway_duration(spec.retries.backoff.base)}


def retry_triggers(route: ModelRoute, spec: ResilienceSpec) -> list[str]:
    """What Envoy Gateway's policy retries after; none where it never does."""
    if not spec.retries.attempts:
        return []
    conditions = [one for one in spec.retries.conditions if one not in _NOT_A_TRIGGER]
    if route.spec.side_effects:
        conditions = [one for one in conditions if one in _BEFORE_SENT]
    codes = [_STATUS_CODES] if statuses(route, spec) else []
    return [one.value for one in dict.fromkeys(conditions)] + codes


def statuses(route: ModelRoute, spec: ResilienceSpec) -> tuple[int, ...]:
    """Answers after which a request is tried again: none where it may have changed something."""
    return () if route.spec.side_effects else spec.retries.statuses_in_force
