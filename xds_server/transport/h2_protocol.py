"""One connection: the socket's callbacks, TLS, HTTP/2 and the streams of gRPC on it.

Output is collected while events are handled and written once. While the kernel takes nothing more, no message is
begun: what a slow peer costs is one send buffer and, for each stream, a reference to a shared message.
"""

import asyncio
import ipaddress
import ssl
from typing import Final, Protocol

from engine.closed_transport import release_transport
from xds_server.auth.connection_limit import host_of
from xds_server.auth.reached_limits import PeerLimit, ReachedLimits
from xds_server.transport.h2 import (
    DataReceived,
    ErrorCode,
    H2Connection,
    H2Error,
    RequestReceived,
    SendWindowOpened,
    StreamClosed,
)
from xds_server.transport.h2.grpc_messages import GrpcCode
from xds_server.transport.h2.header_blocks import NOT_GRPC, RESPONSE, trailers
from xds_server.transport.held_messages import HeldMessages
from xds_server.transport.rpc_service import RpcPeer, RpcService
from xds_server.transport.rpc_stream import RpcStream
from xds_server.transport.tls_session import TlsSession
from xds_server.transport.transport_limits import TransportLimits
from xds_server.xds import StreamErrorKind

WRITE_BYTES: Final = 64 * 1024
"""Bytes of messages between two writes to the socket."""

CLOSE_S: Final = 2.0
"""Time to flush the last bytes."""

_GRPC_TYPES: Final = ("application/grpc", "application/grpc+proto")


class ConnectionServer(Protocol):
    """What a connection needs of its server."""

    limits: TransportLimits
    tls: ssl.SSLContext | None
    held: HeldMessages[RpcStream]
    reached: ReachedLimits

    def service(self, method: str) -> RpcService | None:
        """The service of this path."""

    def now_s(self) -> float:
        """Monotonic clock."""

    def opened(self, connection: "H2Protocol") -> None:
        """The connection is ready for data."""

    def forget(self, connection: "H2Protocol", address: str) -> None:
        """The connection is gone."""

    def framed(self, message: bytes) -> bytes:
        """A message with its prefix."""

    def wake(self, connection: "H2Protocol", stream: RpcStream) -> None:
        """Flush the stream soon."""

    def limit_held(self) -> None:
        """End streams that hold too many bytes."""

    def flawed(self, flaw: StreamErrorKind, host: str) -> None:
        """Count an error of a connection."""

    def failed(self, error: BaseException) -> None:
        """Log a bug."""


