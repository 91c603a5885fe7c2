"""ADS port of both transports with a real gRPC client: streams, refusals, stalled peers, storms, shutdown."""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from xds_server.auth.connection_limit import most_connections
from xds_server.model.snapshot import Resource, resource, snapshot
from xds_server.model.type_urls import CLUSTER, ENDPOINT
from xds_server.publish import Publisher
from xds_server.publish.grpc_ads import GrpcAdsServer
from xds_server.publish.h2_ads import H2AdsServer
from xds_server.wire.decode import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DeltaDiscoveryResponseMessage,
    DiscoveryRequest,
    DiscoveryResponse,
)
from xds_server.xds import NodeInfo

LIMIT_S = 60.0
SERVICE = "/envoy.service.discovery.v3.AggregatedDiscoveryService"


SERVERS = {"grpc": GrpcAdsServer, "h2": H2AdsServer}


class Plane:
    def __init__(self, transport: str) -> None:
        self.wanted = snapshot([cluster("c", b"1")])
        self.seen_nodes: list[NodeInfo] = []
        self.publisher = Publisher(view_of=self._view_of, snapshot_for=lambda _view: self.wanted)
        self.make_server = SERVERS[transport]
        self.server = self.make_server(self.publisher)
        self.port = 0

    def _view_of(self, node: NodeInfo) -> str:
        self.seen_nodes.append(node)
        return "v"

    def publish(self, *resources: Resource) -> None:
        self.wanted = snapshot(resources)
        self.publisher.publish({"v": self.wanted}, time.monotonic())


def cluster(name: str, value: bytes) -> Resource:
    return resource(CLUSTER, name, value)


@pytest.fixture(params=SERVERS)
async def plane(request: pytest.FixtureRequest) -> AsyncIterator[Plane]:
    made = Plane(request.param)
    made.port = await made.server.start()
    yield made
    await made.server.stop()


@pytest.fixture
async def channel(plane: Plane) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{plane.port}") as made:
        yield made


def delta(channel: grpc.aio.Channel) -> Any:
    return channel.stream_stream(f"{SERVICE}/DeltaAggregatedResources")()


async def send(call: Any, type_url: str = CLUSTER, node: str = "", **fields: Any) -> None:
    request = DeltaDiscoveryRequest(type_url=type_url, **fields)
    if node:
        request.node.id = node
    await call.write(request.SerializeToString())


async def receive(call: Any) -> DeltaDiscoveryResponseMessage:
    return DeltaDiscoveryResponse.FromString(await asyncio.wait_for(call.read(), LIMIT_S))


