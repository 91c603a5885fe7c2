"""Envoy Gateway's policies: settings without a field in the Gateway API.

A BackendTrafficPolicy is attached to an HTTPRoute and applies to all its backends; each has its own clusters and
counters. A ClientTrafficPolicy is attached to the Gateway.

Source: https://gateway.envoyproxy.io/docs/api/extension_types/
"""

import math
from typing import Final

from istio.export.istio_objects import Object, governed_by, istio_object, object_name
from istio.gateway_api.gateway_objects import (
    ENVOY_GATEWAY,
    ROUTES,
    GatewayTarget,
    gateway_duration,
    object_reference,
)
from istio.gateway_api.http_routes import HttpRouteExport, per_try_s, retry_triggers, statuses
from policies.affinity import Affinity
from policies.model import PolicySet
from policies.resilience import Breaker, ResilienceSpec
from policies.route import ModelRoute, PriorityClass
from xds_server.decide.decisions import Ceiling
from xds_server.translate.pool_clusters import outlier_detection
from xds_server.translate.runtime import with_hedge_budget

VERSION: Final = f"{ENVOY_GATEWAY}/v1alpha1"
_LARGEST: Final = 4_294_967_295
_LARGEST_INT32: Final = 2**31 - 1
_HUNDREDTHS: Final = 100


def backend_traffic_policy(found: HttpRouteExport, ceiling: Ceiling | None, policies: PolicySet) -> Object:
    """The BackendTrafficPolicy of a route; ``ceiling`` is what one proxy may have in flight to its first pool."""
    route, spec = found.route, found.spec
    said: Object = {
        "targetRefs": [object_reference(ROUTES, "HTTPRoute", route.metadata.name)],
        "circuitBreaker": _limits(route, spec, ceiling),
        "healthCheck": {"panicThreshold": 0, **_outliers(spec.breaker, hedged=spec.hedging.enabled)},
        "loadBalancer": _balancing(route, spec),
        "requestBuffer": {"limit": route.spec.max_body_bytes},
        "retry": _retry(route, spec),
        "timeout": {
            "tcp": {"connectTimeout": gateway_duration(spec.timeouts.connect)},
            "http": {"streamIdleTimeout": gateway_duration(spec.timeouts.streaming.between_tokens or 0.0)},
        },
    }
    of = [f"ModelRoute/{route.metadata.name}", *governed_by(policies, route.spec.pools[0].pool)]
    metadata = found.made["metadata"]
    namespace = str(metadata["namespace"]) if isinstance(metadata, dict) else ""
    return istio_object(
        "BackendTrafficPolicy", route.metadata.name, namespace, said, policies=policies, of=of, version=VERSION
    )


def client_traffic_policy(found: tuple[HttpRouteExport, ...], policies: PolicySet, site: GatewayTarget) -> Object:
    """The ClientTrafficPolicy of the Gateway: bodies that are to be sent again have to be kept whole."""
    largest = max(one.route.spec.max_body_bytes for one in found)
    said: Object = {
        "targetRefs": [object_reference(ROUTES, "Gateway", site.gateway)],
        "connection": {"bufferLimit": largest},
    }
    of = [f"ModelRoute/{one.route.metadata.name}" for one in found]
    return istio_object(
        "ClientTrafficPolicy",
        object_name(site.gateway),
        site.gateway_namespace,
        said,
        policies=policies,
        of=of,
        version=VERSION,
    )


def _limits(route: ModelRoute, spec: ResilienceSpec, ceiling: Ceiling | None) -> Object:
    connections = min(spec.limits.max_connections, _LARGEST)
    said: Object = {"maxConnections": connections, "maxPendingRequests": connections}
    percent, least = spec.retry_budget.percent_without_ceiling, spec.retry_budget.min_concurrency
    if ceiling is not None:
        most = ceiling.batch if route.spec.priority is PriorityClass.BATCH else ceiling.interactive
        said["maxParallelRequests"] = min(max(1, most), _LARGEST)
        shared = with_hedge_budget(ceiling, spec.hedging)
        percent, least = shared.retry_percent, shared.retry_min_concurrency
    else:
        said["maxParallelRequests"] = connections
    said["retryBudget"] = {
        "percent": {"numerator": round(percent * _HUNDREDTHS), "denominator": 100 * _HUNDREDTHS},
        "minRetryConcurrency": min(least, _LARGEST_INT32),
    }
    return said


def _outliers(breaker: Breaker, *, hedged: bool) -> Object:
    """Envoy's outlier detection with the numbers of our own; none where no engine may be ejected.

    Envoy Gateway drops a ``maxEjectionPercent`` of 0, and Envoy's own default of 10 would apply.
    """
    ours = outlier_detection(breaker, hedged=hedged)
    if not ours.max_ejection_percent:
        return {}
    said: Object = {
        "splitExternalLocalOriginErrors": True,
        # A count that is never reached turns it off.
        "consecutive5XxErrors": ours.consecutive_5xx if ours.enforcing_consecutive_5xx else _LARGEST_INT32,
        "consecutiveGatewayErrors": 0,
        "consecutiveLocalOriginFailures": ours.consecutive_local_origin_failure
        if ours.enforcing_consecutive_local_origin_failure
        else _LARGEST_INT32,
        "interval": gateway_duration(min(breaker.interval, breaker.local_ejection)),
        "baseEjectionTime": gateway_duration(breaker.local_ejection),
        "maxEjectionPercent": ours.max_ejection_percent,
        "alwaysEjectOneEndpoint": False,
    }
    if breaker.error_rate_percent:
        said["failurePercentageThreshold"] = math.ceil(breaker.error_rate_percent)
    return {"passive": said}


def _balancing(route: ModelRoute, spec: ResilienceSpec) -> Object:
    affinity = route.spec.affinity
    if affinity is not None and affinity.by_header_or_cookie:
        # Envoy Gateway refuses slow start and zones with a consistent hash.
        return {"type": "ConsistentHash", "consistentHash": _consistent_hash(affinity)}
    said: Object = {"type": "LeastRequest"}
    if spec.slow_start.window:
        said["slowStart"] = {"window": gateway_duration(spec.slow_start.window)}
    if spec.zones.prefer_local:
        said["zoneAware"] = {"preferLocal": {"minEndpointsThreshold": 1}}
    return said


def _consistent_hash(affinity: Affinity) -> Object:
    cookie = affinity.cookie
    if cookie is None:
        return {"type": "Header", "header": {"name": affinity.header}}
    ttl: Object = {} if cookie.ttl is None else {"ttl": gateway_duration(cookie.ttl)}
    return {"type": "Cookie", "cookie": {"name": cookie.name, **ttl}}


def _retry(route: ModelRoute, spec: ResilienceSpec) -> Object:
    triggers = retry_triggers(route, spec)
    if not triggers:
        # Without a trigger Envoy Gateway would retry by conditions of its own.
        return {"numRetries": 0}
    codes = sorted(set(statuses(route, spec)))
    per_try = per_try_s(route, spec)
    on: Object = {"triggers": triggers, **({"httpStatusCodes": codes} if codes else {})}
    backoff: Object = {
        "baseInterval": gateway_duration(spec.retries.backoff.base),
        "maxInterval": gateway_duration(spec.retries.backoff.max),
    }
    each: Object = {"backOff": backoff, **({"timeout": gateway_duration(per_try)} if per_try else {})}
    return {"numRetries": spec.retries.attempts, "retryOn": on, "perRetry": each}
