"""One gRPC stream: from received bytes to its handler, and from the handler to the connection.

All limits of streams are applied here, in the order of ``publish/grpc_ads.py``: number, time to the first message,
size, CPU time. A stream that has to wait for CPU time has a task meanwhile, and is not read.
"""

import asyncio
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any, Final, Protocol

from xds_server.auth.stream_limits import MAX_FIRST_BYTES
from xds_server.transport.h2.grpc_messages import GrpcCode, GrpcMessageError, GrpcMessageReader
from xds_server.transport.rpc_service import RpcError, RpcHandler, RpcPeer, RpcService
from xds_server.transport.transport_limits import TransportLimits
from xds_server.xds import StreamErrorKind

MAX_CHARGED_POLL_S: Final = 0.01
"""Most that a peer is charged for a response: a large one is encoded once, for all proxies."""


MIN_MESSAGE_BYTES: Final = 16
"""Data below this is not even an ACK."""


class StreamConnection(Protocol):
    """What a stream needs of its connection and server."""

    peer: RpcPeer
    limits: TransportLimits

    def now_s(self) -> float:
        """Time of the server's clock."""

    def send_headers(self, stream: int) -> None:
        """Begin the response."""

    def send_data(self, stream: int, data: memoryview) -> int:
        """Send part of a message; returns how many bytes were taken."""

    def framed(self, message: bytes) -> bytes:
        """A message with its prefix; all streams share it."""

    def release(self, stream: int, size: int) -> None:
        """Let the peer send more."""

    def hold(self, stream: "RpcStream", size: int) -> None:
        """The stream holds this many bytes of unfinished messages."""

    def wake(self, stream: "RpcStream") -> None:
        """Flush the stream soon."""

    def finish(self, stream: "RpcStream", code: GrpcCode, text: str) -> None:
        """End the stream with this status, and forget it."""

    def failed(self, stream: "RpcStream", error: BaseException) -> None:
        """Log a bug."""


