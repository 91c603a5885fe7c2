"""Limits of the streams of one service, and what they share."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from xds_server.auth.log_budget import LogBudget
from xds_server.auth.loop_time import LoopTime
from xds_server.auth.memory_guard import MemoryGuard
from xds_server.auth.peer_budget import DISCOVERY_CPU, CpuBudget, CpuLimits, HostTime
from xds_server.auth.reached_limits import PeerLimit, ReachedLimits

MAX_STREAMS: Final = 16_384
"""Limit of streams of a service: ten thousand proxies, plus reconnects before the old streams end."""

MAX_STREAMS_OF_HOST: Final = 4_096
"""Limit per host: all sidecars behind one gateway; a quarter of the total."""

MAX_CONNECTIONS_OF_HOST: Final = 4_096
"""The same for connections, with streams or without."""

FIRST_MESSAGE_S: Final = 30.0
"""Time to the first message; proxies send it at once, and an idle stream takes up a place."""

MAX_FIRST_BYTES: Final = 512 * 1024
"""Limit of the first message: Envoy's has 61 KB, with its node and extensions."""

MESSAGE_S: Final = 0.0002
"""Charge of a message beyond the time to process it: reading an empty one costs gRPC about this much."""

STREAM_S: Final = 0.001
"""Charge of a stream: opening and ending an empty one costs about this much."""

LARGE_FIRST_BYTES: Final = 64 * 1024
"""First messages above this wait for their host's time, one after another; an Envoy's has 61 KB."""

LARGE_FIRST_S_PER_BYTE: Final = 20e-9
"""CPU time of the worst: 512 KiB of names take 9 ms."""

MAX_WAITING_BYTES_OF_HOST: Final = 16 * 1024 * 1024
"""Limit of large first messages of a host that wait; streams of further ones end."""

_log = structlog.get_logger()


class _Openings:
    """Streams of one host that wait for their turn, by connection, and bytes of first messages among them."""

    __slots__ = ("admitting", "by_connection", "waiting_bytes")

    def __init__(self) -> None:
        self.by_connection: dict[str, deque[asyncio.Future[None]]] = {}
        self.waiting_bytes = 0
        self.admitting: asyncio.Task[None] | None = None

    def next(self) -> asyncio.Future[None] | None:
        """Who is next; connections take turns."""
        while self.by_connection:
            connection = next(iter(self.by_connection))
            waiting = self.by_connection.pop(connection)
            turn = waiting.popleft()
            if waiting:
                self.by_connection[connection] = waiting
            if not turn.done():
                return turn
        return None


