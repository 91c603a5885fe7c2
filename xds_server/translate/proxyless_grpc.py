"""What gRPC's own xDS client is served: ``xds:///POOL`` without any proxy.

Such a client subscribes by name and understands a part of Envoy's configuration: an API listener with the routes
in it, round robin over weighted localities, endpoint health. What it would refuse is left out, and so are the
limits it cannot follow live.

A pool's ``tls`` is left out, too. Such a client knows no SDS: it takes certificates from providers that its own
bootstrap names, refuses a cluster that names another, and looks at none of it unless its channel was made for it.
What its channel says of TLS is what counts; status names clients that are served such a pool.

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
    """The listener a client finds under the name of the pool; its one route leads to the pool."""
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
    """The cluster of a pool without what only Envoy understands."""
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
