"""Links of the netem relay: each has its own port and applies its rules."""

import asyncio
import random
import socket
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from chaos.netem.link_rules import ANY_SOURCE, LinkConditions, LinkRule, link_conditions, named_sources
from chaos.netem.packet_filter import Program, attach_filter, loss_program, loss_program_by_source
from chaos.netem.shaped_connection import ShapedConnection, ShapingLink
from chaos.netem.shaped_flow import BandwidthCap

_BACKLOG: Final = 1024


class NetemLink(ShapingLink):
    """A local port that relays to an address. ``accepted`` counts connections by source address."""

    def __init__(self, name: str, to: tuple[str, int], rng: random.Random) -> None:
        self.name, self.to, self.rng = name, to, rng
        self.port = 0
        self.accepted: dict[str, int] = {}
        self._rules: Mapping[str, LinkRule] = MappingProxyType({})
        self._caps: dict[tuple[str, str], BandwidthCap] = {}
        self._connections: set[ShapedConnection] = set()
        self._listener: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._program: Program = loss_program(0.0)

    @property
    def open(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    async def listen(self, at: socket.socket | None = None) -> None:
        """Listen on this socket, or on a free loopback port."""
        self._listener = at or socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._server = await asyncio.get_running_loop().create_server(
            lambda: ShapedConnection(self).protocol, sock=self._listener, backlog=_BACKLOG
        )

    def close(self) -> None:
        """Stop listening and reset open connections."""
        if self._server is not None:
            self._server.close()
        for one in tuple(self._connections):
            one.reset()

    def set_rules(self, rules: Mapping[str, LinkRule]) -> None:
        """Set the rules; on return they apply to open and new connections."""
        before, self._rules = self._rules, {name: rule for name, rule in rules.items() if self.name in rule.links}
        self._caps = {
            (rule, way): cap
            for (rule, way), cap in self._caps.items()
            if before.get(rule) == self._rules.get(rule)
        }
        shares = {one: self.conditions(one).loss_share for one in named_sources(self._rules.values(), self.name)}
        program = loss_program_by_source(shares, self.conditions(ANY_SOURCE).loss_share)
        if self._listener is not None and program != self._program:
            self._program = program
            attach_filter(self._listener, program)
        for connection in tuple(self._connections):
            connection.apply_rules()

    def conditions(self, source: str) -> LinkConditions:
        """Current conditions for a peer at this address."""
        return link_conditions(self._rules, self.name, source)

    def cap(self, rule: str, way: str) -> BandwidthCap:
        """The bandwidth limit of a rule, for one direction."""
        if (rule, way) not in self._caps:
            bytes_per_s = self._rules[rule].bytes_per_s
            assert bytes_per_s is not None  # noqa: S101 -- weather() names no other rules
            self._caps[rule, way] = BandwidthCap(bytes_per_s)
        return self._caps[rule, way]

    def began(self, connection: ShapedConnection) -> None:
        """Register a peer's connection."""
        self._connections.add(connection)
        self.accepted[connection.source] = self.accepted.get(connection.source, 0) + 1

    def ended(self, connection: ShapedConnection) -> None:
        """Forget a connection whose sockets are both closed."""
        self._connections.discard(connection)
