"""grpc-python's own xDS client (``xds:///``) against the ADS server: another peer, another half of the protocol.

It speaks state of the world only and subscribes to listeners and clusters by name. It reads its bootstrap from the
environment once per process, so the client is a process of its own (``grpc_client``).
"""

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from envoy_data_plane.envoy.config.cluster.v3 import Cluster, ClusterDiscoveryType, ClusterEdsClusterConfig
from envoy_data_plane.envoy.config.core.v3 import Address, HealthStatus, Locality, SocketAddress
from envoy_data_plane.envoy.config.endpoint.v3 import (
    ClusterLoadAssignment,
    Endpoint,
    LbEndpoint,
    LocalityLbEndpoints,
)
from envoy_data_plane.envoy.config.listener.v3 import ApiListener, Listener
from envoy_data_plane.envoy.config.route.v3 import Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpFilter,
    Rds,
)

from tests.with_envoy.grpc_client import answered_by, answering, calling, in_step
from xds_server.model.snapshot import Resource, resource, snapshot
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE
from xds_server.publish import Publisher
from xds_server.publish.grpc_ads import GrpcAdsServer
from xds_server.translate.envoy_values import ads_config_source, pack_any

pytestmark = pytest.mark.envoy


def resources(ports: dict[str, int], sick: str = "", connect_timeout_s: float = 1.0) -> list[Resource]:
    manager = HttpConnectionManager(
        rds=Rds(config_source=ads_config_source(), route_config_name="rc"),
        http_filters=[HttpFilter(name="router", typed_config=pack_any(Router()))],
    )
    hosts = [
        LbEndpoint(
            endpoint=Endpoint(address=Address(socket_address=SocketAddress(address="127.0.0.1", port_value=port))),
            health_status=HealthStatus.DRAINING if name == sick else HealthStatus.HEALTHY,
        )
        for name, port in ports.items()
    ]
    return [
        resource(
            LISTENER,
            "svc",
            bytes(Listener(name="svc", api_listener=ApiListener(api_listener=pack_any(manager)))),
        ),
        resource(
            ROUTE,
            "rc",
            bytes(
                RouteConfiguration(
                    name="rc",
                    virtual_hosts=[
                        VirtualHost(
                            name="v",
                            domains=["*"],
                            routes=[Route(match=RouteMatch(prefix=""), route=RouteAction(cluster="c"))],
                        )
                    ],
                )
            ),
        ),
        resource(
            CLUSTER,
            "c",
            bytes(
                Cluster(
                    name="c",
                    type=ClusterDiscoveryType.EDS,
                    eds_cluster_config=ClusterEdsClusterConfig(eds_config=ads_config_source()),
                    connect_timeout=timedelta(seconds=connect_timeout_s),
                )
            ),
        ),
        # Never asked for by this client, and so never to be sent to it.
        resource(CLUSTER, "unrelated", bytes(Cluster(name="unrelated"))),
        resource(
            ENDPOINT,
            "c",
            bytes(
                ClusterLoadAssignment(
                    cluster_name="c",
                    endpoints=[
                        LocalityLbEndpoints(
                            locality=Locality(zone="z1"), lb_endpoints=hosts, load_balancing_weight=1
                        )
                    ],
                )
            ),
        ),
    ]


async def test_proxyless_grpc_client_finds_its_backends_and_follows_their_health() -> None:
    async with answering("a", "b") as backends:
        wanted = snapshot(resources(backends))
        publisher = Publisher(view_of=lambda _node: "all", snapshot_for=lambda _view: wanted)
        server = GrpcAdsServer(publisher)
        port = await server.start()
        try:
            async with calling("xds:///svc", port, "grpc-1", "z1") as ask:
                await _follows(ask, publisher, backends)
        finally:
            await server.stop()


async def _follows(ask: Callable[[], Awaitable[str]], publisher: Publisher, backends: dict[str, int]) -> None:
    await answered_by(ask, "a", "b")
    await in_step(publisher)
    (proxy,) = publisher.proxies()
    assert proxy.mode.value == "sotw"
    held = {status.type_url: status.held for status in proxy.types}
    assert held == {LISTENER: 1, ROUTE: 1, CLUSTER: 1, ENDPOINT: 1}

    publisher.publish({"all": snapshot(resources(backends, sick="a"))}, time.monotonic())
    await answered_by(ask, "b")
    changed = resources(backends, sick="b", connect_timeout_s=2.0)
    publisher.publish({"all": snapshot(changed)}, time.monotonic())
    await answered_by(ask, "a")
    await in_step(publisher)
