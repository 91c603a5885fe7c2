"""EnvoyFilters: settings without a field in Istio's API, merged into istiod's configuration.

Only MERGE is used, with these semantics: lists are appended to, a zero changes nothing that Istio has
set, durations are replaced (``pkg/proto/merge`` in Istio). So a threshold for another priority can be added to a
cluster, and Istio's own cannot be changed. Packed configuration of extensions is replaced as a whole: only a
cluster's HTTP options are, whose other fields follow from our own DestinationRule.

Every patch names the service, or the route, that it is for. Proxies too old for the fields used are left out.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from istio.export.destination_tls import shared_server_name
from istio.export.istio_objects import (
    FILTERS,
    LARGEST_INT32,
    IstioTarget,
    Object,
    envoy_duration,
    governed_by,
    istio_object,
    object_name,
)
from istio.export.service_entries import Destination
from istio.export.virtual_services import RoutePort
from policies.model import PolicySet
from policies.pool import EnginePool
from policies.resilience import ResilienceSpec
from xds_server.decide.decisions import Ceiling
from xds_server.model.type_urls import CLUSTER
from xds_server.translate.envoy_json import as_json
from xds_server.translate.pool_clusters import CHOICE_COUNT, HTTP_OPTIONS, outlier_detection, pool_cluster
from xds_server.translate.runtime import with_hedge_budget
from xds_server.translate.translated_resource import TranslatedResource

PROXY_VERSIONS: Final = r"^1\.(2[89]|[3-9][0-9])\..*"
"""Istio 1.28 brought the Envoy that knows ``request_body_buffer_limit``."""


def pool_filter(
    spec: ResilienceSpec, to: Destination, place: IstioTarget, *, batch: Ceiling | None, policies: PolicySet
) -> Object:
    """The patch of a pool's cluster. ``batch`` is the ceiling where batch requests have one of their own."""
    ours = outlier_detection(spec.breaker, hedged=spec.hedging.enabled)
    counted = bool(spec.breaker.count_statuses)
    detection: Object = {"max_ejection_time": envoy_duration(_seconds(ours.max_ejection_time))}
    if ours.enforcing_failure_percentage and counted:
        detection |= {
            "failure_percentage_threshold": ours.failure_percentage_threshold,
            "enforcing_failure_percentage": ours.enforcing_failure_percentage,
            "failure_percentage_minimum_hosts": ours.failure_percentage_minimum_hosts,
            "failure_percentage_request_volume": ours.failure_percentage_request_volume,
        }
    if not ours.enforcing_consecutive_local_origin_failure:
        # Istio leaves it to Envoy, which ejects after five.
        detection["enforcing_consecutive_local_origin_failure"] = 0
    if not ours.max_ejection_percent:
        detection["max_ejection_percent"] = 0  # which Istio takes for no value
    value: Object = {
        "least_request_lb_config": {"choice_count": CHOICE_COUNT},
        "common_lb_config": {"update_merge_window": "0s"},
        "ignore_health_on_host_removal": True,
        "outlier_detection": detection,
        # istiod does not read outlierDetectionHttpErrorCodes (1.31-dev): every 5xx would count, also a 503 of an
        # engine that sheds load.
        "typed_extension_protocol_options": {HTTP_OPTIONS: _http_options(spec, policies.pools[to.pool])},
    }
    if batch is not None:
        value["circuit_breakers"] = {"thresholds": [_batch_threshold(spec, batch)]}
    patch: Object = {
        "applyTo": "CLUSTER",
        "match": {**_match(place), "cluster": {"service": to.host}},
        "patch": {"operation": "MERGE", "value": value},
    }
    return _filter(
        object_name("pool", to.namespace, to.pool), [patch], place, policies, governed_by(policies, to.pool)
    )


def _http_options(spec: ResilienceSpec, pool: EnginePool) -> Object:
    """Those of our own cluster; the patch replaces istiod's."""
    name = pool.metadata.name
    own = as_json(TranslatedResource(type_url=CLUSTER, name=name, message=pool_cluster(name, spec)))
    options: Object = own["typed_extension_protocol_options"][HTTP_OPTIONS]
    if pool.spec.tls is not None and not shared_server_name(pool):
        options["upstream_http_protocol_options"] = {"auto_sni": True}  # as istiod has it for a rule without sni
    return options


def _batch_threshold(spec: ResilienceSpec, ceiling: Ceiling) -> Object:
    connections = min(spec.limits.max_connections, LARGEST_INT32)
    shared = with_hedge_budget(ceiling, spec.hedging)
    return {
        "priority": "HIGH",
        "max_connections": connections,
        "max_pending_requests": connections,
        "max_requests": ceiling.batch,
        "track_remaining": True,
        "retry_budget": {
            "budget_percent": {"value": shared.retry_percent},
            "min_retry_concurrency": shared.retry_min_concurrency,
        },
    }


def route_filter(entry: RoutePort, place: IstioTarget, policies: PolicySet) -> Object | None:
    """The patches of a port's routes; None where there is nothing to add."""
    patches = list(_route_patches(entry, place))
    if not patches:
        return None
    return _filter(object_name(entry.name, entry.namespace), patches, place, policies, entry.of)


def _route_patches(entry: RoutePort, place: IstioTarget) -> Iterator[Object]:
    # A gateway's virtual hosts are named after its servers; a sidecar's after what callers ask for and its port,
    # which is 80 where the mesh knows no service of that name.
    host: Object = {} if place.gateway or place.host else {"name": f"{entry.host}:{entry.port}"}
    for rule in entry.rules:
        if rule.patch:
            yield {
                "applyTo": "HTTP_ROUTE",
                "match": {
                    **_match(place),
                    "routeConfiguration": {"vhost": {**host, "route": {"name": rule.name, "action": "ROUTE"}}},
                },
                "patch": {"operation": "MERGE", "value": rule.patch},
            }


def _match(place: IstioTarget) -> Object:
    return {"context": place.context, "proxy": {"proxyVersion": PROXY_VERSIONS}}


def _filter(
    name: str, patches: Sequence[Object], place: IstioTarget, policies: PolicySet, of: Sequence[str]
) -> Object:
    return istio_object(
        "EnvoyFilter",
        name,
        place.filter_namespace,
        {"configPatches": list(patches)},
        policies=policies,
        of=of,
        version=FILTERS,
    )


def _seconds(value: timedelta | None) -> float:
    return 0.0 if value is None else value.total_seconds()