class RpcStream:
    """One stream of a service. Methods are called by the connection, in the event loop."""

    __slots__ = (
        *("_connection", "_first", "_handler", "_peer_ended", "_reader", "_receive_by_s", "_send_by_s"),
        *("_service", "_ticket", "_unreleased", "_unsent", "_waiting", "begun", "ended", "is_woken", "number"),
    )

    def __init__(self, number: int, service: RpcService, connection: StreamConnection) -> None:
        self.number = number
        self.begun = False
        """Whether the response has begun."""
        self.ended = False
        self.is_woken = False
        """Whether the server is going to flush this stream."""
        self._service = service
        self._connection = connection
        self._reader = GrpcMessageReader(MAX_FIRST_BYTES)
        self._handler: RpcHandler | None = None
        self._ticket: object = None
        self._first = True
        self._peer_ended = False
        self._waiting: asyncio.Task[Any] | None = None
        self._unsent: memoryview | None = None
        self._unreleased = 0
        self._receive_by_s = self._send_by_s = inf

    # -- called by the connection --------------------------------------------------------------------------

    def open(self) -> None:
        """Admit the stream, or end it."""
        service, connection = self._service, self._connection
        peer, limits = connection.peer, service.limits
        for flaw, full in (
            (StreamErrorKind.CONNECTION_LIMIT, service.limiter.full()),
            (StreamErrorKind.HOST_LIMIT, service.limiter.full_for(peer.host)),
        ):
            if full:
                self._end(GrpcCode.RESOURCE_EXHAUSTED, full, flaw)
                return
        service.limiter.acquire(peer.host)
        self._ticket = limits.memory.enter(peer.host, proven=bool(peer.identities), end=self._end_for_memory)
        self._handler = service.connect(peer, self._wake, self._end_soon)
        self.begun = True
        connection.send_headers(self.number)
        self._receive_by_s = connection.now_s() + limits.first_message_s
        if not limits.pacer.opens_at_once(peer.host):
            self._wait_for(limits.pacer.open(peer.host, peer.address), self._read)

    def received(self, data: bytes, *, peer_ended: bool) -> bool:
        """Handle bytes of the peer; False if they completed no message."""
        self._peer_ended |= peer_ended
        self._reader.append(data)
        if self._waiting is None:
            # At once, for a message may be longer than the window. Held bytes are limited below.
            self._connection.release(self.number, len(data))
            return self._read()
        self._unreleased += len(data)
        self._hold()
        return len(data) >= MIN_MESSAGE_BYTES

    def flush(self) -> bool:
        """Write what is due, as far as the connection takes it; False if nothing was due."""
        handler, connection, found = self._handler, self._connection, False
        try:
            while not self.ended and handler is not None:
                if self._unsent is None:
                    due = handler.poll(connection.now_s())
                    if due is None:
                        break
                    found = True
                    self._unsent = memoryview(connection.framed(due))
                    self._send_by_s = connection.now_s() + connection.limits.response_s
                sent = connection.send_data(self.number, self._unsent)
                if sent < len(self._unsent):
                    self._unsent = self._unsent[sent:]
                    break
                self._unsent, self._send_by_s = None, inf
        except Exception as error:  # noqa: BLE001 - a bug ends this stream, not those that are flushed with it
            self._fail(error)
        return found

    def check(self, now_s: float) -> None:
        """End the stream if its peer is late."""
        if now_s > self._receive_by_s:
            limits, message_s = self._service.limits, self._connection.limits.message_s
            text = f"no request within {limits.first_message_s:g} s"
            if not self._first:
                text = f"a message took more than {message_s:g} s"
            self._end(GrpcCode.INVALID_ARGUMENT, text, StreamErrorKind.SILENT)
        elif now_s > self._send_by_s:
            text = f"a response was not read within {self._connection.limits.response_s:g} s"
            self._end(GrpcCode.RESOURCE_EXHAUSTED, text, StreamErrorKind.STALLED)

    def delay_limits(self, by_s: float) -> None:
        """The server stood still for this long: its peers get as much more time."""
        self._receive_by_s += by_s
        self._send_by_s += by_s

    def stop(self) -> None:
        """End the stream, as a stopping server does."""
        self._end(GrpcCode.OK, "")

    def drop(self) -> None:
        """The stream was reset, or its connection is gone."""
        self._close("")

    def end_for_excess(self) -> None:
        """End the stream, as it holds too many bytes of unfinished messages."""
        if self._ticket is not None:
            memory, now_s = self._service.limits.memory, self._connection.now_s()
            memory.end_unfinished(self._ticket, self._connection.peer.address, self._reader.held_bytes, now_s)

    # -- reading -------------------------------------------------------------------------------------------

    def _read(self, message: bytes | None = None) -> bool:
        """Handle this message and complete ones, until the stream has to wait; False if there was none."""
        found = False
        try:
            if message is not None:
                self._take(message)
            while self._waiting is None and not self.ended:
                message = self._reader.next_message()
                if message is None:
                    break
                found = True
                self._message(message)
        except GrpcMessageError as error:
            flaw = StreamErrorKind.SIZE if error.code is GrpcCode.RESOURCE_EXHAUSTED else StreamErrorKind.PROTOCOL
            self._end(error.code, str(error), flaw)
            return True
        except RpcError as error:
            # Without its traceback, which would keep the message in a cycle with this frame.
            self._end(error.code, str(error), error.with_traceback(None).flaw)
            return True
        except Exception as error:  # noqa: BLE001 - a bug ends this stream, not its connection
            self._fail(error)
            return True
        self._hold()
        if self._waiting is None and not self.ended:
            self._expect(complete=found)
        return found

    def _expect(self, *, complete: bool) -> None:
        """Set the time limit of the next message, and end the stream after the last one."""
        if self._peer_ended:
            self._end(GrpcCode.OK, "")
        elif not self._first:
            begun = bool(self._reader.held_bytes)
            if not begun:
                self._receive_by_s = inf
            elif complete or self._receive_by_s == inf:
                self._receive_by_s = self._connection.now_s() + self._connection.limits.message_s

    def _message(self, message: bytes) -> None:
        limits, peer = self._service.limits, self._connection.peer
        limits.memory.read(self._ticket, len(message))
        if self._first:
            self._first = False
            self._reader.max_bytes = self._service.max_bytes
            if not limits.pacer.first_at_once(peer.host, len(message)):
                self._wait_for(self._admit(len(message)), lambda: self._read(message))
                return
        self._take(message)

    async def _admit(self, size: int) -> None:
        """Wait until the host has time for a large first message."""
        peer = self._connection.peer
        if not await self._service.limits.pacer.admit_first(peer.host, peer.address, size):
            raise RpcError(
                GrpcCode.RESOURCE_EXHAUSTED,
                "too many large first messages of this host wait",
                StreamErrorKind.SIZE,
            )

    def _take(self, message: bytes) -> None:
        """Handle one message, at the expense of its peer."""
        handler, connection, pacer = self._handler, self._connection, self._service.limits.pacer
        if handler is None:
            return
        now_s, host = connection.now_s(), connection.peer.host
        meter = pacer.meter
        began_s = meter.begin()
        took_s = poll_s = 0.0
        try:
            handler.take(message, now_s)
            took_s = meter.since(began_s)
            if self.flush():
                poll_s = max(0.0, meter.since(began_s) - took_s)
        finally:
            took_s = took_s or meter.since(began_s)
            cpu_s = handler.price * took_s + min(poll_s, MAX_CHARGED_POLL_S)
            pacer.spend(host, handler.node, cpu_s, now_s)
        if not self.ended and pacer.must_wait(host, handler.node):
            self._wait_for(pacer.wait(host, handler.node), self._read)

    def _hold(self) -> None:
        if not self.ended:
            self._connection.hold(self, self._reader.held_bytes)

    def _wait_for(self, turn: Coroutine[Any, Any, None], then: Callable[[], object]) -> None:
        """Read nothing until ``turn`` is over."""
        self._receive_by_s = inf
        self._waiting = asyncio.get_running_loop().create_task(self._after(turn, then))

    async def _after(self, turn: Coroutine[Any, Any, None], then: Callable[[], object]) -> None:
        try:
            await turn
        except RpcError as error:
            self._waiting = None
            self._end(error.code, str(error), error.with_traceback(None).flaw)
            return
        except Exception as error:  # noqa: BLE001 - a bug ends this stream, not its connection
            self._waiting = None
            self._fail(error)
            return
        self._waiting = None
        self._connection.release(self.number, self._unreleased)
        self._unreleased = 0
        if self._first:
            self._receive_by_s = self._connection.now_s() + self._service.limits.first_message_s
        then()
        self._connection.wake(self)

    # -- ending --------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._unsent is None and not self.ended:
            self._connection.wake(self)

    def _end_for_memory(self, _flaw: StreamErrorKind) -> None:
        text = "the server is short of memory, or this connection has too many unfinished messages"
        self._end_soon(RpcError(GrpcCode.RESOURCE_EXHAUSTED, text, StreamErrorKind.MEMORY))

    def _end_soon(self, error: RpcError) -> None:
        """End the stream, but not within a loop over streams."""
        asyncio.get_running_loop().call_soon(self._end, error.code, str(error), error.flaw)

    def _end(self, code: GrpcCode, text: str, flaw: str = "") -> None:
        if self.ended:
            return
        node = "" if self._handler is None else self._handler.node
        self._close(text if flaw else "")
        if flaw:
            host = self._connection.peer.host
            self._service.on_flaw(flaw, host)
            self._service.limits.reached.add_stream_error(flaw, host, node)
        self._connection.finish(self, code, text)

    def _fail(self, error: BaseException) -> None:
        """End the stream because of a bug of ours."""
        self._connection.failed(self, error)
        self._end(GrpcCode.UNKNOWN, "internal error of the server")

    def _close(self, reason: str) -> None:
        if self.ended:
            return
        self.ended = True
        self._connection.hold(self, 0)
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        self._unsent = None
        if self._ticket is not None:
            self._service.limiter.release(self._connection.peer.host)
            self._service.limits.memory.leave(self._ticket)
            self._ticket = None  # refers to this stream: a cycle would stay until the next garbage collection
        if self._handler is not None:
            self._handler.close(reason)
            self._handler = None
