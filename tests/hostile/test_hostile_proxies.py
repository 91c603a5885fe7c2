"""Proxies that are hostile or broken, against a real server: each meets a limit, and harms no other."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.eventually import eventually
from tests.hostile.conftest import DELTA, LIMIT_S, Neighbour, Server, connected
from xds_server.auth.stream_limits import MAX_FIRST_BYTES, StreamLimits
from xds_server.model.snapshot import snapshot
from xds_server.model.type_urls import CLUSTER
from xds_server.publish import Publisher
from xds_server.publish.ads_service import MAX_REQUEST_BYTES
from xds_server.publish.grpc_ads import GrpcAdsServer
from xds_server.publish.h2_ads import H2AdsServer
from xds_server.wire.decode import DeltaDiscoveryRequest
from xds_server.xds import StreamErrorKind
from xds_server.xds.messages import MAX_NAMES, MAX_TYPES, MAX_UNACKED

ERRORS = "switchgear_xds_stream_errors_total"
LOGS = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
LOADS = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats"


def said(node: str = "mallory", **fields: object) -> bytes:
    request = DeltaDiscoveryRequest(**{"type_url": CLUSTER, **fields})
    request.node.id = node
    return request.SerializeToString()


NAMES = [f"n{number}" for number in range(MAX_NAMES + 100)]
BAD = {
    "garbage": (StreamErrorKind.GARBAGE, b"\xff" * 100),
    "names without end": (StreamErrorKind.NAMES, said(resource_names_subscribe=NAMES)),
    "a name without end": (StreamErrorKind.NAMES, said(resource_names_subscribe=["x" * 100_000])),
    "a line in its name": (StreamErrorKind.NODE, said("gw\n2026-01-01T00:00:00Z [info     ] serve.forged")),
    "a colour in its name": (StreamErrorKind.NODE, said("gw\x1b[31m")),
    "a name of 300 kB": (StreamErrorKind.NODE, said("x" * 300_000)),
    "no name": (StreamErrorKind.PROTOCOL, DeltaDiscoveryRequest(type_url=CLUSTER).SerializeToString()),
    "no type": (StreamErrorKind.PROTOCOL, said(type_url="")),
}


@pytest.mark.parametrize("name", BAD)
async def test_malformed_discovery_request_ends_its_own_stream(
    server: Server, neighbour: Neighbour, name: str
) -> None:
    flaw, data = BAD[name]
    before = await server.metric(ERRORS, f'flaw="{flaw}"')
    async with connected(server.xds, "mallory") as peer:
        await peer.call.write(data)
        assert await peer.ended() is grpc.StatusCode.INVALID_ARGUMENT
    await server.counts(ERRORS, f'flaw="{flaw}"', before)
    await neighbour.is_served()
    assert "serve.forged" not in server.log()
    assert server.log().replace("\n", "").isprintable()


async def test_node_change_on_a_stream_is_rejected(server: Server, neighbour: Neighbour) -> None:
    before = await server.metric(ERRORS, 'flaw="protocol"')
    for _ in range(20):
        async with connected(server.xds, "mallory") as peer:
            await peer.call.write(said("mallory"))
            await peer.call.write(said("alice"))
            assert await asyncio.wait_for(peer.ended(), LIMIT_S) is grpc.StatusCode.INVALID_ARGUMENT
    await server.counts(ERRORS, 'flaw="protocol"', before + 19)
    await neighbour.is_served()
    assert "Traceback" not in server.log()


async def test_aborted_hostile_stream_logs_no_fault(server: Server, neighbour: Neighbour) -> None:
    for number in range(200):
        async with connected(server.xds, "mallory", (DELTA, LOGS, LOADS)[number % 3]) as peer:
            if number % 4:
                await peer.call.write(BAD["garbage"][1] if number % 2 else said())
            if number % 5 == 0:
                await asyncio.sleep(0.001)
    await neighbour.is_served()
    assert "Traceback" not in server.log()


async def test_a_message_that_is_too_large_ends_its_own_stream(server: Server, neighbour: Neighbour) -> None:
    async with connected(server.xds, "mallory") as peer:
        await peer.call.write(said(resource_names_subscribe=["x" * 500] * (MAX_REQUEST_BYTES // 500)))
        assert await peer.ended() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await neighbour.is_served()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (said(resource_names_subscribe=["x" * 500] * (MAX_FIRST_BYTES // 500)), b""),
        (said(), said(node="", resource_names_unsubscribe=[str(number) for number in range(250_000)])),
    ],
    ids=["large first message", "250 000 names"],
)
async def test_message_above_a_limit_ends_its_own_stream(
    server: Server, neighbour: Neighbour, first: bytes, second: bytes
) -> None:
    before = await server.metric(ERRORS, 'flaw="size"')
    async with connected(server.xds, "mallory") as peer:
        await peer.call.write(first)
        if second:
            assert isinstance(await peer.call.read(), bytes)
            await peer.call.write(second)
        assert await peer.ended() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await server.counts(ERRORS, 'flaw="size"', before)
    await neighbour.is_served()


async def test_unbounded_type_urls_end_the_stream(server: Server, neighbour: Neighbour) -> None:
    before = await server.metric(ERRORS, 'flaw="names"')
    async with connected(server.xds, "mallory") as peer:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for number in range(MAX_TYPES + 1):
                await peer.subscribe(f"type.googleapis.com/Made.Up{number}")
        assert await peer.ended() is grpc.StatusCode.INVALID_ARGUMENT
    await server.counts(ERRORS, 'flaw="names"', before)
    await neighbour.is_served()


async def test_unknown_nonces_draw_no_response(server: Server, neighbour: Neighbour) -> None:
    async with connected(server.xds, "mallory") as peer:
        await peer.subscribe()
        first = await peer.call.read()
        assert isinstance(first, bytes)
        await peer.ack(first)
        for number in range(2_000):
            made = DeltaDiscoveryRequest(type_url=CLUSTER, response_nonce=f"made-up-{number}")
            if number % 2:
                made.error_detail.message = "no"
            await peer.call.write(made.SerializeToString())
        refused = await server.metric("switchgear_xds_nacks_total")
        await neighbour.is_served()
        second = await peer.call.read()
        assert isinstance(second, bytes), "the edit, and nothing before it"
        assert peer.acks == 1
        assert await server.metric("switchgear_xds_nacks_total") == refused, (
            "no proxy refused the served resources"
        )


async def test_proxy_without_acks_is_sent_two_responses_and_blocks_no_other(
    server: Server, neighbour: Neighbour
) -> None:
    async with connected(server.xds, "mallory") as peer:
        await peer.subscribe()
        for _ in range(2 + MAX_UNACKED):
            await neighbour.is_served()
        got = [await peer.call.read()]
        assert isinstance(got[0], bytes)
        with contextlib.suppress(TimeoutError):
            while isinstance(data := await asyncio.wait_for(peer.call.read(), 0.3), bytes):
                got.append(data)
        assert len(got) <= MAX_UNACKED


async def test_reconnect_storm_is_served(server: Server, neighbour: Neighbour) -> None:
    for _ in range(5):
        async with contextlib.AsyncExitStack() as storm:
            peers = [
                await storm.enter_async_context(connected(server.xds, f"storm-{number}")) for number in range(100)
            ]
            for peer in peers:
                await peer.subscribe()
            for peer in peers:
                assert isinstance(await peer.call.read(), bytes)

    async def gone() -> bool:
        return await server.metric("switchgear_xds_connections") == 1

    await eventually(gone, "only the neighbour is connected", LIMIT_S)
    await neighbour.is_served()


async def test_slow_loris_connections_block_no_other(server: Server, neighbour: Neighbour) -> None:
    host, _, port = server.xds.rpartition(":")
    with contextlib.ExitStack() as open_ones:
        for number in range(60):
            one = open_ones.enter_context(socket.create_connection((host, int(port)), LIMIT_S))
            one.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[: number % 25])
        await neighbour.is_served()
        await neighbour.is_served()


@pytest.mark.parametrize(("method", "signal"), [(LOGS, "access_log"), (LOADS, "load_report")])
async def test_malformed_telemetry_is_counted(
    server: Server, neighbour: Neighbour, method: str, signal: str
) -> None:
    name, label = "switchgear_telemetry_errors_total", f'signal="{signal}"'
    before = await server.metric(name, label)
    async with connected(server.xds, "mallory", method) as peer:
        await peer.call.write(b"\xff" * 50)
        assert await peer.ended() is grpc.StatusCode.INVALID_ARGUMENT
    await server.counts(name, label, before)
    await neighbour.is_served()


Plane = GrpcAdsServer | H2AdsServer
each_transport = pytest.mark.parametrize("serve", [GrpcAdsServer, H2AdsServer])


def _plane(serve: type[Plane], limits: StreamLimits) -> tuple[Plane, list[StreamErrorKind]]:
    flaws: list[StreamErrorKind] = []
    publisher = Publisher(view_of=lambda _: "v", snapshot_for=lambda _: snapshot(()))
    return serve(publisher, on_flaw=flaws.append, limits=limits), flaws


@each_transport
async def test_stream_limit_is_resource_exhausted(serve: type[Plane]) -> None:
    plane, flaws = _plane(serve, StreamLimits(streams=2))
    port = await plane.start()
    try:
        async with (
            connected(f"127.0.0.1:{port}", "a") as one,
            connected(f"127.0.0.1:{port}", "b") as other,
        ):
            for peer in (one, other):
                await peer.subscribe()
                assert isinstance(await peer.call.read(), bytes)
            async with connected(f"127.0.0.1:{port}", "c") as third:
                assert await third.ended() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert not one.call.done()
            assert flaws == [StreamErrorKind.CONNECTION_LIMIT]
    finally:
        await plane.stop()


@contextlib.asynccontextmanager
async def elsewhere(port: int, host: str) -> AsyncIterator[str]:
    """An address whose connections come to this port from another host of the loopback network."""
    ways: set[asyncio.Task[None]] = set()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
        for way in (pass_on(reader, there[1]), pass_on(there[0], writer)):
            ways.add(asyncio.create_task(way))

    relay = await asyncio.start_server(meet, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{relay.sockets[0].getsockname()[1]}"
    finally:
        relay.close()
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


@each_transport
async def test_stream_limit_per_host(serve: type[Plane]) -> None:
    plane, flaws = _plane(serve, StreamLimits(streams=4, streams_per_host=2))
    port = await plane.start()
    try:
        async with contextlib.AsyncExitStack() as all_of_it:
            far = await all_of_it.enter_async_context(elsewhere(port, "127.0.0.9"))
            greedy = [
                await all_of_it.enter_async_context(connected(f"127.0.0.1:{port}", name)) for name in ("a", "b")
            ]
            for peer in greedy:
                await peer.subscribe()
                assert isinstance(await peer.call.read(), bytes)
            async with connected(f"127.0.0.1:{port}", "c") as third:
                assert await third.ended() is grpc.StatusCode.RESOURCE_EXHAUSTED
            other = await all_of_it.enter_async_context(connected(far, "d"))
            await other.subscribe()
            assert isinstance(await other.call.read(), bytes), "there is room for other hosts"
            assert flaws == [StreamErrorKind.HOST_LIMIT]
            greedy[0].call.cancel()

            async def fits() -> bool:
                async with connected(f"127.0.0.1:{port}", "e") as peer:
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        await peer.subscribe()
                        return isinstance(await peer.call.read(), bytes)
                    return False

            await eventually(fits, "who leaves makes room", LIMIT_S)
    finally:
        await plane.stop()


@each_transport
async def test_silent_stream_times_out(serve: type[Plane]) -> None:
    plane, flaws = _plane(serve, StreamLimits(first_message_s=2.0))
    port = await plane.start()
    try:
        async with connected(f"127.0.0.1:{port}", "b") as peer:
            await peer.subscribe()
            assert isinstance(await peer.call.read(), bytes)
            async with connected(f"127.0.0.1:{port}", "a") as silent:
                assert await silent.ended() is grpc.StatusCode.INVALID_ARGUMENT
            assert flaws == [StreamErrorKind.SILENT]
            assert not peer.call.done(), "a subscribed proxy may stay silent"
    finally:
        await plane.stop()


async def test_a_folder_full_of_traps_changes_nothing(server: Server, neighbour: Neighbour) -> None:
    """Links to the kernel, to nowhere, to themselves and to a pipe; a bomb; and then they go away."""
    folder = server.folder / "policies"
    bomb = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    traps = {
        "environment.yaml": "/proc/self/environ",
        "nowhere.yaml": "../../gone",
        "itself.yaml": "itself.yaml",
        "loop": ".",
    }
    for name, target in traps.items():
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe.yaml")
    (folder / "bomb.yaml").write_text(bomb)
    held = len(neighbour.peer.received)
    await server.counts("switchgear_policy_refused", "", 0)
    told = Path(server.folder / "serve.log").read_text()
    assert "SWITCHGEAR" not in told.upper().replace("SWITCHGEAR.", "")
    assert "PATH=" not in told
    for name in (*traps, "pipe.yaml", "bomb.yaml"):
        (folder / name).unlink()

    async def well() -> bool:
        return await server.metric("switchgear_policy_refused") == 0

    await eventually(well, "policies accepted again", LIMIT_S)
    assert len(neighbour.peer.received) == held, "nothing was pushed for what was refused"
    await neighbour.is_served()
