"""Receive-only streams: one gRPC method whose peer keeps sending, with bytes in and out, for both transports.

Messages beyond a node's budget are dropped and counted. Invalid and oversized messages end only their own stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, Protocol
from urllib.parse import unquote

import grpc

from engine.grpc_operations import end_stream, read_message
from engine.tls.grpc_credentials import auth_context_identities
from xds_server.auth.connection_limit import ConnectionLimiter, host_of
from xds_server.auth.stream_limits import MAX_FIRST_BYTES, StreamLimits
from xds_server.transport import RpcError, RpcHandler, RpcPeer, RpcService
from xds_server.transport.h2.grpc_messages import GrpcCode

Context = grpc.aio.ServicerContext[bytes, bytes]


MaySee = Callable[[str], bool]
"""Whether a proxy may see a pool, and so report on it."""

WRITE_LIMIT_S: Final = 1.0
"""A response is 30 bytes, which a peer's buffer takes at once; slower peers are not waited for."""


class TelemetryStreamError(Exception):
    """A peer's error; its stream ends, and ``flaw`` is counted."""

    def __init__(self, flaw: str, reason: str) -> None:
        super().__init__(reason)
        self.flaw = flaw


class TelemetryLimitError(TelemetryStreamError):
    """A peer that exceeds a limit; its stream ends with RESOURCE_EXHAUSTED."""


LONGEST_NAME: Final = 1_024
"""Characters of a node id: it is stored, logged and used as a metric label."""


def validated_node_id(node: str) -> str:
    """The node id; ``TelemetryStreamError`` if it is invalid."""
    if not 0 < len(node) <= LONGEST_NAME:
        raise TelemetryStreamError("nameless", "the first message names no node")
    return node


class StreamHandler(Protocol):
    """One stream: a consumer of its messages."""

    @property
    def node(self) -> str:
        """Node id of the peer; empty until it is known."""

    @property
    def price(self) -> float:
        """Times its own CPU time that the last message is charged."""

    def take(self, data: bytes, now_s: float) -> bytes | None:
        """Handle one message; returns a response, if due. ``TelemetryStreamError`` ends the stream."""

    def close(self) -> None:
        """The stream has ended."""


