"""The port: accepts connections, finds services, flushes woken streams, and applies limits of all connections."""

import asyncio
import resource
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from xds_server.auth.connection_limit import ConnectionLimiter, host_of, most_connections
from xds_server.auth.message_cost import MessageCost
from xds_server.auth.reached_limits import PeerLimit, ReachedLimits
from xds_server.transport.h2.grpc_messages import prefixed
from xds_server.transport.h2_protocol import H2Protocol, grpc_address
from xds_server.transport.held_messages import HeldMessages
from xds_server.transport.rpc_service import RpcService
from xds_server.transport.rpc_stream import RpcStream
from xds_server.transport.transport_limits import TransportLimits
from xds_server.xds import StreamErrorKind

CHECK_EACH_S: Final = 1.0

STOP_GRACE_S: Final = 2.0
"""Time at shutdown to flush the last bytes."""

STOOD_STILL_S: Final = 1.0
"""A check that is later than this gives peers as much more time: the loop could not read their answers."""

FLUSH_CPU_S: Final = 0.05
"""CPU time for which woken streams are flushed before others are read: pushes leave before their ACKs are handled.

Not wall-clock time: on a busy machine, that of a few streams would pass between two of them.
"""

BACKLOG: Final = 1024

ACCEPTED_AT_ONCE: Final = 64
"""Connections accepted before others are read."""

ACCEPT_PAUSE_S: Final = 1.0
"""Pause where the system has no descriptor or memory for a connection."""

_log = structlog.get_logger()