async def until(condition: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < give_up_at, f"not {what} after {LIMIT_S} s"
        await asyncio.sleep(0.005)


async def test_delta_stream_gets_its_subscription_and_every_change(
    plane: Plane, channel: grpc.aio.Channel
) -> None:
    call = delta(channel)
    request = DeltaDiscoveryRequest(type_url=CLUSTER)
    request.node.id = "n1"
    request.node.locality.zone = "z1"
    request.node.metadata.update({"role": "gateway", "pools": ["a"]})
    request.node.user_agent_name = "envoy"
    await call.write(request.SerializeToString())
    first = await receive(call)
    assert [(item.name, item.resource.value) for item in first.resources] == [("c", b"1")]
    await send(call, response_nonce=first.nonce)
    plane.publish(cluster("c", b"2"))
    second = await receive(call)
    assert [(item.name, item.resource.value) for item in second.resources] == [("c", b"2")]
    await send(call, response_nonce=second.nonce)
    await until(lambda: plane.publisher.proxies()[0].types[0].state.value == "SYNCED", "acknowledged")
    (node,) = plane.seen_nodes
    assert (node.id, node.zone, node.user_agent_name) == ("n1", "z1", "envoy")
    assert node.metadata == {"role": "gateway", "pools": ["a"]}
    await call.done_writing()
    await until(lambda: not plane.publisher.proxies(), "forgotten")


async def test_sotw_stream_is_served_on_the_same_port(plane: Plane, channel: grpc.aio.Channel) -> None:
    plane.publish(cluster("c", b"1"), cluster("d", b"1"))
    call = channel.stream_stream(f"{SERVICE}/StreamAggregatedResources")()
    request = DiscoveryRequest(type_url=CLUSTER, resource_names=["c"])
    request.node.id = "g1"
    await call.write(request.SerializeToString())
    response = DiscoveryResponse.FromString(await asyncio.wait_for(call.read(), LIMIT_S))
    assert [item.value for item in response.resources] == [b"1"]
    call.cancel()


async def test_peer_error_ends_the_stream_with_a_reason(plane: Plane, channel: grpc.aio.Channel) -> None:
    for data, words in (
        (DeltaDiscoveryRequest(type_url=CLUSTER).SerializeToString(), "node.id"),
        (b"\xff\xff", "not a discovery request"),
    ):
        call = delta(channel)
        await call.write(data)
        assert await asyncio.wait_for(call.code(), LIMIT_S) is grpc.StatusCode.INVALID_ARGUMENT
        assert words in await call.details()
    assert plane.publisher.proxies() == ()


async def test_an_unknown_method_is_refused(channel: grpc.aio.Channel) -> None:
    call = channel.stream_stream(f"{SERVICE}/Nothing")()
    assert await asyncio.wait_for(call.code(), LIMIT_S) is grpc.StatusCode.UNIMPLEMENTED


async def test_slow_peer_gets_the_first_and_the_latest_snapshot(plane: Plane, channel: grpc.aio.Channel) -> None:
    call = delta(channel)
    await send(call, node="n1")
    await send(call, response_nonce=(await receive(call)).nonce)
    await until(lambda: plane.publisher.proxies()[0].types[0].held == 1, "acknowledged")
    for n in range(2, 101):
        plane.publish(cluster("c", str(n).encode()))
    values = []
    while not values or values[-1] != b"100":
        response = await receive(call)
        values.append(response.resources[0].resource.value)
        await send(call, response_nonce=response.nonce)
    assert len(values) <= 3


async def test_non_reading_peer_blocks_no_other_stream(plane: Plane, channel: grpc.aio.Channel) -> None:
    big = b"x" * 2_000_000
    plane.publish(cluster("c", big))
    with socket.create_connection(("127.0.0.1", plane.port)) as stalled:
        # A peer that opens a stream, subscribes, and never reads or grants more than HTTP/2's first window.
        stalled.sendall(stalled_opening())
        await until(plane.publisher.proxies, "connected")
        call = delta(channel)
        await send(call, node="healthy")
        first = await receive(call)
        assert first.resources[0].resource.value == big
        await send(call, response_nonce=first.nonce)
        for n in range(5):
            plane.publish(cluster("c", b"%d" % n))
            response = await receive(call)
            assert response.resources[0].resource.value == b"%d" % n
            await send(call, response_nonce=response.nonce)
        states = {proxy.node.id: proxy.types[0].state.value for proxy in plane.publisher.proxies()}
        assert states["stalled"] == "STALE"
    await until(lambda: len(plane.publisher.proxies()) == 1, "rid of the stalled peer")


def stalled_opening() -> bytes:
    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

    def literal(name: bytes, value: bytes) -> bytes:
        return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value

    headers = (
        literal(b":method", b"POST")
        + literal(b":scheme", b"http")
        + literal(b":path", f"{SERVICE}/DeltaAggregatedResources".encode())
        + literal(b":authority", b"x")
        + literal(b"content-type", b"application/grpc")
        + literal(b"te", b"trailers")
    )
    request = DeltaDiscoveryRequest(type_url=CLUSTER)
    request.node.id = "stalled"
    data = request.SerializeToString()
    message = b"\x00" + len(data).to_bytes(4, "big") + data
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    return preface + frame(4, 0, 0, b"") + frame(1, 4, 1, headers) + frame(0, 0, 1, message)


async def test_stopping_ends_streams_cleanly_and_frees_the_port(plane: Plane, channel: grpc.aio.Channel) -> None:
    call = delta(channel)
    await send(call, node="n1")
    await receive(call)
    await plane.server.stop()
    assert await asyncio.wait_for(call.code(), LIMIT_S) is grpc.StatusCode.OK
    assert plane.publisher.proxies() == ()
    again = plane.make_server(plane.publisher, port=plane.port)
    assert await again.start() == plane.port
    with pytest.raises(OSError, match="cannot listen"):
        await plane.make_server(plane.publisher, port=plane.port).start()
    await again.stop()


async def test_writer_exception_ends_the_stream_and_is_raised(
    plane: Plane, channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    call = delta(channel)
    await send(call, node="n1")
    await send(call, response_nonce=(await receive(call)).nonce)
    await until(lambda: plane.publisher.proxies()[0].types[0].held == 1, "acknowledged")
    plane.publish(Resource(type_url=CLUSTER, name="c", value="text, which is a bug", version="v"))  # type: ignore[arg-type]
    assert await asyncio.wait_for(call.code(), LIMIT_S) is grpc.StatusCode.UNKNOWN
    assert plane.publisher.proxies() == ()
    assert "TypeError" in caplog.text


async def test_ticks_reach_the_publisher(plane: Plane) -> None:
    ticks: list[float] = []
    plane.publisher.tick = ticks.append  # type: ignore[method-assign]
    running = asyncio.create_task(plane.server.run())
    await until(lambda: len(ticks) >= 2, "ticking")
    running.cancel()
    await asyncio.wait([running])


async def test_reconnect_storm_of_a_thousand_is_served(plane: Plane) -> None:
    endpoints = resource(ENDPOINT, "c", b"e")
    plane.publish(cluster("c", b"1"), endpoints)
    peers = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.fanout_peers",
        str(plane.port),
        "1000",
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    try:
        assert peers.stdout is not None
        assert b"connected" in await asyncio.wait_for(peers.stdout.readline(), LIMIT_S)
        await until(lambda: sum(proxy.types[-1].held for proxy in plane.publisher.proxies()) == 1000, "settled")
    finally:
        peers.kill()
        await peers.wait()
    await until(lambda: not plane.publisher.proxies(), "forgotten")


@pytest.mark.parametrize(("descriptors", "most"), [(96, 48), (1024, 512), (4096, 3072), (-1, 2**31 - 1)])
def test_grpc_connection_limit_reserves_file_descriptors(descriptors: int, most: int) -> None:
    assert most_connections(descriptors) == most
