"""A peer that is refused at a limit shows as a condition of the running server, which ends a while later."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from engine.address import ListenAddress
from policies.codes import REMARKS
from tests.eventually import eventually
from tests.hostile.conftest import LIMIT_S
from xds_server.admin import admin_server
from xds_server.app import application, proxy_parts
from xds_server.app.application import BoundAddresses, ControlPlane
from xds_server.auth import log_budget, reached_limits
from xds_server.auth.connection_watcher import ConnectionWatcher, Kernel
from xds_server.auth.memory_guard import MemoryGuard
from xds_server.auth.peer_budget import CpuLimits
from xds_server.auth.stream_limits import MAX_FIRST_BYTES, StreamLimits
from xds_server.auth.tcp_connections import TcpConnection, tcp_connections
from xds_server.auth.unfinished_messages import UnfinishedMessages
from xds_server.model.token_bucket import RateLimit
from xds_server.model.type_urls import CLUSTER
from xds_server.publish import grpc_ads
from xds_server.serve_config import ServeConfig
from xds_server.telemetry import access_log_service, proxy_telemetry
from xds_server.translate.access_log_config import LOG_NAME
from xds_server.wire.decode import DeltaDiscoveryRequest

DELTA = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
POLICY = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat}
spec: {model: m, endpoints: [{address: 127.0.0.1, port: 9, name: e0}], probe: {enabled: false}}
"""
STINGY = CpuLimits(
    node=RateLimit(burst=0.001, per_s=0.01),
    host=RateLimit(burst=0.001, per_s=0.01),
    floor=RateLimit(burst=0.001, per_s=0.01),
)


class Plane:
    """A whole server, and a client of its two ports."""

    def __init__(self, server: ControlPlane, at: BoundAddresses, channel: grpc.aio.Channel) -> None:
        self.server = server
        self.xds = at.xds
        self.admin = at.admin
        self.channel = channel

    def call(self, method: str = DELTA) -> Any:
        return self.channel.stream_stream(method)()

    def sentence(self, code: str) -> str:
        """Sentence of this condition; empty without it."""
        found = [one for one in self.server.admin.backend.conditions() if one.code == code]
        return found[0].sentence if found else ""

    async def shows_and_forgets(self, code: str, peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """The condition names the peer and is counted, and ends after its time."""
        await eventually(lambda: peer in self.sentence(code), f"{code} names {peer}", LIMIT_S)
        assert self.server.metrics.registry.get_sample_value(
            "switchgear_condition", {"code": code, "severity": REMARKS[code].severity}
        )
        monkeypatch.setattr(reached_limits, "REPORTED_S", 0.2)
        await eventually(lambda: not self.sentence(code), f"{code} ends", LIMIT_S)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[[], Any]]:
    @asynccontextmanager
    async def running() -> AsyncIterator[Plane]:
        (tmp_path / "policies").mkdir()
        (tmp_path / "policies" / "chat.yaml").write_text(POLICY)
        server = ControlPlane(
            ServeConfig(
                policies=(tmp_path / "policies",),
                listen=ListenAddress("127.0.0.1", 0),
                admin=ListenAddress("127.0.0.1", 0),
                first_reports_s=0.0,
            )
        )
        listening: asyncio.Future[BoundAddresses] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(server.run(asyncio.Event(), listening.set_result))
        await asyncio.wait((serving, listening), timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        at = listening.result()
        try:
            options = (("grpc.use_local_subchannel_pool", 1),)
            async with grpc.aio.insecure_channel(str(at.xds), options=options) as channel:
                yield Plane(server, at, channel)
        finally:
            serving.cancel()
            await asyncio.wait((serving,))

    return running


def hello(node: str = "gw-1", *names: str) -> bytes:
    request = DeltaDiscoveryRequest(type_url=CLUSTER)
    request.node.id = node
    request.resource_names_subscribe.extend(names)
    return bytes(request.SerializeToString())


def logs(node: str, entries: int) -> bytes:
    message = access_log_service.AccessLogs()
    message.identifier.node.id = node
    message.identifier.log_name = LOG_NAME
    for _ in range(entries):
        message.http_logs.log_entry.add()
    return bytes(message.SerializeToString())


async def refused(call: Any) -> grpc.StatusCode:
    status: grpc.StatusCode = await asyncio.wait_for(call.code(), LIMIT_S)
    return status


async def test_calm_server_reports_no_limit(start: Any) -> None:
    async with start() as plane:
        call = plane.call()
        await call.write(hello())
        assert await call.read()
        assert not [one for one in plane.server.admin.backend.conditions() if one.code.startswith("SG28")]


async def test_host_with_too_many_streams_is_named(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "StreamLimits", partial(StreamLimits, streams_per_host=1))
    async with start() as plane:
        first = plane.call()
        await first.write(hello())
        assert await first.read()
        assert await refused(plane.call()) is grpc.StatusCode.RESOURCE_EXHAUSTED
        await plane.shows_and_forgets("SG280", "127.0.0.1", monkeypatch)


async def test_host_with_too_many_connections_is_named(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "StreamLimits", partial(StreamLimits, connections_per_host=1))
    async with start() as plane:
        first = plane.call()
        await first.write(hello())
        assert await first.read()
        reader, writer = await asyncio.open_connection(plane.xds.host, plane.xds.port)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), LIMIT_S)
        writer.close()
        await plane.shows_and_forgets("SG280", "127.0.0.1", monkeypatch)
        assert plane.server.metrics.registry.get_sample_value(
            "switchgear_xds_stream_errors_total", {"flaw": "host"}
        )
        assert not first.done(), "streams keep their connections"


