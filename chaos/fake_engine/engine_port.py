"""The port of one fake engine: listens, refuses connections after a crash, and resets open ones."""

import asyncio
import socket
import ssl
import struct

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from engine.address import ListenAddress
from engine.tls.paths import TlsFiles

# SO_LINGER with time 0: closing sends RST instead of FIN.
_TURNS_OF_CLOSING = 4
"""Event loop turns until the last connection is set up and the listener closed."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def reset_connection(transport: asyncio.Transport) -> None:
    """Close a connection with RST instead of FIN."""
    tcp = transport.get_extra_info("socket")
    if tcp is not None:
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()


class _HungUp(asyncio.Protocol):
    """Resets connections accepted while the port was closing."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            reset_connection(transport)


class EnginePort:
    """``await open(app)``, ``await listen()``; then alternate ``refuse()`` and ``listen()``; ``close()``.

    ``number`` is the port, reserved from the first ``listen`` on. With ``tls`` each new connection uses the
    current content of the files; with a client CA, callers need a certificate.
    """

    def __init__(self, host: str, number: int, tls: TlsFiles | None = None) -> None:
        self._host = host
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        self.number = number
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._held: socket.socket | None = None  # reserves the port while nothing listens on it

    @property
    def listening(self) -> bool:
        return self._listener is not None

    @property
    def url(self) -> str:
        """Base URL."""
        return f"{'http' if self._tls is None else 'https'}://{ListenAddress(self._host, self.number)}"

    @property
    def connections(self) -> list[RequestHandler]:
        """Open connections."""
        if self._runner is None or self._runner.server is None:
            return []
        return self._runner.server.connections

    async def open(self, app: web.Application) -> None:
        """Set up ``app``; raises ``CertificateError`` for unusable TLS files."""
        if self._tls is not None:
            from engine.tls.certificate_files import RotatingKeyPair  # noqa: PLC0415
            from engine.tls.contexts import server_context  # noqa: PLC0415 -- cryptography, only where there is TLS

            self._context = server_context(
                RotatingKeyPair(self._tls), only_proved=self._tls.authorities is not None
            )
        # vLLM's server notices a client that leaves; aiohttp only with handler_cancellation.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.0)
        await self._runner.setup()

    async def listen(self) -> None:
        """Accept connections; raises OSError if the port is in use."""
        assert self._runner is not None  # noqa: S101 -- open() came first
        assert self._runner.server is not None  # noqa: S101
        held, self._held = self._held or self._bound(), None
        self._listener = await asyncio.get_running_loop().create_server(
            self._answering, sock=held, ssl=self._context
        )

    def refuse(self) -> None:
        """Refuse new connections; open ones stay."""
        if self._listener is not None:
            loop, listener = asyncio.get_running_loop(), self._listener
            self._listener = None
            for one in listener.sockets:
                loop.remove_reader(one.fileno())
                one.shutdown(socket.SHUT_RD)
            # An accepted connection is set up in the next loop turns. If its server is closed by then, Python 3.11
            # leaks it (gh-109564).
            loop.call_soon(loop.call_soon, self._closed, listener, frozenset(self.connections))
            # Otherwise the kernel may use a crashed engine's port as the source port of an outgoing connection.
            self._held = self._bound()

    def _closed(self, listener: asyncio.Server, open_then: frozenset[RequestHandler]) -> None:
        listener.close()
        for connection in () if self.listening else self.connections:
            if connection not in open_then and isinstance(connection.transport, asyncio.Transport):
                reset_connection(connection.transport)

    def reset_connections(self) -> None:
        """Close all open connections with RST."""
        for connection in self.connections:
            if isinstance(connection.transport, asyncio.Transport):
                reset_connection(connection.transport)

    async def close(self) -> None:
        """Release the port."""
        self.refuse()
        if self._held is not None:
            self._held.close()
            self._held = None
        if self._runner is not None:
            for _ in range(_TURNS_OF_CLOSING):
                await asyncio.sleep(0)
            await self._runner.cleanup()
            self._runner = None

    def _answering(self) -> asyncio.BaseProtocol:
        if self._listener is None or self._runner is None or self._runner.server is None:
            return _HungUp()
        return self._runner.server()

    def _bound(self) -> socket.socket:
        """A socket bound to the port that refuses connections; raises OSError if the port is in use."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((self._host, self.number))
        except OSError:
            bound.close()
            raise
        self.number = bound.getsockname()[1]
        return bound
