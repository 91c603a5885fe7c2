"""Ends streams before the process runs out of memory.

gRPC buffers a message until it is complete, and reports nothing of what it holds: a stream may hold as much as
the largest message, for as long as its peer likes. So what counts is the memory of the process. Close to its
limit, and already below if it grows fast, streams end: first those without a complete message, then those whose
peers prove no identity, of the host with the most streams, the newest first. Proxies reconnect.
"""

import os
import resource
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

HIGH: Final = 0.85
"""Share of the memory limit from which streams end."""

GROWING: Final = 0.5
"""The same while memory grows by ``FAST`` of the limit within ``FAST_S``."""

FAST: Final = 0.15
FAST_S: Final = 10.0

AT_ONCE: Final = 64
"""Streams that end at once."""

PAUSE_S: Final = 1.0
"""Pause until more streams end: gRPC needs a moment to release the memory of those that did."""

_CGROUP: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))

_log = structlog.get_logger()


class _Stream:
    __slots__ = ("began", "end", "host", "proven")

    def __init__(self, host: str, proven: bool, end: Callable[[], object]) -> None:
        self.began = False
        self.host = host
        self.proven = proven
        self.end = end


class MemoryGuard:
    """Open streams, and the memory of the process. ``on_shed`` gets the number of streams ended at once."""

    def __init__(
        self,
        *,
        memory_bytes: Callable[[], int] | None = None,
        limit_bytes: int | None = None,
        on_shed: Callable[[int], object] = lambda _: None,
        release: Callable[[], object] = lambda: None,
    ) -> None:
        self._memory_bytes = memory_bytes or own_memory_bytes
        self._limit_bytes = memory_limit_bytes() if limit_bytes is None else limit_bytes
        self._on_shed = on_shed
        self._release = release
        self._streams: dict[_Stream, None] = {}
        self._sizes: deque[tuple[float, int]] = deque()
        self._shedding = False
        self._next_at_s = float("-inf")

    def enter(self, host: str, *, proven: bool, end: Callable[[], object]) -> object:
        """Count a stream; ``end`` ends it. Returns its ticket."""
        stream = _Stream(host, proven, end)
        self._streams[stream] = None
        return stream

    def began(self, ticket: object) -> None:
        """The stream has sent a complete message."""
        assert isinstance(ticket, _Stream)  # noqa: S101 -- from enter()
        ticket.began = True

    def leave(self, ticket: object) -> None:
        """Stop counting a stream."""
        assert isinstance(ticket, _Stream)  # noqa: S101 -- from enter()
        self._streams.pop(ticket, None)

    def check(self, now_s: float) -> None:
        """End streams if memory is short; call about twice a second."""
        if now_s < self._next_at_s:
            return
        if self._shedding:
            self._release()
        size = self._memory_bytes()
        self._sizes.append((now_s, size))
        while self._sizes[0][0] < now_s - FAST_S:
            self._sizes.popleft()
        grown = size - min(before for _, before in self._sizes)
        limit = self._limit_bytes
        short = size > HIGH * limit or (size > GROWING * limit and grown > FAST * limit)
        if not short:
            if self._shedding:
                self._shedding = False
                _log.info("peers.memory_well", memory_bytes=size)
            return
        if not self._shedding:
            self._shedding = True
            _log.error("peers.memory_short", memory_bytes=size, limit_bytes=limit, grown_bytes=grown)
        self._next_at_s = now_s + PAUSE_S
        self._sizes.clear()  # what grew before is answered
        doomed = self._suspects()[:AT_ONCE]
        for stream in doomed:
            del self._streams[stream]
            stream.end()
        if doomed:
            self._on_shed(len(doomed))

    def _suspects(self) -> list[_Stream]:
        """Streams of the most suspicious kind, in the order in which they end."""
        counts: dict[str, int] = {}
        for stream in self._streams:
            counts[stream.host] = counts.get(stream.host, 0) + 1
        kind = min(((one.began, one.proven) for one in self._streams), default=None)
        newest = [one for one in reversed(self._streams) if (one.began, one.proven) == kind]
        return sorted(newest, key=lambda one: -counts[one.host])


def own_memory_bytes() -> int:
    """Resident memory of this process; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * resource.getpagesize()


def memory_limit_bytes() -> int:
    """Memory that this process may use: of its cgroup, its address space, or the machine; the smallest."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP:
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # no such cgroup, or "max"
            continue
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    return min(one for one in limits if one > 0)