async def test_host_with_too_many_telemetry_streams_is_named(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_telemetry, "StreamLimits", partial(StreamLimits, streams_per_host=0))
    async with start() as plane:
        assert await refused(plane.call(access_log_service.METHOD)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        await plane.shows_and_forgets("SG280", "127.0.0.1", monkeypatch)


async def test_node_without_cpu_time_is_named(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "DISCOVERY_CPU", STINGY)
    async with start() as plane:
        call = plane.call()
        await call.write(hello("greedy", *(f"name-{number}" for number in range(5_000))))
        assert await call.read()
        await plane.shows_and_forgets("SG281", "greedy at 127.0.0.1", monkeypatch)


async def test_node_above_its_telemetry_budget_is_named(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with start() as plane:
        call = plane.call()
        await call.write(hello("loud"))
        assert await call.read()
        telling = plane.call(access_log_service.METHOD)

        async def shown() -> str:
            await telling.write(logs("loud", 4_000))
            return str(plane.sentence("SG282"))

        assert "loud at 127.0.0.1" in await eventually(shown, "entries are dropped", LIMIT_S)
        telling.cancel()
        await plane.shows_and_forgets("SG282", "loud at 127.0.0.1", monkeypatch)


async def test_host_whose_streams_end_for_memory_is_named(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [100]
    short = partial(MemoryGuard, memory_bytes=lambda: sizes[-1], limit_bytes=1_000)
    monkeypatch.setattr(proxy_parts, "MemoryGuard", short)
    async with start() as plane:
        call = plane.call()
        await call.write(hello())
        assert await call.read()
        sizes.append(990)
        assert await refused(call) is grpc.StatusCode.RESOURCE_EXHAUSTED
        sizes.append(100)
        await plane.shows_and_forgets("SG283", "127.0.0.1", monkeypatch)


async def test_host_with_unfinished_messages_is_named(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's count is replaced: see ``test_half_messages`` for the real one."""
    more = [0]

    def connections(port: int) -> dict[str, TcpConnection]:
        found = tcp_connections(port)
        return {name: one._replace(received=one.received + more[-1]) for name, one in found.items()}

    grown = iter(range(100 * 2**20, 2**40, 32 * 2**20))
    guard = partial(MemoryGuard, unfinished=UnfinishedMessages(max_bytes_of_host=2**20))
    kernel = Kernel(connections=connections, memory_bytes=lambda: next(grown))
    monkeypatch.setattr(proxy_parts, "MemoryGuard", guard)
    monkeypatch.setattr(grpc_ads, "ConnectionWatcher", partial(ConnectionWatcher, kernel=kernel))
    async with start() as plane:
        call = plane.call()
        await call.write(hello())
        assert await call.read()
        more.append(5 * 2**20)
        # The guard ends its streams and resets the connection: either may arrive first.
        assert await refused(call) in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
        await plane.shows_and_forgets("SG284", "127.0.0.1", monkeypatch)


@pytest.mark.parametrize("flaw", ["silent", "size", "names", "entries"])
async def test_sender_of_a_message_beyond_a_limit_is_named(
    start: Any, flaw: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "StreamLimits", partial(StreamLimits, first_message_s=0.3))
    async with start() as plane:
        call = plane.call()
        if flaw == "silent":
            await call.initial_metadata()
        elif flaw == "size":
            await call.write(hello("gw-1", *("n" * 1_000 for _ in range(MAX_FIRST_BYTES // 1_000 + 1))))
        elif flaw == "names":
            await call.write(hello("gw-1", *(f"name-{number}" for number in range(20_000))))
        else:
            await call.write(hello("gw-1"))
            assert await call.read()
            call = plane.call(access_log_service.METHOD)
            await call.write(logs("gw-1", 5_000))
        await refused(call)
        await plane.shows_and_forgets("SG284", "127.0.0.1", monkeypatch)


async def test_client_beyond_the_limits_of_the_admin_port_is_named(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_server, "MOST_OF_HOST", 2)
    async with start() as plane:
        callers = [await asyncio.open_connection(plane.admin.host, plane.admin.port) for _ in range(3)]
        await plane.shows_and_forgets("SG285", "127.0.0.1", monkeypatch)
        for _, writer in callers:
            writer.close()


async def test_proxy_that_reconnects_in_a_loop_is_named(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_budget, "EVENTS_OF_NODE", RateLimit(burst=3.0, per_s=0.001))

    def suppressed() -> float | None:
        return plane.server.metrics.registry.get_sample_value("switchgear_log_lines_suppressed_total")

    async with start() as plane:
        with capture_logs() as logs:
            for number in range(8):
                call = plane.call()
                await call.write(hello("restless"))
                assert await call.read()
                call.cancel()
                await eventually(lambda: (suppressed() or 0) >= 2 * (number - 2), "the end is noticed", LIMIT_S)  # noqa: B023
            call = plane.call()
            await call.write(hello("calm"))
            assert await call.read()
        lines = [(one["event"], one["node"]) for one in logs if one["event"].startswith("xds.")]
        assert lines.count(("xds.connected", "restless")) == lines.count(("xds.disconnected", "restless")) == 3
        assert ("xds.connected", "calm") in lines
        assert "peers.lines_suppressed" in [one["event"] for one in logs]
        await plane.shows_and_forgets("SG286", "restless at 127.0.0.1", monkeypatch)
