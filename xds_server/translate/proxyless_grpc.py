"""Resources for gRPC's own xDS client: ``xds:///POOL`` without a proxy.

Such a client subscribes by name and supports part of Envoy's configuration: an API listener with its route, round
robin over weighted localities, endpoint health. Unsupported settings are omitted, and so are limits that it
cannot follow live.

A pool's ``tls`` is omitted, too. These clients have no SDS: they use certificate providers from their bootstrap,
refuse clusters that name others, and ignore TLS unless the channel was created for it. Only the channel's TLS
settings count; status names clients that are served such a pool.

Source: gRPC proposals A27 (xDS balancing), A29 (TLS), A32 (circuit breaking).
"""

from envoy_data_plane.envoy.config.cluster.v3 import (
    CircuitBreakers,
    CircuitBreakersThresholds,
    Cluster,
    ClusterDiscoveryType,
    ClusterEdsClusterConfig,
    ClusterLbPolicy,
)
from envoy_data_plane.envoy.config.core.v3 import RoutingPriority
from envoy_data_plane.envoy.config.listener.v3 import ApiListener, Listener
from envoy_data_plane.envoy.config.route.v3 import (
    Route,
    RouteAction,
    RouteConfiguration,
    RouteMatch,
    VirtualHost,
)
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpFilter,
)

from policies.resilience import ResilienceSpec
from xds_server.translate.envoy_values import ads_config_source, pack_any, seconds


def api_listener(pool: str) -> Listener:
    """API listener under the name of the pool; its only route leads to the pool."""
    routes = RouteConfiguration(
        name=pool,
        virtual_hosts=[
            VirtualHost(
                name=pool,
                domains=["*"],
                routes=[
                    Route(
                        match=RouteMatch(prefix=""),
                        route=RouteAction(cluster=pool, timeout=seconds(0)),
                    )
                ],
            )
        ],
    )
    manager = HttpConnectionManager(
        route_config=routes,
        http_filters=[HttpFilter(name="envoy.filters.http.router", typed_config=pack_any(Router()))],
    )
    return Listener(name=pool, api_listener=ApiListener(api_listener=pack_any(manager)))


def grpc_cluster(pool: str, spec: ResilienceSpec) -> Cluster:
    """Cluster of a pool without Envoy-only settings."""
    return Cluster(
        name=pool,
        type=ClusterDiscoveryType.EDS,
        eds_cluster_config=ClusterEdsClusterConfig(eds_config=ads_config_source()),
        lb_policy=ClusterLbPolicy.ROUND_ROBIN,
        circuit_breakers=CircuitBreakers(
            thresholds=[
                # gRPC's own default is 1024.
                CircuitBreakersThresholds(
                    priority=RoutingPriority.DEFAULT, max_requests=spec.limits.max_connections
                )
            ]
        ),
    )