class StreamService(grpc.GenericRpcHandler):
    """Serves one bidirectional ``method``; ``sit`` makes a stream's handler from the peer's identities and host.

    ``max_bytes``: limit of a message after the first. ``on_flaw`` gets each error and its host.
    """

    def __init__(
        self,
        method: str,
        sit: Callable[[tuple[str, ...], str], StreamHandler],
        on_flaw: Callable[[str, str], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        max_bytes: int,
        limits: StreamLimits | None = None,
    ) -> None:
        async def behave(_requests: object, context: Context) -> None:
            await self._serve(context)

        self._method: Final = method
        self._sit = sit
        self._on_flaw = on_flaw
        self._clock = clock
        self._limits = limits or StreamLimits()
        self._crowd = ConnectionLimiter("streams", self._limits.streams, self._limits.streams_per_host)
        self._max_bytes = max_bytes
        self._streams: set[asyncio.Task[Any]] = set()
        self._stopping = False
        self._handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(behave)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """The handler, if it is our method."""
        return self._handler if str(handler_call_details.method) == self._method else None

    def rpc_service(self) -> RpcService:
        """The same service for our own transport, which stops its streams itself."""
        return RpcService(
            method=self._method,
            connect=self._connect,
            limits=self._limits,
            limiter=self._crowd,
            max_bytes=self._max_bytes,
            on_flaw=self._on_flaw,
        )

    def _connect(self, peer: RpcPeer, _wake: Callable[[], None], _end: Callable[[RpcError], None]) -> RpcHandler:
        return _ReceiveHandler(self._sit(peer.identities, peer.host), self._clock)

    def stop(self) -> None:
        """End every stream, as a stopping server would."""
        self._stopping = True
        for stream in self._streams:
            stream.cancel()

    async def _serve(self, context: Context) -> None:
        identities = auth_context_identities(context.auth_context())
        host = host_of(context.peer(), identities)
        for flaw, full in (("crowd", self._crowd.full()), ("host", self._crowd.full_for(host))):
            if full:
                self._refused(flaw, host)
                end_stream(context, grpc.StatusCode.RESOURCE_EXHAUSTED, full)
                return
        stream = asyncio.current_task()
        assert stream is not None, "a coroutine runs in a task"  # noqa: S101  # for the type checker
        self._streams.add(stream)
        self._crowd.acquire(host)
        sitting = self._sit(identities, host)
        ticket = self._limits.memory.enter(
            host, connection=unquote(context.peer()), proven=bool(identities), end=lambda _: stream.cancel()
        )
        answering: asyncio.Task[None] | None = None
        reason, code = "", grpc.StatusCode.INVALID_ARGUMENT
        most = MAX_FIRST_BYTES
        data: object = None
        try:
            await self._limits.pacer.open(host, context.peer())
            data = await self._first(context, host)
            while isinstance(data, bytes):  # anything else is the end of the stream
                self._limits.memory.read(ticket, len(data))
                if len(data) > most:
                    raise TelemetryLimitError("size", f"message of {len(data)} bytes; limit {most}")
                most = self._max_bytes
                answer = self._take(sitting, host, data)
                data = None  # freed before the next one arrives
                # One response at a time, without waiting until it is sent.
                if answer is not None and (answering is None or answering.done()):
                    answering = asyncio.create_task(_answer(context, answer))
                await self._limits.pacer.wait(host, sitting.node)
                data = await read_message(context)
        except TelemetryStreamError as error:
            reason = str(error)
            if isinstance(error, TelemetryLimitError):
                code = grpc.StatusCode.RESOURCE_EXHAUSTED
            self._refused(error.flaw, host, sitting.node)
        except asyncio.CancelledError:
            if not self._stopping:
                raise
        finally:
            self._streams.discard(stream)
            self._crowd.release(host)
            self._limits.memory.leave(ticket)
            sitting.close()
            if answering is not None:
                # gRPC cannot set a stream's status while it still writes to it, even if the write was cancelled.
                await asyncio.wait([answering], timeout=WRITE_LIMIT_S)
        if reason:
            end_stream(context, code, reason)

    def _refused(self, flaw: str, host: str, node: str = "") -> None:
        self._on_flaw(flaw, host)
        self._limits.reached.add_stream_error(flaw, host, node)

    async def _first(self, context: Context, host: str) -> object:
        """The first message, when its host has time for it; ``TelemetryStreamError`` if none arrives in time."""
        within_s = self._limits.first_message_s
        try:
            async with asyncio.timeout(within_s):
                data = await read_message(context)
        except TimeoutError:
            raise TelemetryStreamError("silent", f"no message within {within_s:g} s") from None
        size = len(data) if isinstance(data, bytes) else 0
        if not await self._limits.pacer.admit_first(host, context.peer(), size):
            raise TelemetryLimitError("size", "too many large first messages of this host wait")
        return data

    def _take(self, sitting: StreamHandler, host: str, data: bytes) -> bytes | None:
        """Handle one message, at the expense of its peer."""
        pacer = self._limits.pacer
        began_s = pacer.meter.begin()
        try:
            return sitting.take(data, self._clock())
        finally:
            cpu_s = sitting.price * pacer.meter.since(began_s)
            pacer.spend(host, sitting.node, cpu_s, time.monotonic())


class _ReceiveHandler:
    """One stream on our own transport. Of responses, the latest waits until the peer takes it."""

    __slots__ = ("_answer", "_clock", "_stream")

    def __init__(self, stream: StreamHandler, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._clock = clock
        self._answer: bytes | None = None

    @property
    def node(self) -> str:
        """Node id of the peer; empty until it is known."""
        return self._stream.node

    @property
    def price(self) -> float:
        """Times its own CPU time that the last message is charged."""
        return self._stream.price

    def take(self, data: bytes, _now_s: float) -> None:
        """Handle one message."""
        try:
            answer = self._stream.take(data, self._clock())
        except TelemetryLimitError as error:
            raise RpcError(GrpcCode.RESOURCE_EXHAUSTED, str(error), error.flaw) from None
        except TelemetryStreamError as error:
            raise RpcError(GrpcCode.INVALID_ARGUMENT, str(error), error.flaw) from None
        if answer is not None:
            self._answer = answer

    def poll(self, _now_s: float) -> bytes | None:
        """The response that waits."""
        answer, self._answer = self._answer, None
        return answer

    def close(self, _reason: str) -> None:
        """The stream has ended."""
        self._stream.close()


async def _answer(context: Context, answer: bytes) -> None:
    try:
        await context.write(answer)
    except (grpc.aio.InternalError, grpc.aio.UsageError):
        return  # the peer left during the write; the reader notices, too
