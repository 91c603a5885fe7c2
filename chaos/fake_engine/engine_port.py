"""The port of one fake engine: it listens, refuses while it is crashed, and resets whoever is connected."""

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
"""Of the event loop, until the last connection is made and the listener closed."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def reset_connection(transport: asyncio.Transport) -> None:
    """Close a connection with RST, so that the peer sees a reset and not an end."""
    tcp = transport.get_extra_info("socket")
    if tcp is not None:
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()


class _HungUp(asyncio.Protocol):
    """Whoever was accepted in the moment in which the port closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            reset_connection(transport)


class EnginePort:
    """``await open(app)``, then ``await listen()``; ``refuse()`` and ``listen()`` in turn; ``close()``.

    ``number`` is the port, which stays ours from the first ``listen`` on. With ``tls`` callers come by TLS, each
    new connection by what the files hold at that moment; where they name authorities, nobody else may call.
    """

    def __init__(self, host: str, number: int, tls: TlsFiles | None = None) -> None:
        self._host = host
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        self.number = number
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._held: socket.socket | None = None  # keeps the port ours while nothing listens on it

    @property
    def listening(self) -> bool:
        return self._listener is not None

    @property
    def url(self) -> str:
        """Where it is asked."""
        return f"{'http' if self._tls is None else 'https'}://{ListenAddress(self._host, self.number)}"

    @property
    def connections(self) -> list[RequestHandler]:
        """Those that are open."""
        if self._runner is None or self._runner.server is None:
            return []
        return self._runner.server.connections

    async def open(self, app: web.Application) -> None:
        """Be ready to answer as ``app`` does; ``CertificateError`` where the files of TLS cannot be used."""
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
        """Take connections; OSError when the port is taken."""
        assert self._runner is not None  # noqa: S101 -- open() came first
        assert self._runner.server is not None  # noqa: S101
        held, self._held = self._held or self._bound(), None
        self._listener = await asyncio.get_running_loop().create_server(
            self._answering, sock=held, ssl=self._context
        )

    def refuse(self) -> None:
        """Take no more connections; those that are open stay."""
        if self._listener is not None:
            loop, listener = asyncio.get_running_loop(), self._listener
            self._listener = None
            for one in listener.sockets:
                loop.remove_reader(one.fileno())
                one.shutdown(socket.SHUT_RD)
            # A connection that is accepted already is made in the next turns. Where its server is closed by then,
            # Python 3.11 fails to, and leaves it open for nobody (gh-109564).
            loop.call_soon(loop.call_soon, self._closed, listener, frozenset(self.connections))
            # Else the kernel lends the port of a crashed engine to any connection that leaves this machine.
            self._held = self._bound()

    def _closed(self, listener: asyncio.Server, open_then: frozenset[RequestHandler]) -> None:
        listener.close()
        for connection in () if self.listening else self.connections:
            if connection not in open_then and isinstance(connection.transport, asyncio.Transport):
                reset_connection(connection.transport)

    def reset_connections(self) -> None:
        """End all that are open with RST."""
        for connection in self.connections:
            if isinstance(connection.transport, asyncio.Transport):
                reset_connection(connection.transport)

    async def close(self) -> None:
        """Give the port back."""
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
        """A socket on our port that refuses connections until it listens; OSError when the port is taken."""
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
