"""grpc-python's own xDS client (``xds:///``) against the ADS server: another peer, another half of the protocol.

It speaks state of the world only and subscribes to listeners and clusters by name. It reads its bootstrap from the
environment once per process, so the client is a process of its own that prints one answer per line asked for.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import grpc
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

from xds_server.publish import Publisher
from xds_server.snapshot import Resource, resource, snapshot
from xds_server.translate.shapes import over_ads, packed
from xds_server.transport import GrpcAdsServer
from xds_server.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE

pytestmark = pytest.mark.envoy

LIMIT_S = 60.0

CLIENT = """
import sys, grpc
channel = grpc.insecure_channel("xds:///svc")
call = channel.unary_unary("/test.Echo/Who")
for line in sys.stdin:
    try:
        print(call(b"", timeout=20, wait_for_ready=True).decode(), flush=True)
    except grpc.RpcError as error:
        print(f"{error.code().name} {error.details()}", flush=True)
"""


class _Who(grpc.GenericRpcHandler):
    """Answers every call with a name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:  # noqa: ARG002
        async def who(_request: bytes, _context: object) -> bytes:
            return self._name.encode()

        return grpc.unary_unary_rpc_method_handler(who)


@pytest.fixture
async def backends() -> AsyncIterator[dict[str, int]]:
    """Two gRPC servers by name, with their ports."""
    servers, ports = [], {}
    for name in ("a", "b"):
        server = grpc.aio.server(handlers=[_Who(name)])
        ports[name] = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        servers.append(server)
    yield ports
    for server in servers:
        await server.stop(None)


def resources(ports: dict[str, int], sick: str = "", connect_timeout_s: float = 1.0) -> list[Resource]:
    manager = HttpConnectionManager(
        rds=Rds(config_source=over_ads(), route_config_name="rc"),
        http_filters=[HttpFilter(name="router", typed_config=packed(Router()))],
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
            bytes(Listener(name="svc", api_listener=ApiListener(api_listener=packed(manager)))),
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
                    eds_cluster_config=ClusterEdsClusterConfig(eds_config=over_ads()),
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


async def test_a_grpc_client_finds_its_backends_and_follows_their_health(backends: dict[str, int]) -> None:
    wanted = snapshot(resources(backends))
    publisher = Publisher(view_of=lambda _node: "all", snapshot_for=lambda _view: wanted)
    server = GrpcAdsServer(publisher)
    port = await server.start()
    config = {
        "xds_servers": [
            {
                "server_uri": f"127.0.0.1:{port}",
                "channel_creds": [{"type": "insecure"}],
                "server_features": ["xds_v3"],
            }
        ],
        "node": {"id": "grpc-1", "locality": {"zone": "z1"}},
    }
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        CLIENT,
        env={"GRPC_XDS_BOOTSTRAP_CONFIG": json.dumps(config)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert client.stdin is not None
    assert client.stdout is not None

    async def ask() -> str:
        client.stdin.write(b"\n")
        return (await asyncio.wait_for(client.stdout.readline(), LIMIT_S)).decode().strip()

    async def until_only(name: str) -> None:
        give_up_at = time.monotonic() + LIMIT_S
        while (answers := {await ask() for _ in range(6)}) != {name}:
            assert time.monotonic() < give_up_at, answers

    try:
        assert {await ask() for _ in range(10)} == {"a", "b"}
        (proxy,) = publisher.proxies()
        assert proxy.mode.value == "sotw"
        held = {status.type_url: status.held for status in proxy.types}
        assert held == {LISTENER: 1, ROUTE: 1, CLUSTER: 1, ENDPOINT: 1}

        publisher.publish({"all": snapshot(resources(backends, sick="a"))}, time.monotonic())
        await until_only("b")
        changed = resources(backends, sick="b", connect_timeout_s=2.0)
        publisher.publish({"all": snapshot(changed)}, time.monotonic())
        await until_only("a")
        assert all(status.state.value == "SYNCED" for status in publisher.proxies()[0].types)
    finally:
        client.kill()
        await client.wait()
        await server.stop()
