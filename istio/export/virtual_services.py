"""VirtualServices: one for each port, with Switchgear's own Envoy routes in their order.

Each route translates the one that ``xds_server.translate.route_configuration`` gives our own Envoys; settings
without a field in Istio go into an EnvoyFilter (the route's patch). So conditions, statuses and time limits are
the same on both sides by construction.

A header marks streams, because Istio reads no bodies. An unmarked stream gets the limits of other requests, so
their total is the longer of both.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

from envoy_data_plane.envoy.config.route.v3 import RetryPolicy, Route, RouteAction, RouteMatch

from istio.export.istio_objects import (
    IstioTarget,
    Object,
    envoy_duration,
    governed_by,
    istio_duration,
    istio_object,
    object_name,
)
from istio.export.service_entries import Destination, group_name
from istio.export.virtual_service_match import match_conditions, patched_headers
from policies.listener import RequestFields
from policies.model import PolicySet
from policies.resilience import ResilienceSpec
from policies.route import ModelRoute, PriorityClass
from xds_server.translate.request_sizes import same_for_all_sizes
from xds_server.translate.route_configuration import by_specificity, envoy_routes

_STATUS_CODES: Final = "retriable-status-codes"
_KNOWN_STATUSES: Final = frozenset(one.value for one in HTTPStatus)
"""Istio takes a number in ``retryOn`` for a status only where HTTP has a name for it."""

NO_FAULTS: Final[Mapping[str, Object]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualServiceRule:
    """One route: its name, its VirtualService form, and the Envoy route merged into it."""

    name: str
    http_route: Object
    patch: Object


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutePort:
    """All routes of one port, and the host that callers use."""

    port: int
    namespace: str
    host: str
    rules: tuple[VirtualServiceRule, ...]
    of: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of its objects."""
        return object_name(f"models-{self.port}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDestinations:
    """Destinations of pools for routes."""

    destinations: Mapping[str, Destination]
    both_classes: frozenset[str] = frozenset()


def route_ports(
    policies: PolicySet, place: IstioTarget, pools: PoolDestinations, faults: Mapping[str, Object] = NO_FAULTS
) -> Iterator[RoutePort]:
    """The ports that routes listen at, in each namespace, in their order. ``faults`` are by the route's name."""
    by_port: dict[tuple[str, int], list[ModelRoute]] = {}
    for route in policies.routes.values():
        if route.spec.match.tokens_above is not None:
            continue  # Istio cannot tell its requests from others of the port.
        by_port.setdefault((place.of(route.metadata), route.spec.listener.port), []).append(route)
    for (namespace, port), routes in sorted(by_port.items()):
        ordered = by_specificity(routes)
        used = dict.fromkeys(share.pool for route in ordered for share in route.spec.pools)
        yield RoutePort(
            port=port,
            namespace=namespace,
            host=place.host or ("*" if place.gateway else place.service(f"models-{port}", namespace)),
            rules=tuple(rule for route in ordered for rule in _rules(route, policies, pools, port, faults)),
            of=(
                *(f"ModelRoute/{route.metadata.name}" for route in ordered),
                *dict.fromkeys(name for pool in used for name in governed_by(policies, pool)),
            ),
        )


def service_name(port: int, place: IstioTarget) -> str:
    """Name of the VirtualService with the routes of a port.

    Ports that share a host share one: for sidecars Istio does not join several of one host.
    """
    return "models" if place.host and not place.gateway else object_name(f"models-{port}")


def virtual_services(entries: Sequence[RoutePort], policies: PolicySet, place: IstioTarget) -> Iterator[Object]:
    """The VirtualServices of these ports."""
    by_name: dict[tuple[str, str], list[RoutePort]] = {}
    for entry in entries:
        by_name.setdefault((entry.namespace, service_name(entry.port, place)), []).append(entry)
    for (namespace, name), together in by_name.items():
        spec: Object = {"hosts": [together[0].host]}
        if place.gateway:
            spec["gateways"] = [place.gateway]
        spec["http"] = [rule.http_route for entry in together for rule in entry.rules]
        of = tuple(dict.fromkeys(one for entry in together for one in entry.of))
        yield istio_object("VirtualService", name, namespace, spec, policies=policies, of=of)


def port_service(entry: RoutePort, policies: PolicySet) -> Object:
    """The host that callers in the mesh use; its own endpoints are never used."""
    spec: Object = {
        "hosts": [entry.host],
        "location": "MESH_INTERNAL",
        # Istio's DNS proxy gives such a host an address; to one without resolution it gives none.
        "resolution": "DNS",
        "ports": [{"number": entry.port, "name": "http", "protocol": "HTTP"}],
    }
    return istio_object("ServiceEntry", entry.name, entry.namespace, spec, policies=policies, of=entry.of)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RuleContext:
    """Inputs of a route's rules: policy, pool destinations, port and fault."""

    route: ModelRoute
    spec: ResilienceSpec
    pools: PoolDestinations
    port: int
    fault: Object | None


def _rules(
    route: ModelRoute, policies: PolicySet, pools: PoolDestinations, port: int, faults: Mapping[str, Object]
) -> Iterator[VirtualServiceRule]:
    # As with our own Envoys: the pool that is named first rules all of the route's pools.
    first = route.spec.pools[0].pool
    spec, gated = policies.effective[first], policies.pools[first].spec.first_token_gate
    models = {name: pool.spec.model for name, pool in policies.pools.items()}
    # Without fallbacks: nothing in Istio takes over when a pool has no engine left. Conditions on the body become
    # conditions on headers in any case; Istio cannot say "absent or false" of those that are stated. It keeps no
    # deadlines either, and with one every route has the duration by which streams are known below. Nothing there
    # estimates tokens.
    listener = route.spec.listener.model_copy(update={"request_fields": RequestFields.BODY, "deadline": None})
    alone = route.model_copy(
        update={"spec": route.spec.model_copy(update={"fallbacks": (), "listener": listener})}
    )
    around = _RuleContext(route=route, spec=spec, pools=pools, port=port, fault=faults.get(route.metadata.name))
    for envoy in envoy_routes(alone, same_for_all_sizes(spec), gated=gated, models=models):
        if envoy.route is None or envoy.match is None:
            raise ValueError(f"{envoy.name} is an answer of Envoy's own, which nothing asks for in a policy")
        yield _rule(envoy, envoy.route, envoy.match, around)


def _rule(envoy: Route, action: RouteAction, match: RouteMatch, around: _RuleContext) -> VirtualServiceRule:
    found = match_conditions(match, around.port)
    wanted = around.route.spec
    streaming = action.max_stream_duration is not None
    said: Object = {"name": envoy.name, "match": [found.match], "route": _shares(action, around)}
    total_s = _total_s(around.spec, streaming=streaming, mixed=wanted.match.stream is None)
    if total_s:
        said["timeout"] = istio_duration(total_s)
    if action.retry_policy is not None:
        said["retries"] = _retries(action.retry_policy, remote=around.spec.zones.prefer_local)
    if around.fault is not None:
        said["fault"] = around.fault
    shared = any(share.pool in around.pools.both_classes for share in wanted.pools)
    high = wanted.priority is PriorityClass.BATCH and shared
    return VirtualServiceRule(
        name=envoy.name, http_route=said, patch=patched_headers(found.patched) | _patch(envoy, action, high=high)
    )


def _total_s(spec: ResilienceSpec, *, streaming: bool, mixed: bool) -> float:
    """The time limit of a whole request; 0: none. ``mixed``: may include unmarked streams."""
    of_streams, of_others = spec.timeouts.streaming.total, spec.timeouts.non_streaming.total
    if streaming:
        return of_streams
    if not mixed:
        return of_others
    return max(of_streams, of_others) if of_streams and of_others else 0.0


def _shares(action: RouteAction, around: _RuleContext) -> list[Object]:
    regions = around.route.spec.allowed_regions
    subset = group_name(regions) if regions else ""
    weighted = action.weighted_clusters
    if weighted is None:
        return [{"destination": around.pools.destinations[action.cluster or ""].clause(subset)}]
    shares = [one for one in weighted.clusters if one.weight]
    clauses = [around.pools.destinations[one.name].clause(subset) for one in shares]
    if len(shares) == 1:
        return [{"destination": clauses[0]}]
    return [{"destination": clause, "weight": one.weight} for clause, one in zip(clauses, shares, strict=True)]


def _retries(policy: RetryPolicy, *, remote: bool) -> Object:
    """The retry policy in Istio's API. Without one, Istio retries twice by its own rules."""
    if not policy.num_retries:
        return {"attempts": 0}
    on = [one for one in policy.retry_on.split(",") if one and one != _STATUS_CODES]
    on += [str(status) for status in policy.retriable_status_codes if status in _KNOWN_STATUSES]
    said: Object = {
        "attempts": policy.num_retries,
        # Empty would mean Istio's own conditions; this one matches listed statuses, and none is listed.
        "retryOn": ",".join(on) or _STATUS_CODES,
        "retryIgnorePreviousHosts": True,
        "retryRemoteLocalities": remote,
    }
    if policy.per_try_timeout is not None:
        said["perTryTimeout"] = istio_duration(policy.per_try_timeout.total_seconds())
    if policy.retry_back_off is not None and policy.retry_back_off.base_interval is not None:
        said["backoff"] = istio_duration(policy.retry_back_off.base_interval.total_seconds())
    return said


def _patch(envoy: Route, action: RouteAction, *, high: bool) -> Object:
    """The Envoy route merged into Istio's: only settings that a VirtualService lacks."""
    inner: Object = {}
    if high:
        inner["priority"] = "HIGH"
    if action.idle_timeout:
        inner["idle_timeout"] = _time(action.idle_timeout)
    if action.hedge_policy is not None:
        inner["hedge_policy"] = {"hedge_on_per_try_timeout": True}
    if action.retry_policy is not None and (policy := _patched_retries(action.retry_policy)):
        inner["retry_policy"] = policy
    patch: Object = {"route": inner} if inner else {}
    if envoy.request_body_buffer_limit:
        patch["request_body_buffer_limit"] = envoy.request_body_buffer_limit
    return patch


def _patched_retries(policy: RetryPolicy) -> Object:
    said: Object = {}
    if policy.per_try_idle_timeout is not None:
        said["per_try_idle_timeout"] = _time(policy.per_try_idle_timeout)
    if not policy.num_retries:
        # Istio makes no retry policy then, but the limits of the one try live in it.
        if policy.per_try_timeout is not None:
            said["per_try_timeout"] = _time(policy.per_try_timeout)
        return {"num_retries": 0, **said} if said else said
    unknown = [status for status in policy.retriable_status_codes if status not in _KNOWN_STATUSES]
    if unknown:
        said["retriable_status_codes"] = unknown
        if not any(status in _KNOWN_STATUSES for status in policy.retriable_status_codes):
            said["retry_on"] = policy.retry_on
    said["host_selection_retry_max_attempts"] = policy.host_selection_retry_max_attempts
    if policy.retry_back_off is not None:
        said["retry_back_off"] = {
            "base_interval": _time(policy.retry_back_off.base_interval),
            "max_interval": _time(policy.retry_back_off.max_interval),
        }
    if policy.rate_limited_retry_back_off is not None:
        said["rate_limited_retry_back_off"] = {
            "reset_headers": [{"name": "retry-after", "format": "SECONDS"}],
            "max_interval": _time(policy.rate_limited_retry_back_off.max_interval),
        }
    return said


def _time(value: timedelta | None) -> str:
    return envoy_duration(0.0 if value is None else value.total_seconds())
