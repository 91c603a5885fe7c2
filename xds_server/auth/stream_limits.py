"""Limits of the streams of one service, and what they share."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from xds_server.auth.memory_guard import MemoryGuard
from xds_server.auth.peer_budget import DISCOVERY_CPU, CpuBudget, CpuLimits

MAX_STREAMS: Final = 16_384
"""Limit of streams of a service: ten thousand proxies, plus reconnects before the old streams end."""

MAX_STREAMS_OF_HOST: Final = 4_096
"""Limit per host: all sidecars behind one gateway; a quarter of the total."""

FIRST_MESSAGE_S: Final = 30.0
"""Time to the first message; proxies send it at once, and an idle stream takes up a place."""

MAX_FIRST_BYTES: Final = 512 * 1024
"""Limit of the first message: Envoy's has 61 KB, with its node and extensions."""

MIN_MESSAGE_S: Final = 0.0002
"""Least charge of a message: reading an empty one costs gRPC about this much."""

MAX_OPENING_WAIT_S: Final = 1.0
"""Longest wait of a new stream whose node is unknown."""

_log = structlog.get_logger()


class PeerPacer:
    """Reads no more from peers that have used up their CPU time; ``on_wait`` is called for each wait."""

    def __init__(self, limits: CpuLimits, signal: str = "", on_wait: Callable[[], object] = lambda: None) -> None:
        self._budget = CpuBudget(limits)
        self._signal = signal
        self._on_wait = on_wait
        self._waiting: set[tuple[str, str]] = set()

    def spend(self, host: str, node: str, cpu_s: float, now_s: float) -> None:
        """Charge the CPU time of one message."""
        self._budget.spend(host, node, max(cpu_s, MIN_MESSAGE_S), now_s)

    async def open(self, host: str) -> None:
        """Wait, for a moment, until this host may open a stream."""
        wait_s = self._budget.wait_s(host, "", time.monotonic())
        if wait_s > 0:
            self._on_wait()
            await asyncio.sleep(min(wait_s, MAX_OPENING_WAIT_S))

    async def wait(self, host: str, node: str) -> None:
        """Wait until the next message of this node may be read."""
        wait_s = self._budget.wait_s(host, node, time.monotonic())
        if wait_s <= 0:
            return
        self._on_wait()
        key = (host, node)
        begins = key not in self._waiting
        if begins:
            # Once, not for each of its streams.
            self._waiting.add(key)
            _log.warning("peers.paced", signal=self._signal, node=node, host=host)
        try:
            while wait_s > 0:
                await asyncio.sleep(wait_s)
                wait_s = self._budget.wait_s(host, node, time.monotonic())
        finally:
            if begins:
                self._waiting.discard(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """Limits of concurrent streams, in total and per host, of the time to the first message, of CPU and memory."""

    streams: int = MAX_STREAMS
    streams_per_host: int = MAX_STREAMS_OF_HOST
    first_message_s: float = FIRST_MESSAGE_S
    pacer: PeerPacer = field(default_factory=lambda: PeerPacer(DISCOVERY_CPU))
    memory: MemoryGuard = field(default_factory=MemoryGuard)
