"""DestinationRules: connections, outlier detection, zones and retry budgets of a pool in Istio's own API.

The numbers are those of the clusters of Switchgear's own Envoys (``xds_server.translate.pool_clusters``), with the
ceiling for a fleet of healthy engines.

Semantics from Istio's source (``pilot/pkg/networking/core/cluster_traffic_policy.go``): most fields treat zero as
unset, ``minHealthPercent: 0`` is a panic threshold of zero, only a DEFAULT threshold exists, and zones count only
with outlier detection.
"""

from collections.abc import Iterator
from datetime import timedelta

from istio.export.destination_tls import tls_settings
from istio.export.istio_objects import (
    LARGEST_INT32,
    IstioTarget,
    Object,
    governed_by,
    istio_duration,
    istio_object,
)
from istio.export.service_entries import REGION_LABEL, ZONE_LABEL, Destination, group_name, region_groups
from istio.live.desired_state import SERVING_LABEL
from policies.affinity import Affinity
from policies.model import PolicySet
from policies.pool import EnginePool
from policies.resilience import Breaker, ResilienceSpec
from xds_server.decide.decisions import Ceiling
from xds_server.translate.pool_clusters import UPSTREAM_IDLE_S
from xds_server.translate.pool_clusters import outlier_detection as envoy_outlier_detection
from xds_server.translate.runtime import with_hedge_budget


def destination_rule(
    pool: EnginePool,
    spec: ResilienceSpec,
    to: Destination,
    *,
    ceiling: Ceiling | None,
    policies: PolicySet,
    place: IstioTarget,
) -> Object:
    """The DestinationRule of a pool."""
    connections = min(spec.limits.max_connections, LARGEST_INT32)
    http: Object = {
        "http1MaxPendingRequests": connections,
        "idleTimeout": istio_duration(UPSTREAM_IDLE_S),
        # vLLM speaks HTTP/1.1 alone.
        "h2UpgradePolicy": "DO_NOT_UPGRADE",
    }
    policy: Object = {
        "connectionPool": {
            "tcp": {"connectTimeout": istio_duration(spec.timeouts.connect), "maxConnections": connections},
            "http": http,
        },
        "loadBalancer": _balancing(pool, spec, exported_affinity(policies, to.pool)),
        "outlierDetection": outlier_detection(spec.breaker, hedged=spec.hedging.enabled),
    }
    if ceiling is not None:
        # Of interactive requests: a proxy without our patches then treats batch requests as interactive ones. The
        # other way round it would refuse nearly everyone.
        http["http2MaxRequests"] = min(max(1, ceiling.interactive), LARGEST_INT32)
        shared = with_hedge_budget(ceiling, spec.hedging)
        policy["retryBudget"] = {
            "percent": shared.retry_percent,
            "minRetryConcurrency": max(1, shared.retry_min_concurrency),
        }
    if (tls := tls_settings(pool, place)) is not None:
        policy["tls"] = tls
    said: Object = {"host": to.host, "trafficPolicy": policy}
    serving = {SERVING_LABEL: "true"} if to.subset else {}
    subsets = [
        {"name": group_name(regions), "labels": {**_standing_in(regions, label, pool), **serving}}
        for label, regions in region_groups(policies, to.pool).items()
    ]
    if to.subset:
        subsets.append({"name": to.subset, "labels": serving})
    if subsets:
        said["subsets"] = subsets
    return istio_object(
        "DestinationRule",
        to.pool,
        to.namespace,
        said,
        policies=policies,
        of=governed_by(policies, to.pool),
    )


def _standing_in(regions: tuple[str, ...], label: str, pool: EnginePool) -> Object:
    """The label of engines in these regions.

    Istio labels all endpoints with their region, and a subset selects one value. For several regions, engines
    outside of the cluster carry a label of their own. Pods are restricted to the first region: using fewer engines
    breaks no guarantee.
    """
    if len(regions) == 1 or pool.spec.kubernetes is not None:
        return {REGION_LABEL: regions[0]}
    return {label: "true"}


def outlier_detection(breaker: Breaker, *, hedged: bool) -> Object:
    """Istio's outlier detection with the numbers of our own Envoys."""
    ours = envoy_outlier_detection(breaker, hedged=hedged)
    counted = bool(breaker.count_statuses)
    said: Object = {
        "splitExternalLocalOriginErrors": True,
        "consecutive5xxErrors": ours.consecutive_5xx if ours.enforcing_consecutive_5xx and counted else 0,
        "consecutiveGatewayErrors": 0,
        "interval": istio_duration(_seconds(ours.interval)),
        "baseEjectionTime": istio_duration(_seconds(ours.base_ejection_time)),
        "maxEjectionPercent": ours.max_ejection_percent,
        # Of the panic threshold, and 0 turns it off: who is out is decided by ejections, and takes nothing.
        "minHealthPercent": 0,
    }
    if ours.enforcing_consecutive_local_origin_failure:
        said["consecutiveLocalOriginFailures"] = ours.consecutive_local_origin_failure
    if counted:
        said["outlierDetectionHttpErrorCodes"] = sorted(set(breaker.count_statuses))
    return said


def _seconds(value: timedelta | None) -> float:
    return 0.0 if value is None else value.total_seconds()


def exported_affinity(policies: PolicySet, pool: str) -> Affinity | None:
    """The affinity of all routes to this pool, if they have the same and Istio can read its key."""
    found = {
        route.spec.affinity
        for route in policies.routes.values()
        if any(share.pool == pool for share in route.spec.pools)
    }
    one = next(iter(found)) if len(found) == 1 else None
    return one if one is not None and one.by_header_or_cookie else None


def _consistent_hash(affinity: Affinity) -> Object:
    cookie = affinity.cookie
    if cookie is None:
        return {"httpHeaderName": affinity.header, "maglev": {}}
    said: Object = {"name": cookie.name}
    if cookie.ttl is not None:
        # Zero, a session cookie, is not the shortest duration.
        said |= {"path": cookie.path, "ttl": istio_duration(cookie.ttl) if cookie.ttl else "0s"}
    return {"httpCookie": said, "maglev": {}}


def _balancing(pool: EnginePool, spec: ResilienceSpec, affinity: Affinity | None) -> Object:
    said: Object = (
        {"simple": "LEAST_REQUEST"} if affinity is None else {"consistentHash": _consistent_hash(affinity)}
    )
    labels = list(locality_labels(pool))
    if spec.zones.prefer_local and labels:
        said["localityLbSetting"] = {"enabled": True, "failoverPriority": labels}
    else:
        said["localityLbSetting"] = {"enabled": False}
    # Istio allows no warm-up with a consistent hash.
    if spec.slow_start.window and affinity is None:
        said["warmup"] = {
            "duration": istio_duration(spec.slow_start.window),
            "minimumPercent": spec.slow_start.min_weight_percent,
            "aggression": 1.0,
        }
    return said


def locality_labels(pool: EnginePool) -> Iterator[str]:
    """The labels of locality, the most significant first; none if the engines have no zone.

    Regions are among them only where every engine names its own.
    """
    engines = pool.spec.endpoints
    if pool.spec.kubernetes is not None:
        yield from (REGION_LABEL, ZONE_LABEL)  # as every node of a cluster says
        return
    if not any(one.zone for one in engines):
        return
    if all(one.region for one in engines):
        yield REGION_LABEL
    yield ZONE_LABEL