class H2Server:
    """Serves ``services`` on ``host:port`` (port 0: any free port). Without ``tls`` the port is plaintext.

    ``on_flaw`` is called for each connection that ends because of its peer's error.
    """

    def __init__(
        self,
        services: Iterable[RpcService],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        limits: TransportLimits | None = None,
        reached: ReachedLimits | None = None,
        on_flaw: Callable[[StreamErrorKind], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tls = tls
        self.limits = limits = limits or TransportLimits()
        self.reached = reached or ReachedLimits()
        self.held: HeldMessages[RpcStream] = HeldMessages(
            limits.held_bytes_of_connection, limits.held_bytes_of_host, limits.held_bytes
        )
        self._services = {one.method: one for one in services}
        self._host, self._port = host, port
        self._on_flaw = on_flaw
        self._clock = clock
        most = most_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        # With few descriptors, too, one host does not take all.
        most_of_host = min(limits.connections_of_host, max(1, most // 2))
        self._limiter = ConnectionLimiter("connections", most, most_of_host)
        self._connections: dict[H2Protocol, None] = {}
        self._woken: deque[tuple[H2Protocol, RpcStream]] = deque()
        self._meter = MessageCost()
        self._message = self._framed = b""
        self._checked_s = clock()
        self._listening: socket.socket | None = None
        self._accepting: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._all_closed = asyncio.Event()
        self._stopping = False

    async def start(self) -> int:
        """Open the port and return its number; ``OSError`` if it is in use."""
        address = f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"
        is_ipv6 = ":" in self._host
        try:
            # Not by asyncio: it would accept no IPv4 on an IPv6 wildcard.
            listening = socket.create_server(
                (self._host, self._port),
                family=socket.AF_INET6 if is_ipv6 else socket.AF_INET,
                backlog=BACKLOG,
                dualstack_ipv6=is_ipv6,
            )
        except OSError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error
        listening.setblocking(False)
        self._listening = listening
        self._accept_on()
        self._check_later()
        port: int = listening.getsockname()[1]
        return port

    def check(self, now_s: float) -> None:
        """Apply time limits."""
        late_s = now_s - self._checked_s - CHECK_EACH_S
        self._checked_s = now_s
        for connection in tuple(self._connections):
            if late_s > STOOD_STILL_S:
                connection.delay_limits(late_s)
            connection.check(now_s)

    def _accept_on(self) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        """Accept waiting connections. Not by asyncio, which closes refused ones some turns later: each costs a
        descriptor until then."""
        loop, listening = asyncio.get_running_loop(), self._listening
        for _ in range(ACCEPTED_AT_ONCE):
            if listening is None:
                return
            try:
                accepted, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                loop.remove_reader(listening)
                loop.call_later(ACCEPT_PAUSE_S, self._accept_on)
                _log.warning("peers.accept_failed", reason=str(error), pause_s=ACCEPT_PAUSE_S)
                return
            address = grpc_address(peer)
            if not self._admit(host_of(address, ())):
                accepted.close()
                continue
            accepted.setblocking(False)
            connection = H2Protocol(self, address)
            task = loop.create_task(self._connect(connection, accepted))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)

    async def _connect(self, connection: H2Protocol, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted)
        except OSError:  # the peer is gone
            accepted.close()
            self.forget(connection, connection.address)

    def _admit(self, host: str) -> bool:
        """Count a connection of a host; False if there are too many."""
        for flaw, full in (
            (StreamErrorKind.CONNECTION_LIMIT, self._limiter.full()),
            (StreamErrorKind.HOST_LIMIT, self._limiter.full_for(host)),
        ):
            if full:
                self.flawed(flaw, host)
                self.reached.add(PeerLimit.STREAMS, host)
                return False
        self._limiter.acquire(host)
        return True

    def _check_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_EACH_S, self._check_now)

    def _check_now(self) -> None:
        try:
            self.check(self._clock())
        finally:
            self._check_later()

    async def stop(self) -> None:
        """Close the port, and all streams with status OK: peers see no error."""
        listening, self._listening = self._listening, None
        if listening is None:
            return
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        asyncio.get_running_loop().remove_reader(listening)
        listening.close()
        for connection in tuple(self._connections):
            connection.stop()
        if self._connections:
            try:
                await asyncio.wait_for(self._all_closed.wait(), STOP_GRACE_S)
            except TimeoutError:
                for connection in tuple(self._connections):
                    connection.abort()

    # -- called by connections -----------------------------------------------------------------------------

    def service(self, method: str) -> RpcService | None:
        """The service of this path."""
        return self._services.get(method)

    def now_s(self) -> float:
        """Monotonic clock."""
        return self._clock()

    def opened(self, connection: H2Protocol) -> None:
        """A connection is ready for data."""
        self._connections[connection] = None
        if self._stopping:
            connection.abort()

    def forget(self, connection: H2Protocol, address: str) -> None:
        """The connection is gone."""
        self._limiter.release(host_of(address, ()))
        self._connections.pop(connection, None)
        if self._stopping and not self._connections:
            self._all_closed.set()

    def framed(self, message: bytes) -> bytes:
        """A message with its prefix: the same bytes for all streams that a push reaches."""
        if message is not self._message:
            self._message, self._framed = message, prefixed(message)
        return self._framed

    def wake(self, connection: H2Protocol, stream: RpcStream) -> None:
        """Flush the stream soon."""
        if not stream.is_woken:
            stream.is_woken = True
            if not self._woken:
                asyncio.get_running_loop().call_soon(self._flush)
            self._woken.append((connection, stream))

    def limit_held(self) -> None:
        """End streams that hold too many bytes."""
        for stream in self.held.excess():
            stream.end_for_excess()

    def flawed(self, flaw: StreamErrorKind, host: str) -> None:  # noqa: ARG002 -- of the interface
        """Count an error of a connection."""
        self._on_flaw(flaw)

    def failed(self, error: BaseException) -> None:
        """Log a bug."""
        context = {"message": "a stream ended because of a bug", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)

    def _flush(self) -> None:
        began_s = self._meter.begin()
        try:
            while self._woken and not self._meter.exceeds(began_s, FLUSH_CPU_S):
                connection, stream = self._woken.popleft()
                stream.is_woken = False
                stream.flush()
                connection.write_out()
        finally:
            if self._woken:
                asyncio.get_running_loop().call_soon(self._flush)
