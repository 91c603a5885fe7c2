"""ADS over grpc.aio, on bytes.

gRPC sees no message types: the publisher encodes a response once and all streams write the same bytes. A stream
has no queue. When writable, it polls its session for what is due, so a slow peer skips intermediate versions and
costs nothing while stalled.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from math import inf
from typing import Any, Final
from urllib.parse import unquote

import grpc
import structlog

from engine.bounded_dict import BoundedDict
from engine.grpc_operations import end_stream, read_message, send_headers
from engine.tls.grpc_credentials import auth_context_identities
from xds_server.auth.connection_limit import ConnectionLimiter, host_of, most_connections
from xds_server.auth.connection_watcher import ConnectionWatcher, CrowdedConnection
from xds_server.auth.reached_limits import PeerLimit
from xds_server.auth.stream_limits import MAX_FIRST_BYTES, PeerPacer, StreamLimits
from xds_server.auth.unfinished_messages import MESSAGE_S
from xds_server.publish import Publisher, Session
from xds_server.publish.ads_service import MAX_REQUEST_BYTES, METHODS, status_of, tick
from xds_server.transport.rpc_stream import MAX_CHARGED_POLL_S
from xds_server.xds import StreamError, StreamErrorKind, XdsVariant

__all__ = ("GrpcAdsServer", "StreamLimits")

STOP_GRACE_S: Final = 2.0
"""Time at shutdown to flush the last bytes."""

_LOG_EACH_S: Final = 60.0
_MAX_LOGGED: Final = 1024

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", -1),
    # Exclusive port: by default a second server would silently take half of the proxies.
    ("grpc.so_reuseport", 0),
    # After a restart a thousand proxies reconnect at once; above the default of 1000 grpc rejects them at random.
    # https://grpc.github.io/grpc/core/group__grpc__arg__keys.html
    ("grpc.server.max_pending_requests", 16_384),
    ("grpc.server.max_pending_requests_hard_limit", 32_768),
    # An Envoy opens a stream for discovery, one for load reports, and one per worker thread for access logs. Those
    # of more threads wait, or use a second connection.
    ("grpc.max_concurrent_streams", 128),
    # What a stream may send before its message is wanted stays at HTTP/2's 64 KiB. Otherwise it grows with the
    # speed of the peer, to hundreds of KiB.
    ("grpc.http2.bdp_probe", 0),
    # A connection without handshake or stream only uses up a descriptor.
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.max_connection_idle_ms", 60_000),
    # Detects vanished peers within 20 s; peers may ping, too.
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Decides with an open stream, and is 60 s otherwise.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
)

Context = grpc.aio.ServicerContext[bytes, bytes]

_log = structlog.get_logger()


class GrpcAdsServer:
    """Serves delta and state-of-the-world ADS on ``host:port`` (port 0: any free port).

    ``handlers``: further services on the port. Without ``credentials`` the port is plaintext. ``on_flaw`` is
    called for each stream closed because of a peer error.
    """

    def __init__(
        self,
        publisher: Publisher,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        credentials: grpc.ServerCredentials | None = None,
        handlers: Iterable[grpc.GenericRpcHandler] = (),
        on_flaw: Callable[[StreamErrorKind], None] = lambda _: None,
        limits: StreamLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._publisher = publisher
        self._on_flaw = on_flaw
        limits = limits or StreamLimits()
        self._limiter = ConnectionLimiter("streams", limits.streams, limits.streams_per_host)
        self._limits = limits
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._credentials = credentials
        self._clock = clock
        self._handlers = [_Discovery(self._serve), *handlers]
        self._server: grpc.aio.Server | None = None
        self._watcher: ConnectionWatcher | None = None
        self._logged_at_s: BoundedDict[str, float] = BoundedDict(_MAX_LOGGED)
        self._streams: set[asyncio.Task[Any]] = set()
        self._stopping = False

    async def start(self) -> int:
        """Open the port and return its number; ``OSError`` if it is in use."""
        most = most_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        accepted = ("grpc.max_allowed_incoming_connections", most)
        server = grpc.aio.server(handlers=self._handlers, options=(*_OPTIONS, accepted))
        try:
            if self._credentials is None:
                port = server.add_insecure_port(self._address)
            else:
                port = server.add_secure_port(self._address, self._credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._address}: {error}") from error
        await server.start()
        self._server = server
        self._watcher = ConnectionWatcher(
            self._limits.memory,
            port,
            # With few descriptors, too, one host does not take all.
            most_of_host=min(self._limits.connections_per_host, max(1, most // 2)),
            on_crowded=self._crowded,
            clock=self._clock,
        )
        return port

    async def run(self) -> None:
        """Tick the publisher and watch memory and connections until cancelled; call once started."""
        assert self._watcher is not None, "start comes first"  # noqa: S101  # for the type checker
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(tick(self._publisher, self._limits.memory, self._clock), name="tick")
            tasks.create_task(self._watcher.run(), name="connections")

    def _crowded(self, connections: Sequence[CrowdedConnection]) -> None:
        """Count and report connections that are reset at the limit of their host."""
        now_s = self._clock()
        for one in connections:
            self._on_flaw(StreamErrorKind.HOST_LIMIT)
            self._limits.reached.add(PeerLimit.STREAMS, one.host)
            if now_s - self._logged_at_s.get(one.host, -inf) >= _LOG_EACH_S:
                self._logged_at_s[one.host] = now_s
                _log.warning("peers.host_full", host=one.host, what="connections", most=one.most)

    async def stop(self) -> None:
        """Close the port and all streams with status OK: peers see no error."""
        server, self._server = self._server, None
        if server is None:
            return
        self._stopping = True
        for stream in self._streams:
            stream.cancel()
        await server.stop(STOP_GRACE_S)

    async def _serve(self, mode: XdsVariant, context: Context) -> None:
        stream = asyncio.current_task()
        assert stream is not None, "a coroutine runs in a task"  # noqa: S101  # for the type checker
        identities = auth_context_identities(context.auth_context())
        host = host_of(context.peer(), identities)
        for flaw, full in (
            (StreamErrorKind.CONNECTION_LIMIT, self._limiter.full()),
            (StreamErrorKind.HOST_LIMIT, self._limiter.full_for(host)),
        ):
            if full:
                self._on_flaw(flaw)
                self._limits.reached.add_stream_error(flaw, host)
                end_stream(context, grpc.StatusCode.RESOURCE_EXHAUSTED, full)
                return
        call = _Call(
            self._publisher,
            mode,
            context,
            self._clock,
            stream,
            identities=identities,
            pacer=self._limits.pacer,
        )
        ended: StreamError | None = None
        self._streams.add(stream)
        self._limiter.acquire(host)
        memory = self._limits.memory
        ticket = memory.enter(
            host, connection=unquote(context.peer()), proven=bool(identities), end=call.end_for_limit
        )
        try:
            # Before any response: gRPC sends no status on a stream whose first write was cancelled in flight.
            await send_headers(context)
            await self._limits.pacer.open(host, context.peer())
            # No local variable: it would keep the message as long as the stream.
            await call.read(
                await call.read_first(self._limits.first_message_s), lambda size: memory.read(ticket, size)
            )
        except StreamError as error:
            # Without its traceback, which would keep the message in a cycle with this frame.
            ended = error.with_traceback(None)
        except asyncio.CancelledError:
            ended = call.ended
            if ended is None and not self._stopping:
                raise
        finally:
            self._streams.discard(stream)
            self._limiter.release(host)
            memory.leave(ticket)
            await call.close("" if ended is None else str(ended))
        if ended is not None:
            self._on_flaw(ended.flaw)
            self._limits.reached.add_stream_error(ended.flaw, host, call.node_id)
            end_stream(context, grpc.StatusCode[status_of(ended).name], str(ended))


class _Discovery(grpc.GenericRpcHandler):
    """Handler lookup for discovery methods; without serializers, gRPC passes bytes."""

    def __init__(self, serve: Callable[[XdsVariant, Context], Awaitable[None]]) -> None:
        def handler(mode: XdsVariant) -> grpc.RpcMethodHandler[bytes, bytes]:
            async def behave(_requests: object, context: Context) -> None:
                await serve(mode, context)

            made: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(behave)
            return made

        self._methods = {method: handler(mode) for method, mode in METHODS.items()}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Handler of one of our two methods."""
        return self._methods.get(str(handler_call_details.method))


