"""The server on a real port: what streams and connections may do, and what ends them."""

import asyncio
import functools
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection as H2Client
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingReceived,
    ResponseReceived,
    TrailersReceived,
)

from tests.eventually import eventually
from tests.xds_server.transport.h2.h2_peer import HEADERS
from xds_server.auth.connection_limit import ConnectionLimiter
from xds_server.auth.memory_guard import MemoryGuard
from xds_server.auth.reached_limits import ReachedLimits
from xds_server.auth.stream_limits import MAX_FIRST_BYTES, StreamLimits
from xds_server.transport import H2Server, RpcError, RpcPeer, RpcService, TransportLimits, h2_server
from xds_server.transport.h2 import H2Limits, frames
from xds_server.transport.h2.grpc_messages import GrpcCode, prefixed
from xds_server.transport.h2_protocol import grpc_address
from xds_server.xds import StreamErrorKind

LIMIT_S = 60.0
METHOD = "/service/Method"
MIB = 1024 * 1024


class Echo:
    """Returns each message, and what is pushed; ``refuse`` is refused, ``bug`` raises."""

    price = 1.0
    node = "n1"

    def __init__(self, wake: Callable[[], None], end: Callable[[RpcError], None]) -> None:
        self.wake = wake
        self.end = end
        self.due: list[bytes] = []
        self.taken = 0
        self.closed: list[str] = []
        self.on_poll: Callable[[], object] = lambda: None

    def push(self, message: bytes) -> None:
        self.due.append(message)
        self.wake()

    def take(self, data: bytes, _now_s: float) -> None:
        if data == b"refuse":
            raise RpcError(GrpcCode.INVALID_ARGUMENT, "refused", StreamErrorKind.PROTOCOL)
        if data == b"bug":
            raise ZeroDivisionError
        self.taken += 1
        self.due.append(data)

    def poll(self, _now_s: float) -> bytes | None:
        self.on_poll()
        return self.due.pop(0) if self.due else None

    def close(self, reason: str) -> None:
        self.closed.append(reason)


class Rig:
    """A server of one service, and its streams and errors."""

    def __init__(self, transport: TransportLimits, streams: StreamLimits) -> None:
        self.handlers: list[Echo] = []
        self.flaws: list[str] = []
        self.reached = ReachedLimits()
        self.clock_s = 0.0
        """Added to the clock."""
        service = RpcService(
            method=METHOD,
            connect=self._connect,
            limits=replace(streams, reached=self.reached, memory=MemoryGuard(reached=self.reached)),
            limiter=ConnectionLimiter("streams", streams.streams, streams.streams_per_host),
            max_bytes=2 * MIB,
            on_flaw=lambda flaw, _host: self.flaws.append(flaw),
        )
        self.server = H2Server(
            [service], limits=transport, reached=self.reached, on_flaw=self.flaws.append, clock=self.now_s
        )
        self.port = 0

    def now_s(self) -> float:
        return time.monotonic() + self.clock_s

    def _connect(self, _peer: RpcPeer, wake: Callable[[], None], end: Callable[[RpcError], None]) -> Echo:
        self.handlers.append(Echo(wake, end))
        return self.handlers[-1]

    async def later(self, seconds: float) -> None:
        """Time passes, in steps as a server sees them that does not stand still."""
        until_s = self.clock_s + seconds
        while self.clock_s < until_s:
            self.clock_s = min(until_s, self.clock_s + h2_server.STOOD_STILL_S / 2)
            self.server.check(self.now_s())
            await asyncio.sleep(0.003)  # peers answer


@asynccontextmanager
async def serving(
    transport: TransportLimits | None = None, streams: StreamLimits | None = None
) -> AsyncIterator[Rig]:
    rig = Rig(transport or TransportLimits(), streams or StreamLimits())
    rig.port = await rig.server.start()
    try:
        yield rig
    finally:
        await rig.server.stop()


