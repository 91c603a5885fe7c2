"""Bytes of messages that peers have begun and not finished, by connection.

gRPC buffers a message until it is complete, and reports nothing of what it holds. The kernel counts the bytes that
a connection received. What the server has not read of them as messages, and HTTP/2 and TLS do not need, is
unfinished.

Streams are counted by the event loop, connections by a thread of its own: see ``connection_watcher``.
"""

from collections.abc import Mapping
from threading import Lock
from typing import Final, NamedTuple

from xds_server.auth.connection_limit import host_of
from xds_server.auth.tcp_connections import TcpConnection
from xds_server.xds import StreamErrorKind

MAX_BYTES_OF_HOST: Final = 64 * 1024 * 1024
"""Limit per host: first messages of 1 000 Envoys at once, 61 KB each."""

MAX_BYTES: Final = 256 * 1024 * 1024
"""Limit of all hosts: a quarter of the memory limit of the Helm chart."""

MESSAGE_S: Final = 30.0
"""Time limit of begun messages."""

MIN_TIMED_BYTES: Final = 64 * 1024
"""Unfinished bytes of a connection from which on the time limit runs: below, they may be overhead."""

_REDUCE_TO: Final = 0.5
"""Share of a limit that is left once it was exceeded."""

_CONNECTION_BYTES: Final = 16 * 1024
"""Handshakes of TLS and HTTP/2 and headers of streams that wait for the event loop, at most."""

_STREAM_BYTES: Final = 1024
"""Headers of a stream, at most."""

_MESSAGE_BYTES: Final = 64
"""Overhead of a message: its prefix, an HTTP/2 frame, a TLS record."""

_OVERHEAD_SHARE: Final = 1 / 64
"""Overhead of long messages, and of what the peer returns for received bytes (window updates)."""

_BYTES_PER_S: Final = 32
"""Keepalive pings and their answers."""


class UnfinishedConnection(NamedTuple):
    """A connection that must end: with too many unfinished bytes (MEMORY), or for too long (SILENT)."""

    connection: str
    host: str
    unfinished_bytes: int
    flaw: StreamErrorKind


class _Begun(NamedTuple):
    """Unfinished bytes at some time, and what had been read by then."""

    at_s: float
    unfinished_bytes: int
    read_bytes: float


class _Connection:
    __slots__ = ("begun", "host", "known_bytes", "read_bytes", "since_s", "streams")

    def __init__(self, host: str) -> None:
        self.host = host
        self.known_bytes: float = _CONNECTION_BYTES
        self.read_bytes = 0.0
        self.since_s: float | None = None
        self.streams = 0
        self.begun: _Begun | None = None


class UnfinishedMessages:
    """Connections, named like gRPC peers, and what was read of each. Any thread may call."""

    def __init__(
        self,
        max_bytes_of_host: int = MAX_BYTES_OF_HOST,
        max_bytes: int = MAX_BYTES,
        message_s: float = MESSAGE_S,
    ) -> None:
        self._max_bytes_of_host = max_bytes_of_host
        self._max_bytes = max_bytes
        self._message_s = message_s
        self._connections: dict[str, _Connection] = {}
        self._lock = Lock()

    def open(self, connection: str, host: str) -> None:
        """Count a stream."""
        with self._lock:
            known = self._connections.setdefault(connection, _Connection(host))
            known.host = host  # with its identities, which the kernel does not know
            known.streams += 1
            known.known_bytes += _STREAM_BYTES

    def read(self, connection: str, size: int) -> None:
        """Count a complete message."""
        with self._lock:
            known = self._connections[connection]
            known.known_bytes += size * (1 + _OVERHEAD_SHARE) + _MESSAGE_BYTES
            known.read_bytes += size

    def close(self, connection: str) -> None:
        """Stop counting a stream."""
        with self._lock:
            self._connections[connection].streams -= 1

    def hosts(self) -> Mapping[str, tuple[str, int]]:
        """Host and number of open streams of each known connection."""
        with self._lock:
            return {name: (known.host, known.streams) for name, known in self._connections.items()}

    def excess(
        self, sockets: Mapping[str, TcpConnection], now_s: float, *, is_reading: bool = True
    ) -> list[UnfinishedConnection]:
        """Connections that must end, those with most unfinished bytes first. Counted as finished then.

        ``is_reading``: False if the server has stood still. What it has not read may be complete then, and no time
        limit runs.
        """
        with self._lock:
            return self._excess(sockets, now_s, is_reading)

    def _excess(
        self, sockets: Mapping[str, TcpConnection], now_s: float, is_reading: bool
    ) -> list[UnfinishedConnection]:
        gone = [name for name, known in self._connections.items() if not known.streams and name not in sockets]
        for name in gone:
            del self._connections[name]
        unfinished: dict[str, int] = {}
        by_host: dict[str, int] = {}
        late: set[str] = set()
        for name, counted in sockets.items():
            # Of a stream that waits for the event loop, gRPC already buffers the first window.
            known = self._connections.setdefault(name, _Connection(host_of(name, ())))
            size = self._unfinished_bytes(known, counted, now_s)
            if size > 0:
                unfinished[name] = size
                by_host[known.host] = by_host.get(known.host, 0) + size
            if self._is_late(known, size, now_s, is_reading):
                late.add(name)
        total = sum(by_host.values())
        hosts = {host for host, size in by_host.items() if size > self._max_bytes_of_host}
        all_exceed = total > self._max_bytes
        found = []
        for name in sorted(unfinished, key=unfinished.__getitem__, reverse=True):
            known, size = self._connections[name], unfinished[name]
            host_exceeds = known.host in hosts and by_host[known.host] > self._max_bytes_of_host * _REDUCE_TO
            exceeds = host_exceeds or (all_exceed and total > self._max_bytes * _REDUCE_TO)
            if exceeds or name in late:
                by_host[known.host] -= size
                total -= size
                known.known_bytes += size
                known.begun = None
                flaw = StreamErrorKind.MEMORY if exceeds else StreamErrorKind.SILENT
                found.append(UnfinishedConnection(name, known.host, size, flaw))
        return found

    def _unfinished_bytes(self, known: _Connection, counted: TcpConnection, now_s: float) -> int:
        if known.since_s is None:
            known.since_s = now_s
        overhead = counted.sent * _OVERHEAD_SHARE + (now_s - known.since_s) * _BYTES_PER_S
        return int(counted.received - known.known_bytes - overhead)

    def _is_late(self, known: _Connection, size: int, now_s: float, is_reading: bool) -> bool:
        """Whether fewer bytes became complete within the time limit than were unfinished at its beginning."""
        begun = known.begun
        if size < MIN_TIMED_BYTES or not is_reading:
            known.begun = None
        elif begun is None or known.read_bytes - begun.read_bytes >= begun.unfinished_bytes:
            known.begun = _Begun(now_s, size, known.read_bytes)
        else:
            return now_s - begun.at_s > self._message_s
        return False