class _Call:
    """One stream: the task ``stream`` reads; another writes while anything is due.

    gRPC allows one write at a time, so that task is the only writer; between pushes there is none.
    """

    __slots__ = ("_clock", "_closed", "_context", "_failure", "_pacer", "_session", "_stream", "_writer", "ended")

    def __init__(
        self,
        publisher: Publisher,
        mode: XdsVariant,
        context: Context,
        clock: Callable[[], float],
        stream: asyncio.Task[Any],
        *,
        identities: tuple[str, ...],
        pacer: PeerPacer,
    ) -> None:
        self._context = context
        self._pacer = pacer
        self._clock = clock
        self._stream = stream
        self._writer: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._closed = False
        self.ended: StreamError | None = None
        self._session: Session = publisher.connect(
            mode, context.peer(), self._wake, identities=identities, end=self._end
        )

    @property
    def node_id(self) -> str:
        """Node id of the peer; empty until it is known."""
        return self._session.node_id

    async def read_first(self, within_s: float) -> object:
        """The first request; ``StreamError`` if it is late or too large."""
        try:
            async with asyncio.timeout(within_s):
                data = await read_message(self._context)
        except TimeoutError:
            raise StreamError(f"no request within {within_s:g} s", StreamErrorKind.SILENT) from None
        if isinstance(data, bytes) and len(data) > MAX_FIRST_BYTES:
            raise StreamError(f"first message of {len(data)} bytes; limit {MAX_FIRST_BYTES}", StreamErrorKind.SIZE)
        size = len(data) if isinstance(data, bytes) else 0
        if not await self._pacer.admit_first(self._session.host, self._session.peer, size):
            raise StreamError("too many large first messages of this host wait", StreamErrorKind.SIZE)
        return data

    async def read(self, data: object, on_message: Callable[[int], None]) -> None:
        """Process this request, if it is one, and further ones until the peer ends the stream."""
        session = self._session
        while isinstance(data, bytes):  # anything else ends the stream
            on_message(len(data))
            self._take(data)
            data = None  # freed before the next one arrives
            await self._pacer.wait(session.host, session.node_id)
            data = await read_message(self._context)

    def _take(self, data: bytes) -> None:
        """Process one request, at the expense of its peer."""
        session = self._session
        began_s = done_s = time.thread_time()
        try:
            session.request(data, self._clock())
            done_s = time.thread_time()
            # Most requests are ACKs that make nothing due: check without starting a task.
            if self._writer is None and (due := session.poll(self._clock())) is not None:
                self._start(due)
        finally:
            now_s = time.thread_time()
            poll_s = min(now_s - done_s, MAX_CHARGED_POLL_S) if done_s > began_s else now_s - began_s
            self._pacer.spend(session.host, session.node_id, done_s - began_s + poll_s, self._clock())

    async def close(self, reason: str) -> None:
        """End the session and its writer; raises the writer's exception, if any."""
        self._closed = True
        self._session.close(reason)
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait([self._writer])
        if self._failure is not None:
            raise self._failure

    def end_for_limit(self, flaw: StreamErrorKind) -> None:
        """End the stream, as memory is short or its connection is being reset."""
        text = "the server is short of memory, or this connection has too many unfinished messages"
        if flaw is StreamErrorKind.SILENT:
            text = f"a message took more than {MESSAGE_S:g} s"
        self._end(StreamError(text, flaw))

    def _end(self, why: StreamError) -> None:
        """End the stream."""
        if self.ended is None and not self._closed:
            self.ended = why
            self._stream.cancel()

    def _wake(self) -> None:
        if self._writer is None:
            self._start(None)

    def _start(self, first: bytes | None) -> None:
        if not self._closed:
            self._writer = asyncio.get_running_loop().create_task(self._write(first))
            self._writer.add_done_callback(self._written)

    async def _write(self, due: bytes | None) -> None:
        try:
            if due is None:
                due = self._session.poll(self._clock())
            while due is not None:
                await self._context.write(due)
                due = self._session.poll(self._clock())
        except (grpc.aio.InternalError, grpc.aio.UsageError):
            # The peer disconnected during a write; the reader notices and reports it.
            self._closed = True
        finally:
            self._writer = None

    def _written(self, writer: asyncio.Task[None]) -> None:
        if not writer.cancelled() and (failure := writer.exception()) is not None:
            self._failure = failure
            self._stream.cancel()
