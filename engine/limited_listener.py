"""A listener with connection limits that keeps authenticated clients connected during a flood.

A connection uses a descriptor from its accept on, so it counts from then: in total and per host. Before its first
byte there is no TLS, and it costs next to nothing. At a limit, a new connection replaces an unauthenticated one:
the oldest silent one if most are silent, else the oldest of the others, such as half requests; at the total
limit, one of the host with most of them. Authenticated connections (``mark_authenticated``) are never replaced.
So a flood closes its own connections, even from the host of real clients, as behind a proxy.
"""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import structlog
from aiohttp.http_exceptions import HttpProcessingError

from engine.address import ListenAddress, source_network
from engine.closed_transport import release_transport

SILENT_S: Final = 15.0
"""Seconds for the first byte, and again for the TLS handshake."""

LINGERING_S: Final = 1.0
"""Seconds that a port reads the rest of a refused request, so that its client sees the answer and no reset."""

_BACKLOG: Final = 512
_AT_ONCE: Final = 64
"""Connections accepted per loop iteration."""

_WAIT_S: Final = 1.0
"""Pause in seconds when descriptors or memory are exhausted, instead of a busy loop."""

_OUT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = structlog.get_logger()


class _ClientFaults(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


def http_logger() -> logging.Logger:
    """The logger of an HTTP port, without requests that are not HTTP: anyone can cause a traceback for each."""
    logger = logging.getLogger("aiohttp.server")
    if not any(isinstance(one, _ClientFaults) for one in logger.filters):
        logger.addFilter(_ClientFaults())
    return logger


class LimitedListener:
    """Passes connections to ``server``: at most ``most``, and ``most_of_host`` per host.

    ``turned_away`` is called with the host of each connection closed at a limit. ``what`` names the port in logs.
    """

    def __init__(
        self,
        server: Callable[[], asyncio.Protocol],
        *,
        what: str,
        most: int,
        most_of_host: int,
        turned_away: Callable[[str], None] = lambda _: None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._server = server
        self._what = what
        self._most = most
        self._most_of_host = most_of_host
        self._turned_away = turned_away
        self._tls = tls
        self._sockets: list[socket.socket] = []
        self._waits: dict[socket.socket, asyncio.TimerHandle] = {}
        self._by_host: dict[str, dict[_LimitedConnection, None]] = {}
        self._count = 0
        self._told: set[str] = set()
        self._is_out = False

    async def open(self, address: ListenAddress) -> int:
        """Listen and return the port; ``OSError`` if it is unavailable."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, kind, protocol, _, where in dict.fromkeys(found):
                try:
                    listening = socket.socket(family, kind, protocol)
                except OSError:
                    continue  # e.g. an IPv6 address of a name, on a machine without IPv6
                self._sockets.append(listening)
                listening.setblocking(False)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listening.bind(where)
                listening.listen(_BACKLOG)
        except OSError:
            self.close()
            raise
        if not self._sockets:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        for listening in self._sockets:
            loop.add_reader(listening, self._accept, listening)
        return int(self._sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening and close silent connections; ``server`` keeps the others."""
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening)
            if (wait := self._waits.pop(listening, None)) is not None:
                wait.cancel()
            listening.close()
        self._sockets.clear()
        for visit in [one for visits in self._by_host.values() for one in visits if not one.handed_on]:
            visit.end()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, peer = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _OUT:
                    self._rest(listening, error)
                    return
                continue  # peer already gone
            self._is_out = False
            connection.setblocking(False)
            self._take(connection, source_network(str(peer[0])))

    def _rest(self, listening: socket.socket, error: OSError) -> None:
        """Pause accepting and free connections; clients wait in the backlog."""
        if not self._is_out:
            self._is_out = True
            _log.error("port.waits", what=self._what, reason=error.strerror)
        if (visit := _least_known(self._fullest())) is not None:
            self._turn_away(visit)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        self._waits[listening] = loop.call_later(_WAIT_S, self._again, listening)

    def _again(self, listening: socket.socket) -> None:
        del self._waits[listening]
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _take(self, connection: socket.socket, host: str) -> None:
        """Count a connection and wait for its first byte, or close it or another one."""
        of_host = self._by_host.get(host, {})
        full = len(of_host) >= self._most_of_host
        if full or self._count >= self._most:
            if full and host not in self._told:
                # Log once until there is room: refused clients retry each second.
                self._told.add(host)
                _log.warning("peers.host_full", host=host, what=self._what, most=self._most_of_host)
            visit = _least_known(of_host if full else self._fullest())
            if visit is None:
                self._turned_away(host)
                _reset(connection)
                return
            self._turn_away(visit)
        visit = _LimitedConnection(connection, host, self._server, self._tls, self._leave)
        self._by_host.setdefault(host, {})[visit] = None
        self._count += 1

    def _fullest(self) -> Iterable["_LimitedConnection"]:
        """Unauthenticated connections of the host with most of them."""
        counts = (
            (sum(not one.let_in for one in visits), number) for number, visits in enumerate(self._by_host.values())
        )
        count, number = max(counts, default=(0, 0), key=lambda one: (one[0], -one[1]))
        return list(self._by_host.values())[number] if count else ()

    def _turn_away(self, visit: "_LimitedConnection") -> None:
        self._turned_away(visit.host)
        visit.end()

    def _leave(self, visit: "_LimitedConnection") -> None:
        host = visit.host
        of_host = self._by_host[host]
        del of_host[visit]
        self._count -= 1
        if not of_host:
            del self._by_host[host]
        if len(of_host) < self._most_of_host // 2:
            self._told.discard(host)


def mark_authenticated(transport: asyncio.BaseTransport | None) -> None:
    """Mark the peer as authenticated: its connection is never replaced."""
    if isinstance(transport, asyncio.Transport) and isinstance(
        visit := transport.get_protocol(), _LimitedConnection
    ):
        visit.let_in = True


class _LimitedConnection(asyncio.Protocol):
    """One accepted connection; from its first byte on it forwards to a protocol of the server.

    ``gone`` is called once, at its end.
    """

    def __init__(
        self,
        connection: socket.socket,
        host: str,
        server: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        gone: Callable[["_LimitedConnection"], None],
    ) -> None:
        self.let_in = False
        self.host = host
        self._connection: socket.socket | None = connection
        self._make = server
        self._tls = tls
        self._gone: Callable[[_LimitedConnection], None] | None = gone
        self._server: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._beginning: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        loop.add_reader(connection, self._said)
        self._silence = loop.call_later(SILENT_S, self.end)

    @property
    def silent(self) -> bool:
        """Whether no byte was received."""
        return self._connection is not None

    @property
    def handed_on(self) -> bool:
        """Whether it was passed to the server."""
        return self._server is not None

    def end(self) -> None:
        """Abort it."""
        if self._connection is not None:
            _reset(self._not_silent(self._connection))
        elif self._transport is not None:
            self._transport.abort()
        elif self._beginning is not None:
            self._beginning.cancel()
        self._leave()

    def begin_if_received(self) -> bool:
        """Begin at once if a byte waits that the event loop has not reported yet; whether one does."""
        try:
            received = self._connection is not None and bool(self._connection.recv(1, socket.MSG_PEEK))
        except OSError:
            received = False
        if received:
            self._said()
        return received

    def _said(self) -> None:
        if self._connection is not None:
            connection = self._not_silent(self._connection)
            self._beginning = asyncio.get_running_loop().create_task(self._begin(connection))

    def _not_silent(self, connection: socket.socket) -> socket.socket:
        asyncio.get_running_loop().remove_reader(connection)
        self._silence.cancel()
        self._connection = None
        return connection

    async def _begin(self, connection: socket.socket) -> None:
        # Handshake errors close the connection.
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else SILENT_S,
            )
        if self._transport is None:
            self._leave()

    def _leave(self) -> None:
        if self._gone is not None:
            gone, self._gone = self._gone, None
            gone(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Forward to the server; only late events are dropped."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 -- what a socket gets, with TLS and without
        self._transport = transport
        self._beginning = None
        if self._gone is None:
            transport.abort()
            return
        self._server = self._make()
        self._server.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        if self._server is not None:
            self._server.connection_lost(exc)
        release_transport(self._transport)

    def data_received(self, data: bytes) -> None:
        if self._server is not None:
            self._server.data_received(data)

    def eof_received(self) -> bool | None:
        return self._server.eof_received() if self._server is not None else None

    def pause_writing(self) -> None:
        if self._server is not None:
            self._server.pause_writing()

    def resume_writing(self) -> None:
        if self._server is not None:
            self._server.resume_writing()


def _least_known(visits: Iterable[_LimitedConnection]) -> _LimitedConnection | None:
    """Connection to replace, None if all are authenticated: the oldest of the larger kind, which is the flood."""
    strangers = [one for one in visits if not one.let_in]
    silent = deque(one for one in strangers if one.silent)
    while silent and 2 * len(silent) >= len(strangers):
        if not silent[0].begin_if_received():
            return silent[0]
        silent.popleft()
    return next((one for one in strangers if not one.silent), None)


def _reset(connection: socket.socket) -> None:
    """Close with RST: a FIN would leave a kernel entry for a minute."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    connection.close()
