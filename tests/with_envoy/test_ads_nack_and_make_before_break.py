"""A real Envoy against the ADS server: first light, changes, refusals, restarts, and a fault it never reports."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from envoy_data_plane.envoy.config.cluster.v3 import (
    Cluster,
    ClusterCommonLbConfig,
    ClusterDiscoveryType,
    ClusterEdsClusterConfig,
    ClusterLbPolicy,
    ClusterRingHashLbConfig,
)
from envoy_data_plane.envoy.config.core.v3 import Address, HealthStatus, SocketAddress
from envoy_data_plane.envoy.config.endpoint.v3 import (
    ClusterLoadAssignment,
    Endpoint,
    LbEndpoint,
    LocalityLbEndpoints,
)
from envoy_data_plane.envoy.config.listener.v3 import Filter, FilterChain, Listener
from envoy_data_plane.envoy.config.route.v3 import Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpFilter,
    Rds,
)
from envoy_data_plane.envoy.type.v3 import Percent

from chaos.processes import free_ports
from xds_server.model.snapshot import Resource, Snapshot, resource, snapshot
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE, RUNTIME, SHORT_NAMES
from xds_server.publish import Nack, NullObserver, Publisher
from xds_server.publish.grpc_ads import GrpcAdsServer
from xds_server.publish.h2_ads import H2AdsServer
from xds_server.translate.envoy_values import ads_config_source, pack_any
from xds_server.wire.varint import delimited
from xds_server.xds import NodeInfo, StuckResponse

pytestmark = pytest.mark.envoy

LIMIT_S = 60.0
FETCH_S = 600.0
"""How patient Envoy is: longer than any test, so that one that waits for it is one that fails."""


def cluster(
    name: str, connect_timeout_s: float = 1.0, fetch_timeout_s: float = FETCH_S, **fields: Any
) -> Resource:
    message = Cluster(
        name=name,
        type=ClusterDiscoveryType.EDS,
        eds_cluster_config=ClusterEdsClusterConfig(eds_config=ads_config_source(fetch_timeout_s)),
        connect_timeout=timedelta(seconds=connect_timeout_s),
        common_lb_config=ClusterCommonLbConfig(healthy_panic_threshold=Percent(value=0.0)),
        **fields,
    )
    return resource(CLUSTER, name, bytes(message), [f"{name}.yaml:1"])


def never_reported_cluster(name: str) -> Resource:
    """A cluster that Envoy 1.40 refuses without a NACK."""
    return cluster(
        name,
        lb_policy=ClusterLbPolicy.RING_HASH,
        ring_hash_lb_config=ClusterRingHashLbConfig(minimum_ring_size=2048, maximum_ring_size=1024),
    )


def endpoints(name: str, ports: Iterable[int], sick: Iterable[int] = ()) -> Resource:
    unwell = set(sick)
    hosts = [
        LbEndpoint(
            endpoint=Endpoint(address=Address(socket_address=SocketAddress(address="127.0.0.1", port_value=port))),
            health_status=HealthStatus.UNHEALTHY if port in unwell else HealthStatus.HEALTHY,
        )
        for port in ports
    ]
    message = ClusterLoadAssignment(cluster_name=name, endpoints=[LocalityLbEndpoints(lb_endpoints=hosts)])
    return resource(ENDPOINT, name, bytes(message))


def listener(name: str = "in", route_name: str = "rc", port: int = 0) -> Resource:
    manager = HttpConnectionManager(
        stat_prefix=name,
        rds=Rds(config_source=ads_config_source(FETCH_S), route_config_name=route_name),
        http_filters=[HttpFilter(name="envoy.filters.http.router", typed_config=pack_any(Router()))],
    )
    message = Listener(
        name=name,
        address=Address(socket_address=SocketAddress(address="127.0.0.1", port_value=port)),
        filter_chains=[
            FilterChain(
                filters=[
                    Filter(name="envoy.filters.network.http_connection_manager", typed_config=pack_any(manager))
                ]
            )
        ],
    )
    return resource(LISTENER, name, bytes(message))


def route(to: str, name: str = "rc", prefix: str = "/") -> Resource:
    message = RouteConfiguration(
        name=name,
        virtual_hosts=[
            VirtualHost(
                name="all",
                domains=["*"],
                routes=[Route(match=RouteMatch(prefix=prefix), route=RouteAction(cluster=to))],
            )
        ],
    )
    return resource(ROUTE, name, bytes(message), [f"{name}.yaml:7"])


def runtime(name: str = "live") -> Resource:
    return resource(RUNTIME, name, delimited(1, name.encode()))


@dataclass
class PublishLog(NullObserver):
    """Pushes, ACKs and NACKs seen by the server."""

    pushes: list[str] = field(default_factory=list)
    nacks: list[Nack] = field(default_factory=list)
    stuck: list[StuckResponse] = field(default_factory=list)

    def on_push(self, node: NodeInfo, type_url: str, size_bytes: int) -> None:  # noqa: ARG002
        self.pushes.append(SHORT_NAMES[type_url])

    def on_nack(self, nack: Nack) -> None:
        self.nacks.append(nack)

    def on_stuck(self, node: NodeInfo, stuck: StuckResponse) -> None:  # noqa: ARG002
        self.stuck.append(stuck)


class Plane:
    """A control plane with one view, which can be stopped and started again on the same port."""

    def __init__(self, transport: type[GrpcAdsServer | H2AdsServer]) -> None:
        self._transport = transport
        self.port = 0
        self.seen = PublishLog()
        self.wanted = Snapshot()

    async def start(self) -> None:
        self.publisher = Publisher(
            view_of=lambda _node: "all",
            snapshot_for=lambda _view: self.wanted,
            observer=self.seen,
            epoch=f"{time.monotonic_ns():x}-",
        )
        # Below the ephemeral range: no outgoing connection may take it while the server is away.
        self.server = self._transport(self.publisher, port=self.port or free_ports(1)[0])
        self.port = await self.server.start()
        self.ticking = asyncio.create_task(self.server.run())

    async def stop(self) -> None:
        self.ticking.cancel()
        await asyncio.wait([self.ticking])
        await self.server.stop()

    def serve(self, *resources: Resource) -> None:
        self.wanted = snapshot(resources)
        if self.port:
            self.publisher.publish({"all": self.wanted}, time.monotonic())

    def states(self) -> dict[str, str]:
        """The sync state of every type of every proxy, as ``node/CDS``."""
        return {
            f"{proxy.node.id}/{SHORT_NAMES[status.type_url]}": status.state.value
            for proxy in self.publisher.proxies()
            for status in proxy.types
        }

    def settled(self) -> bool:
        states = self.states()
        return bool(states) and set(states.values()) == {"SYNCED"}


@pytest.fixture(params=[GrpcAdsServer, H2AdsServer])
async def plane(request: pytest.FixtureRequest) -> AsyncIterator[Plane]:
    made = Plane(request.param)
    yield made
    await made.stop()


@pytest.fixture
async def engines() -> AsyncIterator[list[int]]:
    """The ports of two servers that answer with their own port."""
    runners, ports = [], []
    for _ in range(2):

        async def answer(request: web.Request) -> web.Response:
            transport = request.transport
            assert transport is not None
            return web.Response(text=str(transport.get_extra_info("sockname")[1]))

        app = web.Application()
        app.router.add_get("/{tail:.*}", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        runners.append(runner)
        ports.append(runner.addresses[0][1])
    yield ports
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def bootstrap(port: int, node: str = "n1", api: str = "DELTA_GRPC") -> dict[str, Any]:
    grpc_service = {
        "envoy_grpc": {
            "cluster_name": "xds",
            "retry_policy": {"retry_back_off": {"base_interval": "0.1s", "max_interval": "0.5s"}},
        }
    }
    ads = {"ads": {}, "resource_api_version": "V3"}
    return {
        "node": {"id": node, "cluster": "test", "locality": {"zone": "z1"}, "metadata": {"role": "gateway"}},
        "dynamic_resources": {
            "ads_config": {
                "api_type": api,
                "transport_api_version": "V3",
                "set_node_on_first_message_only": True,
                "grpc_services": [grpc_service],
            },
            "cds_config": ads,
            "lds_config": ads,
        },
        "layered_runtime": {"layers": [{"name": "rtds", "rtds_layer": {"name": "live", "rtds_config": ads}}]},
        "static_resources": {
            "clusters": [
                {
                    "name": "xds",
                    "type": "STATIC",
                    "connect_timeout": "1s",
                    "typed_extension_protocol_options": {
                        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                            "explicit_http_config": {"http2_protocol_options": {}},
                        }
                    },
                    "load_assignment": {
                        "cluster_name": "xds",
                        "endpoints": [
                            {
                                "lb_endpoints": [
                                    {
                                        "endpoint": {
                                            "address": {
                                                "socket_address": {"address": "127.0.0.1", "port_value": port}
                                            }
                                        }
                                    }
                                ]
                            }
                        ],
                    },
                }
            ]
        },
    }


async def until(condition: Any, what: str, limit_s: float = LIMIT_S) -> None:
    """Return once ``condition()`` is true."""
    give_up_at = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > give_up_at:
            pytest.fail(f"not {what} after {limit_s} s")
        await asyncio.sleep(0.005)


async def ask(http: aiohttp.ClientSession, port: int) -> tuple[int, str]:
    async with http.get(f"http://127.0.0.1:{port}/", timeout=aiohttp.ClientTimeout(total=LIMIT_S)) as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize("api", ["DELTA_GRPC", "GRPC"])
async def test_initial_fetch_serves_traffic_and_a_restart_resends_nothing(
    api: str, plane: Plane, engines: list[int], start_envoy: Any, http: aiohttp.ClientSession
) -> None:
    plane.serve(runtime(), cluster("c"), endpoints("c", engines), listener(), route("c"))
    await plane.start()
    envoy = await start_envoy(bootstrap(plane.port, api=api))
    port = await envoy.listener_port("in")
    assert {(await ask(http, port))[1] for _ in range(10)} == {str(engine) for engine in engines}
    await until(plane.settled, "settled")
    assert sorted(plane.seen.pushes) == ["CDS", "EDS", "LDS", "RDS", "RTDS"]

    results: list[int] = []
    flowing = True

    async def flow() -> None:
        while flowing:
            results.append((await ask(http, port))[0])
            await asyncio.sleep(0.005)

    traffic = asyncio.create_task(flow())
    await plane.stop()
    pushed = len(plane.seen.pushes)
    before = len(results)
    await until(lambda: len(results) > before + 20, "serving without a control plane")
    await plane.start()
    await until(lambda: len(plane.states()) == 5 and plane.settled(), "reconnected")
    before = len(results)
    await until(lambda: len(results) > before + 20, "serving afterwards")
    flowing = False
    await traffic
    assert plane.seen.pushes[pushed:] == []
    assert set(results) == {200}
    assert plane.seen.nacks == []


@pytest.mark.parametrize("api", ["DELTA_GRPC", "GRPC"])
async def test_eds_health_change_moves_traffic(
    api: str, plane: Plane, engines: list[int], start_envoy: Any, http: aiohttp.ClientSession
) -> None:
    parts = [runtime(), cluster("c"), listener(), route("c")]
    plane.serve(*parts, endpoints("c", engines))
    await plane.start()
    envoy = await start_envoy(bootstrap(plane.port, api=api))
    port = await envoy.listener_port("in")
    await until(plane.settled, "settled")
    pushed = len(plane.seen.pushes)
    plane.serve(*parts, endpoints("c", engines, sick=engines[:1]))
    await until(lambda: len(plane.seen.pushes) > pushed and plane.settled(), "acknowledged")
    assert plane.seen.pushes[pushed:] == ["EDS"]
    assert {(await ask(http, port))[1] for _ in range(20)} == {str(engines[1])}


@pytest.mark.parametrize("api", ["DELTA_GRPC", "GRPC"])
async def test_changed_cluster_warms_at_once_with_unchanged_endpoints(
    api: str, plane: Plane, engines: list[int], start_envoy: Any
) -> None:
    parts = [runtime(), endpoints("c", engines), listener(), route("c")]
    plane.serve(*parts, cluster("c"))
    await plane.start()
    envoy = await start_envoy(bootstrap(plane.port, api=api))
    await until(plane.settled, "settled")
    pushed = len(plane.seen.pushes)
    plane.serve(*parts, cluster("c", connect_timeout_s=2.5))
    # Envoy confirms a cluster when it has warmed; without endpoints behind it that takes its whole patience.
    await until(lambda: len(plane.seen.pushes) > pushed and plane.settled(), "acknowledged")
    assert plane.seen.pushes[pushed:] == ["CDS", "EDS"]
    assert "2.500s" in await envoy.get("/config_dump?resource=dynamic_active_clusters")
    assert (await envoy.stats("cluster.c."))["cluster.c.init_fetch_timeout"] == 0


async def test_nacked_route_is_rolled_back_for_each_and_the_next_change_is_served(
    plane: Plane, engines: list[int], start_envoy: Any, http: aiohttp.ClientSession
) -> None:
    parts = [runtime(), cluster("c"), endpoints("c", engines), listener()]
    good = route("c")
    plane.serve(*parts, good)
    await plane.start()
    envoy = await start_envoy(bootstrap(plane.port))
    port = await envoy.listener_port("in")
    await until(plane.settled, "settled")

    # No virtual host may have an empty domain list: a constraint of the message, checked by Envoy.
    bad = resource(
        ROUTE, "rc", bytes(RouteConfiguration(name="rc", virtual_hosts=[VirtualHost(name="v")])), ["p.yaml:3"]
    )
    plane.serve(*parts, bad)
    await until(lambda: plane.seen.nacks, "refused")
    nack = plane.seen.nacks[0]
    assert [item.origins for item in nack.resources] == [("p.yaml:3",)]
    assert "constraint" in nack.reason
    assert plane.states()["n1/RDS"] == "NACK"
    assert (await ask(http, port))[0] == 200

    newcomer = await start_envoy(bootstrap(plane.port, node="n2"))
    newcomer_port = await newcomer.listener_port("in")

    async def rolled_back() -> bool:
        # Its listener is ready as soon as it refused the routes, so its first answers may be 404.
        return (await ask(http, newcomer_port))[0] == 200

    await newcomer.wait_for(rolled_back, "serving the routes before the refused ones")
    assert [nack.node.id for nack in plane.seen.nacks] == ["n1", "n2"], "each proxy judges by itself"

    plane.serve(*parts, cluster("other"), endpoints("other", engines[:1]), route("other"))
    await until(lambda: plane.settled() and len(plane.states()) == 10, "settled on the next change")
    assert {(await ask(http, port))[1] for _ in range(10)} == {str(engines[0])}


async def test_accepted_part_of_a_nacked_delta_response_is_served(
    plane: Plane, engines: list[int], start_envoy: Any
) -> None:
    parts = [runtime(), cluster("c"), endpoints("c", engines), listener(), route("c")]
    plane.serve(*parts)
    await plane.start()
    envoy = await start_envoy(bootstrap(plane.port))
    await until(plane.settled, "settled")
    broken = cluster("broken", connect_timeout_s=-1.0)
    plane.serve(*parts, broken, cluster("fine"), endpoints("fine", engines), endpoints("broken", engines))

    async def has_fine() -> bool:
        return "cluster.fine.membership_total" in await envoy.stats("cluster.fine.")

    await envoy.wait_for(has_fine, "in possession of the good cluster")
    await until(lambda: {"n1/CDS": "NACK"}.items() <= plane.states().items(), "refusing the bad one")
    await until(
        lambda: {name for (_, name, _) in plane.publisher.nack_policy.rejected_contents} == {"broken"},
        "isolated the culprit",
    )


async def test_make_before_break_removes_a_cluster_after_its_route(
    plane: Plane, engines: list[int], start_envoy: Any, http: aiohttp.ClientSession
) -> None:
    base = [runtime(), listener()]
    plane.serve(*base, cluster("old"), endpoints("old", engines[:1]), route("old"))
    await plane.start()
    envoy = await start_envoy(bootstrap(plane.port))
    port = await envoy.listener_port("in")
    await until(plane.settled, "settled")
    results: list[tuple[int, str]] = []
    flowing = True

    async def flow() -> None:
        while flowing:
            results.append(await ask(http, port))

    traffic = asyncio.create_task(flow())
    pushed = len(plane.seen.pushes)
    plane.serve(*base, cluster("new"), endpoints("new", engines[1:]), route("new"))

    async def old_is_gone() -> bool:
        return not await envoy.stats("cluster.old.")

    await envoy.wait_for(old_is_gone, "rid of the old cluster")
    await until(plane.settled, "settled")
    flowing = False
    await traffic
    order = plane.seen.pushes[pushed:]
    assert order.index("CDS") < order.index("EDS") < order.index("RDS") < len(order) - 1 - order[::-1].index("CDS")
    assert {status for status, _ in results} == {200}
    assert (await ask(http, port))[1] == str(engines[1])


async def test_envoy_without_cds_subscription_gets_implicit_push(
    plane: Plane, engines: list[int], start_envoy: Any
) -> None:
    parts = [runtime(), cluster("c"), endpoints("c", engines), listener(), route("c")]
    plane.serve(*parts)
    await plane.start()
    envoy = await start_envoy(bootstrap(plane.port))
    await until(plane.settled, "settled")
    # One cluster that fails late and one that is fine: Envoy logs the rejection and says nothing.
    plane.serve(
        *parts, never_reported_cluster("w"), endpoints("w", engines), cluster("d"), endpoints("d", engines)
    )

    async def rejected() -> bool:
        return (await envoy.stats("cluster_manager.cds."))["cluster_manager.cds.update_rejected"] > 0

    await envoy.wait_for(rejected, "rejecting the cluster")
    assert plane.states()["n1/CDS"] == "STALE"
    await plane.stop()
    plane.serve(*parts, cluster("e"), endpoints("e", engines))
    await plane.start()

    async def has_the_next_cluster() -> bool:
        return "cluster.e.membership_total" in await envoy.stats("cluster.e.")

    await envoy.wait_for(has_the_next_cluster, "served clusters again")
