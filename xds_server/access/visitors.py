"""Connections to the admin port: so many at once, so many of one host, whatever they send or do not send.

Each takes a descriptor, of which the port of the proxies and the connections to agents need theirs as well.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from xds_server.crowd import Crowd, host_at

MOST: Final = 512
"""Half of the 1024 descriptors that a process has where nobody gave it more."""

MOST_OF_HOST: Final = 128
"""All pages of the dashboard that are watched behind one gateway, and as many others."""


class Visitors:
    """Makes protocols for a listener: those of ``server`` while there is room; others are closed at once.

    ``turned_away`` is called for each of these.
    """

    def __init__(
        self,
        server: Callable[[], asyncio.Protocol],
        *,
        turned_away: Callable[[], None],
    ) -> None:
        self._server = server
        self._turned_away = turned_away
        self._crowd = Crowd("connections to the admin port", MOST, MOST_OF_HOST)

    def __call__(self) -> asyncio.Protocol:
        """The protocol of the next connection."""
        return _Visitor(self._crowd, self._server(), self._turned_away)


class _Visitor(asyncio.Protocol):
    """One connection, which hands all on to ``server`` if it was let in."""

    def __init__(self, crowd: Crowd, server: asyncio.Protocol, turned_away: Callable[[], None]) -> None:
        self._crowd = crowd
        self._server = server
        self._turned_away = turned_away
        self._host: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        host = host_at(str(peer[0])) if isinstance(peer, tuple) else ""
        if self._crowd.full() or self._crowd.full_for(host):
            self._turned_away()
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()
            return
        self._crowd.enter(host)
        self._host = host
        self._server.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._host is not None:
            self._crowd.leave(self._host)
            self._host = None
            self._server.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._host is not None:
            self._server.data_received(data)

    def eof_received(self) -> bool | None:
        return self._server.eof_received() if self._host is not None else None

    def pause_writing(self) -> None:
        self._server.pause_writing()

    def resume_writing(self) -> None:
        self._server.resume_writing()
