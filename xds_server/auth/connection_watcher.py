"""Resets connections whose peers take too much of what gRPC does not limit, in a thread of its own.

What gRPC buffers grows while the event loop is busy or waits for a core: a check by the loop comes too late, and
ending streams takes it turns. The thread needs neither, and a reset is immediate: the kernel drops what it has,
and gRPC frees its buffers. The loop then counts and reports what was ended.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Final, NamedTuple

from xds_server.auth.connection_limit import host_of
from xds_server.auth.memory_guard import MemoryGuard, own_memory_bytes
from xds_server.auth.tcp_connections import TcpConnection, open_descriptors, reset, tcp_connections
from xds_server.auth.unfinished_messages import UnfinishedConnection, UnfinishedMessages

CHECK_EACH_S: Final = 0.05
"""A host can send some hundred MB a second."""

COUNT_EACH_S: Final = 10.0
COUNT_EACH_BYTES: Final = 16 * 1024 * 1024
"""Unfinished messages are counted this often, and whenever memory has grown by this much."""

COUNT_PAUSE: Final = 10.0
"""Pause until the next count, in times of the last one's CPU time: 10 ms with 1 000 connections."""

LISTED_EACH_S: Final = 1.0
LISTED_PAUSE: Final = 50.0
"""Connections are counted this often while there are more than one host may have, with this pause."""

STOOD_STILL_S: Final = 1.0
"""Time without a check by the event loop after which the server counts as standing still."""


class CrowdedConnection(NamedTuple):
    """A connection beyond the limit of its host."""

    connection: str
    host: str
    most: int


class Kernel(NamedTuple):
    """What the system knows of the port's connections and of the process."""

    connections: Callable[[int], Mapping[str, TcpConnection]] = tcp_connections
    reset: Callable[[int, int, str], object] = reset
    memory_bytes: Callable[[], int] = own_memory_bytes
    descriptors: Callable[[], Sequence[int]] = open_descriptors


_KERNEL: Final = Kernel()


class ConnectionWatcher:
    """Watches the connections of ``port``. ``on_crowded`` is called in the event loop, as is ``MemoryGuard``."""

    def __init__(
        self,
        memory: MemoryGuard,
        port: int,
        *,
        most_of_host: int,
        on_crowded: Callable[[Sequence[CrowdedConnection]], object],
        kernel: Kernel = _KERNEL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._memory = memory
        self._unfinished: UnfinishedMessages = memory.unfinished
        self._port = port
        self._most_of_host = most_of_host
        self._on_crowded = on_crowded
        self._kernel = kernel
        self._clock = clock
        self._counted_bytes = 0
        self._counted_at_s = self._count_from_s = self._list_from_s = float("-inf")
        self._seen: dict[str, None] = {}

    async def run(self) -> None:
        """Watch until cancelled."""
        loop, stop = asyncio.get_running_loop(), Event()

        def watch() -> None:
            while not stop.wait(CHECK_EACH_S):
                self.check(loop.call_soon_threadsafe)

        with ThreadPoolExecutor(1, "connections") as executor:
            try:
                await loop.run_in_executor(executor, watch)
            finally:
                stop.set()

    def check(self, post: Callable[..., object]) -> None:
        """Check once. ``post`` calls something in the event loop, before gRPC tells it that connections ended."""
        now_s, size = self._clock(), self._kernel.memory_bytes()
        self._counted_bytes = min(size, self._counted_bytes)
        due = size >= self._counted_bytes + COUNT_EACH_BYTES or now_s >= self._counted_at_s + COUNT_EACH_S
        if due and now_s >= self._count_from_s:
            self._counted_bytes, self._counted_at_s = size, now_s
            self._count_from_s = now_s + COUNT_PAUSE * self._end_unfinished(now_s, post)
        if now_s >= self._list_from_s:
            self._list_from_s = now_s + max(LISTED_EACH_S, LISTED_PAUSE * self._end_crowded(post))

    def _end_unfinished(self, now_s: float, post: Callable[..., object]) -> float:
        """End connections with too many unfinished bytes, or for too long; returns the CPU time."""
        began_s = time.thread_time()
        sockets = self._kernel.connections(self._port)
        is_reading = now_s - self._memory.checked_at_s < STOOD_STILL_S
        excess: list[UnfinishedConnection] = self._unfinished.excess(sockets, now_s, is_reading=is_reading)
        if excess:
            post(self._memory.end_connections, excess, now_s)
        for one in excess:
            self._kernel.reset(sockets[one.connection].descriptor, self._port, one.connection)
        return time.thread_time() - began_s

    def _end_crowded(self, post: Callable[..., object]) -> float:
        """End connections beyond the limit of their host, the newest of those without streams first; returns the
        CPU time."""
        began_s = time.thread_time()
        if len(self._kernel.descriptors()) <= self._most_of_host:
            self._seen.clear()
            return time.thread_time() - began_s
        sockets = self._kernel.connections(self._port)
        self._seen = {name: None for name in (*self._seen, *sockets) if name in sockets}
        known = self._unfinished.hosts()
        by_host: dict[str, list[tuple[bool, int, str]]] = {}
        for number, name in enumerate(self._seen):
            host, streams = known.get(name, ("", 0))
            by_host.setdefault(host or host_of(name, ()), []).append((not streams, number, name))
        crowded = [
            CrowdedConnection(name, host, self._most_of_host)
            for host, found in by_host.items()
            for _, _, name in sorted(found)[self._most_of_host :]
        ]
        if crowded:
            post(self._on_crowded, crowded)
        for one in crowded:
            del self._seen[one.connection]
            self._kernel.reset(sockets[one.connection].descriptor, self._port, one.connection)
        return time.thread_time() - began_s