class H2Protocol(asyncio.Protocol):
    """``peer`` is known once the handshake of TLS, if any, is complete."""

    __slots__ = (
        *("_closing_s", "_h2", "_opened_s", "_paused", "_ping_s"),
        *("_received_s", "_server", "_streams", "_tls", "_transport", "_used_s", "address", "limits", "peer"),
    )

    def __init__(self, server: ConnectionServer, address: str) -> None:
        self._server = server
        self.limits = server.limits
        self.peer = RpcPeer("", (), "")
        self.address = address
        self._opened_s = self._received_s = self._used_s = server.now_s()
        self._ping_s: float | None = None
        self._h2 = H2Connection(server.limits.h2, self._opened_s)
        self._streams: dict[int, RpcStream] = {}
        self._closing_s: float | None = None
        self._paused = False
        self._tls: TlsSession | None = None
        self._transport: asyncio.Transport | None = None

    # -- asyncio -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 -- of a TCP server
        self._transport = transport
        transport.set_write_buffer_limits(high=self.limits.send_buffer_bytes)
        if self._server.tls is not None:
            self._tls = TlsSession(self._server.tls)
        else:
            self._begin(())
        self._server.opened(self)

    def data_received(self, data: bytes) -> None:
        """Handle bytes of the peer."""
        if self._closing_s is not None:
            return
        self._received_s = self._server.now_s()
        if self._tls is not None:
            data = self._decrypted(self._tls, data)
            if not data or self._closing_s is not None:
                return
        try:
            events = self._h2.receive(data, self._received_s)
            for one in events:
                if isinstance(one, DataReceived):
                    stream = self._streams.get(one.stream)
                    if stream is not None and not stream.received(one.data, peer_ended=one.ended):
                        self._h2.small_frame(len(one.data), self._received_s)
                elif isinstance(one, SendWindowOpened):
                    self._window_opened(one.stream)
                elif isinstance(one, RequestReceived):
                    self._request(one)
                else:
                    self._closed(one)
        except H2Error as error:
            self._violated(error)
            return
        self.write_out()

    def eof_received(self) -> bool:
        """Close the connection: a peer that sends nothing more can acknowledge nothing."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- asyncio's signature
        """End all streams."""
        self._closing_s = self._server.now_s()
        self._drop_streams()
        self._server.forget(self, self.address)
        release_transport(self._transport)
        self._transport = self._tls = None

    def pause_writing(self) -> None:
        """The kernel takes nothing more."""
        self._paused = True

    def resume_writing(self) -> None:
        """The kernel takes more."""
        self._paused = False
        self._window_opened(0)
        self.write_out()

    # -- called by the server ------------------------------------------------------------------------------

    def check(self, now_s: float) -> None:
        """Apply time limits; call each second."""
        limits = self.limits
        if self._closing_s is not None:
            if now_s - self._closing_s > CLOSE_S and self._transport is not None:
                self._transport.abort()
            return
        for stream in tuple(self._streams.values()):
            stream.check(now_s)
        if self._streams:
            self._used_s = now_s
        if not self._h2.is_open:
            if now_s - self._opened_s > limits.handshake_s:
                self.abort()
        elif now_s - self._used_s > limits.idle_s:
            self.close(ErrorCode.NO_ERROR, "idle")
        elif self._ping_s is not None:
            if self._h2.ping_answered or self._received_s > self._ping_s:
                self._ping_s = None
            elif now_s - self._ping_s > limits.ping_answer_s:
                self.abort()
        elif now_s - self._received_s > limits.ping_s:
            self._ping_s = now_s
            self._h2.ping()
        self.write_out()

    def delay_limits(self, by_s: float) -> None:
        """The server stood still for this long: its peers get as much more time."""
        self._opened_s += by_s
        self._received_s += by_s
        self._used_s += by_s
        if self._ping_s is not None:
            self._ping_s += by_s
        for stream in self._streams.values():
            stream.delay_limits(by_s)

    def stop(self) -> None:
        """End all streams with OK, and close."""
        for stream in tuple(self._streams.values()):
            stream.stop()
        self.close(ErrorCode.NO_ERROR, "")

    def close(self, code: ErrorCode, text: str) -> None:
        """Close the connection once what was written is sent."""
        if self._closing_s is not None or self._transport is None:
            return
        self._h2.go_away(code, text)
        self.write_out()
        self._end_transport()

    def abort(self) -> None:
        """Close the connection at once: its peer does not answer."""
        self._closing_s = self._server.now_s()
        if self._transport is not None:
            self._transport.abort()

    # -- called by streams ---------------------------------------------------------------------------------

    def now_s(self) -> float:
        """Time of the server's clock."""
        return self._server.now_s()

    def send_headers(self, stream: int) -> None:
        """Begin the response."""
        self._h2.send_headers(stream, RESPONSE)

    def send_data(self, stream: int, data: memoryview) -> int:
        """Send part of a message; returns how many bytes were taken."""
        sent = 0
        while not self._paused and self._closing_s is None and sent < len(data):
            size = self._h2.send_data(stream, data[sent:], WRITE_BYTES)
            if not size:
                break
            sent += size
            if size == WRITE_BYTES:
                self.write_out()
        return sent

    def framed(self, message: bytes) -> bytes:
        """A message with its prefix; all streams share it."""
        return self._server.framed(message)

    def release(self, stream: int, size: int) -> None:
        """Let the peer send more."""
        self._h2.release(stream, size)

    def hold(self, stream: RpcStream, size: int) -> None:
        """The stream holds this many bytes of unfinished messages."""
        if not self._server.held.set(stream, self.address, self.peer.host, size):
            asyncio.get_running_loop().call_soon(self._server.limit_held)

    def wake(self, stream: RpcStream) -> None:
        """Flush the stream soon."""
        self._server.wake(self, stream)

    def finish(self, stream: RpcStream, code: GrpcCode, text: str) -> None:
        """End the stream with this status, and forget it."""
        if self._streams.pop(stream.number, None) is not None:
            self._used_s = self._server.now_s()
        self._h2.send_headers(stream.number, trailers(code, text, only=not stream.begun), ended=True)
        self.write_out()

    def failed(self, stream: RpcStream, error: BaseException) -> None:  # noqa: ARG002 -- of the interface
        """Log a bug."""
        self._server.failed(error)

    # -- inside --------------------------------------------------------------------------------------------

    def write_out(self) -> None:
        """Write what has been collected."""
        output, transport = self._h2.output, self._transport
        if not output or transport is None:
            return
        if self._tls is None:
            # Not `writelines`: in Python 3.11 it is the same. In 3.12 and 3.13 it never calls `pause_writing`, so
            # a peer that reads nothing would cost any memory.
            transport.write(b"".join(output))
        else:
            if not self._tls.is_open:
                return  # until the handshake is complete
            self._encrypt(self._tls, b"".join(output), transport)
        output.clear()
        if self._paused and transport.get_write_buffer_size() > self.limits.most_send_buffer_bytes:
            self.abort()

    def _encrypt(self, tls: TlsSession, data: bytes, transport: asyncio.Transport) -> None:
        try:
            tls.encrypt(data)
        except ssl.SSLError:
            self.abort()
        else:
            transport.write(tls.outgoing())

    def _decrypted(self, tls: TlsSession, data: bytes) -> bytes:
        was_open = tls.is_open
        try:
            data = tls.receive(data)
        except ssl.SSLError:
            self._end_transport()  # after the alert
            return b""
        if self._transport is not None and (answer := tls.outgoing()):
            self._transport.write(answer)
        if tls.is_open and not was_open:
            if tls.protocol() != "h2":
                self.abort()
                return b""
            self._begin(tls.identities())
        return data

    def _begin(self, identities: tuple[str, ...]) -> None:
        self.peer = RpcPeer(self.address, identities, host_of(self.address, identities))
        self.write_out()

    def _request(self, one: RequestReceived) -> None:
        number, head = one.stream, one.head
        if head.method != "POST" or head.content_type.partition(";")[0] not in _GRPC_TYPES:
            self._h2.send_headers(number, NOT_GRPC, ended=True)
            return
        service = self._server.service(head.path)
        if service is None:
            text = f"no method {head.path}"
            self._h2.send_headers(number, trailers(GrpcCode.UNIMPLEMENTED, text, only=True), ended=True)
            return
        stream = self._streams[number] = RpcStream(number, service, self)
        stream.open()
        if one.ended:
            stream.received(b"", peer_ended=True)

    def _closed(self, one: StreamClosed) -> None:
        stream = self._streams.pop(one.stream, None)
        if stream is not None:
            self._used_s = self._received_s
            stream.drop()

    def _window_opened(self, number: int) -> None:
        if number:
            stream = self._streams.get(number)
            if stream is not None:
                stream.flush()
        else:
            for stream in tuple(self._streams.values()):
                stream.flush()

    def _violated(self, error: H2Error) -> None:
        """End the connection because of its peer."""
        self._server.flawed(StreamErrorKind.HTTP2, self.peer.host)
        if error.code is ErrorCode.ENHANCE_YOUR_CALM:
            self._server.reached.add(PeerLimit.MESSAGES, self.peer.host)
        self.write_out()
        self._end_transport()
        self._drop_streams()

    def _drop_streams(self) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.drop()

    def _end_transport(self) -> None:
        """Close the socket once what was written is sent, or ``CLOSE_S`` later."""
        self._closing_s = self._server.now_s()
        transport, tls = self._transport, self._tls
        if transport is None:
            return
        if tls is not None:
            tls.close()
            transport.write(tls.outgoing())
        transport.close()


def grpc_address(peername: object) -> str:
    """A peer as gRPC names it: ``ipv4:10.0.0.1:4711``, ``ipv6:[::1]:4711``."""
    if not isinstance(peername, tuple):
        return "unknown"
    host, port = str(peername[0]).partition("%")[0], peername[1]
    if ":" not in host:
        return f"ipv4:{host}:{port}"
    mapped = ipaddress.IPv6Address(host).ipv4_mapped
    return f"ipv6:[{host}]:{port}" if mapped is None else f"ipv4:{mapped}:{port}"