class PeerPacer:
    """Reads no more from peers that have used up their CPU time; ``on_wait`` is called for each wait.

    ``hosts`` counts their time of all services.
    """

    def __init__(
        self,
        limits: CpuLimits,
        signal: str = "",
        on_wait: Callable[[], object] = lambda: None,
        reached: ReachedLimits | None = None,
        hosts: HostTime | None = None,
    ) -> None:
        self._budget = CpuBudget(limits, hosts)
        self._loop_time = LoopTime()
        self._openings: dict[str, _Openings] = {}
        self._signal = signal
        self._on_wait = on_wait
        self._reached = reached or ReachedLimits()
        self._lines = LogBudget()

    def spend(self, host: str, node: str, cpu_s: float, now_s: float) -> None:
        """Charge one message, and the CPU time to process it."""
        self._budget.spend(host, node, cpu_s + MESSAGE_S, now_s, factor=self._loop_time.factor())

    def opens_at_once(self, host: str) -> bool:
        """Charge a new stream if its host may open it now; if False, await ``open``."""
        return self._charged_at_once(host, STREAM_S)

    def first_at_once(self, host: str, size: int) -> bool:
        """Charge a first message if it may be processed now; if False, await ``admit_first``."""
        if not LARGE_FIRST_BYTES < size <= MAX_FIRST_BYTES:
            return True
        return self._charged_at_once(host, LARGE_FIRST_S_PER_BYTE * size)

    def must_wait(self, host: str, node: str) -> bool:
        """Whether the next message of this node must wait: await ``wait``."""
        return self._budget.must_wait(host, node, time.monotonic())

    async def open(self, host: str, connection: str) -> None:
        """Charge a new stream, once its host may open it."""
        await self._turn(host, connection, STREAM_S, 0)

    async def admit_first(self, host: str, connection: str, size: int) -> bool:
        """Wait until a first message may be processed; False: too many large ones of this host wait."""
        if not LARGE_FIRST_BYTES < size <= MAX_FIRST_BYTES:
            return True  # small, or about to be refused
        openings = self._openings.get(host)
        if openings is not None and openings.waiting_bytes + size > MAX_WAITING_BYTES_OF_HOST:
            self._reached.add(PeerLimit.MESSAGES, host)
            return False
        await self._turn(host, connection, LARGE_FIRST_S_PER_BYTE * size, size)
        return True

    async def _turn(self, host: str, connection: str, cpu_s: float, size: int) -> None:
        """Charge this time of a host, in turn with its other connections."""
        if self._charged_at_once(host, cpu_s):
            return
        openings = self._openings.get(host)
        if openings is None:
            openings = self._openings[host] = _Openings()
            openings.admitting = asyncio.create_task(self._admit(host, openings))
        self._on_wait()
        self._reached.add(PeerLimit.CPU, host)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        openings.by_connection.setdefault(connection, deque()).append(turn)
        openings.waiting_bytes += size
        try:
            await turn
        finally:
            openings.waiting_bytes -= size
        self._charge_opening(host, cpu_s)

    def _charged_at_once(self, host: str, cpu_s: float) -> bool:
        """Charge this time of a host, unless it has none left or other streams of it wait."""
        if host in self._openings or self._budget.opening_wait_s(host, time.monotonic()) > 0:
            return False
        self._charge_opening(host, cpu_s)
        return True

    def _charge_opening(self, host: str, cpu_s: float) -> None:
        self._budget.spend_opening(host, cpu_s, time.monotonic(), factor=self._loop_time.factor())

    async def _admit(self, host: str, openings: _Openings) -> None:
        """Let the streams of a host open as its time allows."""
        try:
            while (turn := openings.next()) is not None:
                while (wait_s := self._budget.opening_wait_s(host, time.monotonic())) > 0:
                    await asyncio.sleep(wait_s)
                if not turn.done():
                    turn.set_result(None)
                    await asyncio.sleep(0)  # until it has been charged
        finally:
            del self._openings[host]
            while (turn := openings.next()) is not None:
                turn.cancel()

    async def wait(self, host: str, node: str) -> None:
        """Wait until the next message of this node may be read."""
        await self._wait_for_budget(host, node)
        # Nothing to report: it has time left, but not at once.
        while (pause_s := self._budget.pause_s(host, node, time.monotonic())) > 0:
            await asyncio.sleep(pause_s)

    async def _wait_for_budget(self, host: str, node: str) -> None:
        wait_s = self._budget.wait_s(host, node, time.monotonic())
        if wait_s <= 0:
            return
        self._on_wait()
        if self._lines.take(host, node):
            _log.warning("peers.paced", signal=self._signal, node=node, host=host)
        while wait_s > 0:
            self._reached.add(PeerLimit.CPU, host, node)
            await asyncio.sleep(wait_s)
            wait_s = self._budget.wait_s(host, node, time.monotonic())


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """Limits of concurrent streams, in total and per host, of a host's connections, of the time to the first
    message, of CPU and memory.

    ``reached``: the peers that reach them.
    """

    streams: int = MAX_STREAMS
    streams_per_host: int = MAX_STREAMS_OF_HOST
    connections_per_host: int = MAX_CONNECTIONS_OF_HOST
    first_message_s: float = FIRST_MESSAGE_S
    pacer: PeerPacer = field(default_factory=lambda: PeerPacer(DISCOVERY_CPU))
    memory: MemoryGuard = field(default_factory=MemoryGuard)
    reached: ReachedLimits = field(default_factory=ReachedLimits)