class Peer:
    """A client by the h2 library, on a socket of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.h2 = H2Client(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.events: list[Event] = []
        self.received: dict[int, bytes] = {}
        self.is_closed = False
        self.acknowledges = True
        self._reader, self._writer = reader, writer
        self._reading: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        self.h2.initiate_connection()
        await self.send()
        self._reading = asyncio.create_task(self._read())

    async def send(self) -> None:
        self._writer.write(self.h2.data_to_send())
        with suppress(ConnectionError):
            await self._writer.drain()

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        with suppress(ConnectionError):
            await self._writer.drain()

    async def open(self, path: str = METHOD, *messages: bytes, **changed: str) -> int:
        number = self.h2.get_next_available_stream_id()
        headers = [(name, {":path": path, **changed}.get(name, value)) for name, value in HEADERS]
        self.h2.send_headers(number, headers)
        for one in messages:
            self.h2.send_data(number, prefixed(one))
        await self.send()
        return number

    async def write(self, number: int, data: bytes, *, end: bool = False) -> None:
        """Send data as the windows allow."""
        while data:
            room = min(len(data), self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size)
            if room:
                self.h2.send_data(number, data[:room])
                data = data[room:]
                await self.send()
            else:
                await asyncio.sleep(0.001)
        if end:
            self.h2.end_stream(number)
            await self.send()

    async def _read(self) -> None:
        with suppress(ConnectionError):
            while data := await self._reader.read(65_536):
                for event in self.h2.receive_data(data):
                    self.events.append(event)
                    if isinstance(event, DataReceived):
                        self.received[event.stream_id] = self.received.get(event.stream_id, b"") + event.data
                        if self.acknowledges:
                            with suppress(Exception):  # the stream may be closed
                                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                await self.send()
        self.is_closed = True

    def of(self, kind: type[Event]) -> list[Event]:
        return [one for one in self.events if isinstance(one, kind)]

    async def status(self, number: int) -> tuple[str | None, str]:
        """gRPC status of a stream, and its text, once it has ended."""

        def found() -> dict[str, str] | None:
            for one in self.events:
                if isinstance(one, ResponseReceived | TrailersReceived) and one.stream_id == number:
                    headers = {str(name): str(value) for name, value in one.headers or ()}
                    if "grpc-status" in headers or headers.get(":status") != "200":
                        return headers
            return None

        headers = await eventually(found, f"stream {number} has ended: {self.events}", LIMIT_S)
        return headers.get("grpc-status", headers.get(":status")), headers.get("grpc-message", "")

    async def message(self, number: int, size: int) -> bytes:
        await eventually(lambda: len(self.received.get(number, b"")) >= size + 5, f"{size} bytes", LIMIT_S)
        return self.received[number][5:]

    async def closed(self) -> None:
        await eventually(lambda: self.is_closed, "the connection is closed", LIMIT_S)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._writer.close()


@asynccontextmanager
async def peer_of(rig: Rig, *, begin: bool = True) -> AsyncIterator[Peer]:
    made = Peer(*await asyncio.open_connection("127.0.0.1", rig.port))
    try:
        if begin:
            await made.begin()
        yield made
    finally:
        await made.close()


async def opened(peer: Peer) -> int:
    """A stream whose first message was answered."""
    number = await peer.open(METHOD, b"first")
    await peer.message(number, len(b"first"))
    return number


# -- requests ----------------------------------------------------------------------------------------------


async def test_messages_of_many_streams_are_answered() -> None:
    async with serving() as rig, peer_of(rig) as peer:
        numbers = [await peer.open(METHOD, b"%d" % number) for number in range(100)]
        for number, stream in enumerate(numbers):
            text = b"%d" % number
            assert await peer.message(stream, len(text)) == text


async def test_push_is_written_to_all_before_answers_are_read_on_a_busy_machine() -> None:
    """There each write takes long on the wall clock, and little CPU time."""
    count = 8
    order: list[bytes] = []
    async with serving() as rig, AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(peer_of(rig)) for _ in range(count)]
        streams = [await opened(peer) for peer in peers]

        async def answer(peer: Peer, stream: int) -> None:
            before = len(peer.received[stream])
            await eventually(lambda: len(peer.received[stream]) > before, "the push", LIMIT_S)
            await peer.write(stream, prefixed(b"accepted"))

        def seen(handler: Echo) -> None:
            if handler.due:
                order.append(handler.due[0])
                time.sleep(0.03)

        answers = [asyncio.create_task(answer(*one)) for one in zip(peers, streams, strict=True)]
        await asyncio.sleep(0)
        for handler in rig.handlers:
            handler.on_poll = functools.partial(seen, handler)
            handler.push(b"pushed")
        await asyncio.gather(*answers)
        await eventually(lambda: len(order) == 2 * count, "every answer is echoed", LIMIT_S)
    assert order == [b"pushed"] * count + [b"accepted"] * count


@pytest.mark.parametrize(
    ("changed", "status"),
    [({":path": "/service/Other"}, "12"), ({":method": "GET"}, "415"), ({"content-type": "text/html"}, "415")],
)
async def test_other_requests_are_refused(changed: dict[str, str], status: str) -> None:
    async with serving() as rig, peer_of(rig) as peer:
        assert (await peer.status(await peer.open(METHOD, **changed)))[0] == status
        assert await opened(peer), "the connection continues"


async def test_compressed_messages_are_unimplemented() -> None:
    async with serving() as rig, grpc.aio.insecure_channel(f"127.0.0.1:{rig.port}") as channel:
        call = channel.stream_stream(METHOD)(compression=grpc.Compression.Gzip)
        await call.write(b"x" * 10_000)
        assert await asyncio.wait_for(call.code(), LIMIT_S) is grpc.StatusCode.UNIMPLEMENTED
        assert "identity" in await call.details()


async def test_end_of_requests_ends_the_stream_with_ok() -> None:
    async with serving() as rig, peer_of(rig) as peer:
        number = await opened(peer)
        await peer.write(number, prefixed(b"last"), end=True)
        assert (await peer.status(number))[0] == "0"
        assert rig.handlers[0].closed == [""]


async def test_refused_message_and_bug_end_their_stream_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as rig, peer_of(rig) as peer:
        other = await opened(peer)
        assert await peer.status(await peer.open(METHOD, b"refuse")) == ("3", "refused")
        assert (await peer.status(await peer.open(METHOD, b"bug")))[0] == "2"
        assert "ZeroDivisionError" in caplog.text
        assert rig.flaws == ["protocol"]
        rig.handlers[0].push(b"still here")
        await eventually(lambda: b"still here" in peer.received[other], "the other continues", LIMIT_S)


async def test_handler_ends_its_stream() -> None:
    async with serving() as rig, peer_of(rig) as peer:
        number = await opened(peer)
        rig.handlers[0].end(RpcError(GrpcCode.PERMISSION_DENIED, "changed", StreamErrorKind.DENIED))
        assert await peer.status(number) == ("7", "changed")
        assert rig.handlers[0].closed == ["changed"]


@pytest.mark.parametrize("limits", [StreamLimits(streams=1), StreamLimits(streams_per_host=1)])
async def test_streams_are_limited(limits: StreamLimits) -> None:
    async with serving(streams=limits) as rig, peer_of(rig) as peer:
        first = await opened(peer)
        assert (await peer.status(await peer.open()))[0] == "8"
        peer.h2.reset_stream(first)
        await peer.send()
        await eventually(lambda: rig.handlers[0].closed, "the first is closed", LIMIT_S)
        assert await opened(peer)
        assert [one.code for one in rig.reached.current()] == ["SG280"]


# -- messages ----------------------------------------------------------------------------------------------


async def test_message_of_any_size_passes_both_ways() -> None:
    async with serving() as rig, peer_of(rig) as peer:
        number = await opened(peer)
        peer.received.clear()
        big = bytes(range(256)) * 8_000
        await peer.write(number, prefixed(big))
        assert await peer.message(number, len(big)) == big
        assert rig.server.held.total_bytes == 0


@pytest.mark.parametrize(("before", "size"), [((), MAX_FIRST_BYTES + 1), ((b"first",), 2 * MIB + 1)])
async def test_message_above_its_limit_ends_the_stream_at_its_first_bytes(
    before: tuple[bytes, ...], size: int
) -> None:
    async with serving() as rig, peer_of(rig) as peer:
        number = await peer.open(METHOD, *before)
        await peer.write(number, struct.pack(">BL", 0, size))
        assert (await peer.status(number))[0] == "8"
        assert rig.flaws == ["size"]


async def test_half_message_ends_in_time() -> None:
    async with serving() as rig, peer_of(rig) as peer:
        patient, half = await opened(peer), await opened(peer)
        await peer.write(half, prefixed(b"second")[:-1])
        await eventually(lambda: rig.server.held.total_bytes, "half of it is there", LIMIT_S)
        await rig.later(20.0)
        await peer.write(half, b"d" + prefixed(b"third")[:-1])
        await eventually(lambda: rig.handlers[1].taken == 2, "the second is complete", LIMIT_S)
        await rig.later(20.0)
        assert not rig.flaws, "each message has its own time"
        await rig.later(11.0)
        assert (await peer.status(half))[0] == "3"
        assert rig.flaws == ["silent"]
        assert not rig.handlers[0].closed, "a stream may be silent between messages"
        assert patient in peer.received


async def test_stream_without_a_message_ends_in_time() -> None:
    async with serving(streams=StreamLimits(first_message_s=5.0)) as rig, peer_of(rig) as peer:
        number = await peer.open()
        await eventually(lambda: rig.handlers, "the stream is open", LIMIT_S)
        await rig.later(4.0)
        assert not rig.flaws
        await rig.later(2.0)
        assert await peer.status(number) == ("3", "no request within 5 s")


@pytest.mark.parametrize("level", ["connection", "host", "all"])
async def test_half_messages_are_limited_by_their_bytes(level: str) -> None:
    name = {"connection": "held_bytes_of_connection", "host": "held_bytes_of_host", "all": "held_bytes"}[level]
    async with serving(TransportLimits(**{name: 200_000})) as rig, peer_of(rig) as peer, peer_of(rig) as other:
        fine = await opened(other)
        numbers = [await opened(peer) for _ in range(6)]
        for number in numbers:
            await peer.raw(frames.frame(frames.DATA, 0, number, struct.pack(">BL", 0, 100_000) + bytes(16_000)))
            for _ in range(2):
                await peer.raw(frames.frame(frames.DATA, 0, number, bytes(12_000)))
        await eventually(lambda: "memory" in rig.flaws, "the limit is reached", LIMIT_S)
        await eventually(lambda: rig.server.held.total_bytes <= 200_000, "streams have ended", LIMIT_S)
        assert [one.code for one in rig.reached.current()] == ["SG284"]
        assert 0 < sum(bool(one.closed) for one in rig.handlers[1:]) < 6
        rig.handlers[0].push(b"more")
        await eventually(lambda: b"more" in other.received[fine], "others are served", LIMIT_S)


async def test_tiny_frames_end_the_connection() -> None:
    async with serving() as rig, peer_of(rig) as peer:
        number = await opened(peer)
        await peer.raw(
            b"".join(frames.frame(frames.DATA, 0, number, bytes((one,))) for one in prefixed(bytes(2_000)))
        )
        await peer.closed()
        assert rig.flaws == ["http2"]
        assert [one.code for one in rig.reached.current()] == ["SG284"]


# -- slow readers ------------------------------------------------------------------------------------------


async def test_response_that_is_not_read_ends_its_stream_in_time() -> None:
    async with serving() as rig, peer_of(rig) as peer:
        peer.acknowledges = False
        number = await opened(peer)
        rig.handlers[0].push(bytes(500_000))
        await eventually(lambda: len(peer.received[number]) >= 65_535, "the window is used up", LIMIT_S)
        for _ in range(10):
            rig.handlers[0].push(bytes(500_000))
        await rig.later(100.0)
        assert not rig.flaws
        assert len(rig.handlers[0].due) == 10, "nothing else is asked for meanwhile"
        await rig.later(30.0)
        assert (await peer.status(number))[0] == "8"
        assert rig.flaws == ["stalled"]


async def test_peer_that_reads_nothing_costs_one_buffer() -> None:
    async with serving() as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port, limit=1)
        client = Peer(reader, writer)
        client.h2.initiate_connection()
        client.h2.update_settings({4: 2**31 - 1})
        client.h2.increment_flow_control_window(2**30)
        await client.send()
        await client.open(METHOD, b"first")
        await eventually(lambda: rig.handlers, "the stream is open", LIMIT_S)
        message = bytes(50 * MIB)
        rig.handlers[0].push(message)
        rig.handlers[0].push(message)
        connection = next(iter(rig.server._connections))
        await eventually(lambda: connection._paused, "the kernel takes nothing more", LIMIT_S)
        transport = connection._transport
        assert transport is not None
        assert transport.get_write_buffer_size() < 4 * TransportLimits().send_buffer_bytes
        assert rig.handlers[0].due == [message]
        await rig.later(40.0)
        await eventually(lambda: not rig.server._connections, "it answers no ping, so it is gone", LIMIT_S)
        assert rig.handlers[0].closed == [""]
        writer.close()


async def test_answers_to_a_peer_that_reads_nothing_are_limited() -> None:
    free = H2Limits(control_frames=replace(H2Limits().control_frames, burst=1e9))
    async with serving(TransportLimits(h2=free)) as rig:
        with socket.create_connection(("127.0.0.1", rig.port)) as mute:
            mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            mute.setblocking(False)
            loop = asyncio.get_running_loop()
            with suppress(ConnectionError):
                await loop.sock_sendall(mute, frames.PREFACE + frames.settings({}))
                ping = frames.frame(frames.PING, 0, 0, bytes(8)) * 1_000
                async with asyncio.timeout(LIMIT_S):
                    while True:
                        await loop.sock_sendall(mute, ping)
            await eventually(lambda: not rig.server._connections, "the connection has ended", LIMIT_S)


# -- connections -------------------------------------------------------------------------------------------


async def test_silent_peer_is_asked_and_stays_if_it_answers() -> None:
    async with serving() as rig, peer_of(rig) as peer:
        await opened(peer)
        await rig.later(16.0)
        await eventually(lambda: peer.of(PingReceived), "it is asked", LIMIT_S)
        await rig.later(10.0)
        assert not peer.is_closed
        assert rig.server._connections


async def test_vanished_peer_is_dropped() -> None:
    async with serving() as rig:
        with socket.create_connection(("127.0.0.1", rig.port)) as vanished:
            vanished.sendall(frames.PREFACE + frames.settings({}))
            await eventually(
                lambda: any(one._h2.is_open for one in rig.server._connections), "it is there", LIMIT_S
            )
            await rig.later(16.0)
            assert rig.server._connections
            await rig.later(7.0)
            await eventually(lambda: not rig.server._connections, "it is gone", LIMIT_S)


async def test_pause_of_the_server_does_not_count_against_peers() -> None:
    async with serving() as rig, peer_of(rig) as peer:
        number = await opened(peer)
        await peer.write(number, prefixed(b"second")[:-1])
        await eventually(lambda: rig.server.held.total_bytes, "half of it is there", LIMIT_S)
        await rig.later(16.0)
        rig.clock_s += 60.0  # the process was stopped
        rig.server.check(rig.now_s())
        await rig.later(2.0)
        assert not rig.flaws
        await peer.write(number, b"d")
        await eventually(lambda: rig.handlers[0].taken == 2, "the message is complete", LIMIT_S)


@pytest.mark.parametrize("sent", [b"", frames.PREFACE[:10], frames.PREFACE])
async def test_connection_without_http2_is_closed_in_time(sent: bytes) -> None:
    async with serving() as rig, peer_of(rig, begin=False) as peer:
        await peer.raw(sent)
        await eventually(lambda: rig.server._connections, "it is connected", LIMIT_S)
        await rig.later(21.0)
        await eventually(lambda: not rig.server._connections, "it is closed", LIMIT_S)


async def test_idle_connection_is_closed_with_goaway() -> None:
    async with serving() as rig, peer_of(rig) as busy, peer_of(rig) as idle:
        await opened(busy)
        await eventually(lambda: len(rig.server._connections) == 2, "both are connected", LIMIT_S)
        await rig.later(70.0)
        await idle.closed()
        (end,) = idle.of(ConnectionTerminated)
        assert isinstance(end, ConnectionTerminated)
        assert end.error_code == 0
        assert not busy.is_closed


async def test_connections_of_a_host_are_limited() -> None:
    async with serving(TransportLimits(connections_of_host=1)) as rig, peer_of(rig) as first:
        await opened(first)
        async with peer_of(rig) as second:
            await second.closed()
        assert rig.flaws == ["host"]
        await first.close()
        await eventually(lambda: not rig.server._connections, "the first is gone", LIMIT_S)
        async with peer_of(rig) as third:
            await opened(third)


async def test_violation_ends_the_connection_and_its_streams() -> None:
    async with serving() as rig, peer_of(rig) as peer:
        await opened(peer)
        await peer.raw(frames.frame(frames.PING, 0, 1, bytes(8)))
        await peer.closed()
        assert rig.handlers[0].closed == [""]
        assert rig.flaws == ["http2"]


async def test_stopping_server_ends_streams_and_leaves_no_connection() -> None:
    async with serving() as rig, peer_of(rig) as peer:
        number = await opened(peer)
        await rig.server.stop()
        assert (await peer.status(number))[0] == "0"
        await peer.closed()
        assert peer.of(ConnectionTerminated)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", rig.port)


async def test_stopping_server_does_not_wait_for_a_peer_that_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(h2_server, "STOP_GRACE_S", 0.2)
    async with serving() as rig:
        with socket.create_connection(("127.0.0.1", rig.port)) as mute:
            client = H2Client(H2Configuration(client_side=True))
            client.initiate_connection()
            client.update_settings({4: 2**31 - 1})
            client.increment_flow_control_window(2**30)
            client.send_headers(1, HEADERS)
            client.send_data(1, prefixed(b"first"))
            mute.sendall(client.data_to_send())
            await eventually(lambda: rig.handlers, "the stream is open", LIMIT_S)
            rig.handlers[0].push(bytes(50 * MIB))
            connection = next(iter(rig.server._connections))
            await eventually(lambda: connection._paused, "the kernel takes nothing more", LIMIT_S)
            await asyncio.wait_for(rig.server.stop(), LIMIT_S)
            await eventually(lambda: not rig.server._connections, "the connection is gone", LIMIT_S)


def test_peers_are_named_as_grpc_names_them() -> None:
    assert grpc_address(("10.0.0.1", 4711)) == "ipv4:10.0.0.1:4711"
    assert grpc_address(("::1", 4711, 0, 0)) == "ipv6:[::1]:4711"
    assert grpc_address(("::ffff:10.0.0.1", 4711, 0, 0)) == "ipv4:10.0.0.1:4711"
    assert grpc_address(("fe80::1%eth0", 4711, 0, 2)) == "ipv6:[fe80::1]:4711"
    assert grpc_address(None) == "unknown"
