"""Ends streams before the process runs out of memory.

gRPC buffers a message until it is complete, and reports nothing of what it holds: a stream may hold as much as
the largest message, for as long as its peer likes. Two limits bound that. The first is for the unfinished messages
of a host, whatever the memory limit: ``ConnectionWatcher`` resets its connections with most of them.

The second is for the memory of the process. Close to its limit, and already below if it grows fast, streams end:
first those without a complete message, then those whose peers prove no identity, of the host with the most
streams, the newest first. Proxies reconnect.
"""

import os
import resource
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

from engine.bounded_dict import BoundedDict
from xds_server.auth.reached_limits import PeerLimit, ReachedLimits
from xds_server.auth.unfinished_messages import UnfinishedConnection, UnfinishedMessages
from xds_server.xds import StreamErrorKind

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

RELEASE_AFTER_S: Final = 0.3
"""Pause until the memory of unfinished messages is released; gRPC frees it meanwhile."""

RELEASE_EACH_S: Final = 10.0
RELEASE_EACH_BYTES: Final = 16 * 1024 * 1024
"""Free memory also returns to the system whenever memory has grown by this much since the last time, at most this
often: large messages leave it between small objects, and on a busy machine gRPC frees them for seconds. Takes 1 ms
for each MB of small free parts.
"""

_LOG_EACH_S: Final = 60.0
_MOST_LOGGED: Final = 1024

_CGROUP: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))

_MEMORY: Final = StreamErrorKind.MEMORY

_log = structlog.get_logger()


class _Stream:
    __slots__ = ("began", "connection", "end", "host", "proven")

    def __init__(self, host: str, connection: str, proven: bool, end: Callable[[StreamErrorKind], object]) -> None:
        self.began = False
        self.connection = connection
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
        unfinished: UnfinishedMessages | None = None,
        on_shed: Callable[[int], object] = lambda _: None,
        release: Callable[[], object] = lambda: None,
        reached: ReachedLimits | None = None,
    ) -> None:
        self._memory_bytes = memory_bytes or own_memory_bytes
        self._limit_bytes = memory_limit_bytes() if limit_bytes is None else limit_bytes
        self.unfinished = unfinished or UnfinishedMessages()
        self.checked_at_s = float("-inf")
        """When the event loop last checked."""
        self._on_shed = on_shed
        self._release = release
        self._reached = reached or ReachedLimits()
        self._streams: dict[_Stream, None] = {}
        self._sizes: deque[tuple[float, int]] = deque()
        self._shedding = False
        self._next_at_s = float("-inf")
        self._release_at_s: float | None = None
        self._release_from_s = float("-inf")
        self._released_bytes = 0
        self._logged_at_s: BoundedDict[str, float] = BoundedDict(_MOST_LOGGED)

    def enter(
        self, host: str, *, connection: str = "", proven: bool, end: Callable[[StreamErrorKind], object]
    ) -> object:
        """Count a stream; ``end`` ends it for this reason. Returns its ticket.

        ``connection``: its gRPC peer, if the unfinished messages of its connection are counted here.
        """
        stream = _Stream(host, connection, proven, end)
        self._streams[stream] = None
        if connection:
            self.unfinished.open(connection, host)
        return stream

    def read(self, ticket: object, size: int) -> None:
        """The stream has sent a complete message."""
        assert isinstance(ticket, _Stream)  # noqa: S101 -- from enter()
        ticket.began = True
        if ticket.connection:
            self.unfinished.read(ticket.connection, size)

    def leave(self, ticket: object) -> None:
        """Stop counting a stream; call once."""
        assert isinstance(ticket, _Stream)  # noqa: S101 -- from enter()
        self._streams.pop(ticket, None)
        if ticket.connection:
            self.unfinished.close(ticket.connection)

    def end_unfinished(self, ticket: object, connection: str, unfinished_bytes: int, now_s: float) -> None:
        """End a stream whose transport counts its unfinished messages, and found too many."""
        assert isinstance(ticket, _Stream)  # noqa: S101 -- from enter()
        if ticket in self._streams:
            self._report(UnfinishedConnection(connection, ticket.host, unfinished_bytes, _MEMORY), now_s)
            self._end([ticket], _MEMORY)

    def end_connections(self, excess: Sequence[UnfinishedConnection], now_s: float) -> None:
        """End the streams of connections that are being reset for their unfinished messages."""
        self._release_at_s = now_s + RELEASE_AFTER_S
        flaws = {}
        for one in excess:
            self._report(one, now_s)
            flaws[one.connection] = one.flaw
        for flaw in sorted(set(flaws.values())):
            self._end([one for one in self._streams if flaws.get(one.connection) is flaw], flaw)

    def check(self, now_s: float) -> None:
        """End streams if memory is short; call often: 20 us."""
        self.checked_at_s = now_s
        size = self._release_free(self._memory_bytes(), now_s)
        if now_s < self._next_at_s:
            return
        if self._shedding:
            size = self._release_now(now_s)
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
            self._reached.add(PeerLimit.MEMORY, stream.host)
        self._end(doomed, _MEMORY)

    def _report(self, one: UnfinishedConnection, now_s: float) -> None:
        self._reached.add(PeerLimit.MESSAGES, one.host)
        if now_s - self._logged_at_s.get(one.host, float("-inf")) >= _LOG_EACH_S:
            self._logged_at_s[one.host] = now_s
            _log.warning(
                "peers.unfinished",
                host=one.host,
                connection=one.connection,
                unfinished_bytes=one.unfinished_bytes,
                reason="too long" if one.flaw is StreamErrorKind.SILENT else "too many bytes",
            )

    def _release_free(self, size: int, now_s: float) -> int:
        """Return free memory to the system, if it is due; returns what this process holds then."""
        self._released_bytes = min(size, self._released_bytes)
        asked = self._release_at_s is not None and now_s >= self._release_at_s
        grown = size >= self._released_bytes + RELEASE_EACH_BYTES and now_s >= self._release_from_s
        return self._release_now(now_s) if asked or grown else size

    def _release_now(self, now_s: float) -> int:
        self._release()
        self._release_at_s = None
        self._release_from_s = now_s + RELEASE_EACH_S
        self._released_bytes = self._memory_bytes()
        return self._released_bytes

    def _end(self, doomed: list[_Stream], flaw: StreamErrorKind) -> None:
        for stream in doomed:
            del self._streams[stream]
            stream.end(flaw)
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
