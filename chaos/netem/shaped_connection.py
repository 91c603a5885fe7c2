"""One relayed connection: two sockets, and a flow in each direction."""

import asyncio
import random
import socket
import struct
import time
from asyncio.trsock import TransportSocket
from typing import Final, Protocol, cast

from chaos.netem.link_rules import UNIMPAIRED, LinkConditions
from chaos.netem.packet_filter import attach_filter, loss_program
from chaos.netem.shaped_flow import BandwidthCap, DelayLine, ShapedFlow

_CONNECT_LIMIT_S: Final = 30.0
# struct linger: on with time 0, so close() sends a reset.
_NO_LINGERING: Final = struct.pack("ii", 1, 0)


class ShapingLink(Protocol):
    """Interface between a connection and its link."""

    to: tuple[str, int]
    rng: random.Random

    def conditions(self, source: str) -> LinkConditions:
        """Current conditions for a peer at this address."""

    def cap(self, rule: str, way: str) -> BandwidthCap:
        """The bandwidth limit of a rule, for one direction."""

    def began(self, connection: "ShapedConnection") -> None:
        """Register a peer's connection."""

    def ended(self, connection: "ShapedConnection") -> None:
        """Forget a connection whose sockets are both closed."""


class _Socket(asyncio.Protocol):
    """One of the two sockets. Bytes read go into ``heard``; bytes to send come from ``sent``."""

    def __init__(self, connection: "ShapedConnection", name: str, heard: ShapedFlow, sent: ShapedFlow) -> None:
        self.name = name
        self.heard = heard
        self.transport: asyncio.Transport | None = None
        self.line: DelayLine | None = None
        self._connection, self._sent = connection, sent

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.heard.source = self._sent.sink = self.transport
        self._connection.made(self)

    def data_received(self, data: bytes) -> None:
        self._connection.enter(self, data)

    def eof_received(self) -> bool:
        self._connection.enter(self, b"")
        return True  # keep relaying the other direction

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- asyncio's signature
        self._connection.lost(self)

    def pause_writing(self) -> None:
        self._sent.sink_full = True
        self._sent.deliver()

    def resume_writing(self) -> None:
        self._sent.sink_full = False
        self._sent.deliver()

    def filter(self, loss_share: float) -> None:
        """Drop this share of incoming packets."""
        if self.transport is not None and not self.transport.is_closing():
            attach_filter(self._raw, loss_program(loss_share))

    def reset(self) -> None:
        """Reset the connection."""
        if self.transport is not None and not self.transport.is_closing():
            self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING)
            self.transport.abort()

    @property
    def _raw(self) -> TransportSocket:
        assert self.transport is not None  # noqa: S101 -- callers looked
        return cast("TransportSocket", self.transport.get_extra_info("socket"))


class ShapedConnection:
    """A peer's connection and ours to its target. ``source`` is the peer's address."""

    def __init__(self, link: ShapingLink) -> None:
        self.source = ""
        self._link = link
        self._weather = UNIMPAIRED
        there, back = ShapedFlow(self._end_in_order), ShapedFlow(self._end_in_order)
        self._ways = (there, back)
        self._peer = _Socket(self, "there", there, back)
        self._own = _Socket(self, "back", back, there)
        self._open: set[_Socket] = set()
        self._connecting: asyncio.Task[None] | None = None

    @property
    def protocol(self) -> asyncio.Protocol:
        """Protocol of the socket that the peer connected to."""
        return self._peer

    def made(self, one: _Socket) -> None:
        """Handle a connected socket."""
        assert one.transport is not None  # noqa: S101 -- it was just made
        self._open.add(one)
        if one is self._peer:
            self.source = str(one.transport.get_extra_info("peername")[0])
            self._weather = self._link.conditions(self.source)
            self._link.began(self)
            # The kernel answered at once; the real handshake would have taken a round trip.
            open_at_s = time.monotonic() + 2 * self._weather.latency_s
            for side in (self._peer, self._own):
                side.line = DelayLine(self._link.rng, open_at_s=open_at_s)
            self._connecting = asyncio.create_task(self._connect())
        # Accepted sockets inherit the listening socket's filter.
        one.filter(self._weather.loss_share)
        self._reroute()

    def enter(self, one: _Socket, data: bytes) -> None:
        """Handle bytes read from a socket; empty at its end."""
        assert one.line is not None  # noqa: S101 -- the peer came first
        caps = [self._link.cap(rule, one.name) for rule in self._weather.caps]
        one.heard.enter(one.line.due_s(time.monotonic(), len(data), self._weather, caps), data)

    def apply_rules(self) -> None:
        """Apply changed rules."""
        before, self._weather = self._weather, self._link.conditions(self.source)
        if self._weather != before:
            for one in (self._peer, self._own):
                one.filter(self._weather.loss_share)
            self._reroute()

    def lost(self, one: _Socket) -> None:
        """Handle a closed socket."""
        self._open.discard(one)
        if not all(way.ended for way in self._ways):
            # Closed abnormally: reset the other side too.
            self.reset()
        if not self._open:
            for way in self._ways:
                way.close()
            self._link.ended(self)

    def reset(self) -> None:
        """Reset both ends."""
        if self._connecting is not None:
            self._connecting.cancel()
        for one in (self._peer, self._own):
            one.reset()

    def _reroute(self) -> None:
        if self._weather.reset:
            self.reset()
            return
        for way in self._ways:
            way.held = self._weather.black_hole
            way.deliver()

    def _end_in_order(self) -> None:
        if all(way.ended for way in self._ways):
            for one in (self._peer, self._own):
                if one.transport is not None:
                    one.transport.close()

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(_CONNECT_LIMIT_S):
                await asyncio.get_running_loop().create_connection(lambda: self._own, *self._link.to)
        except (OSError, TimeoutError):
            self.reset()
