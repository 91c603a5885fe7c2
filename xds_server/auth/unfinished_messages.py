"""Bytes of messages that peers have begun and not finished, by connection.

gRPC buffers a message until it is complete, and reports nothing of what it holds. The kernel counts the bytes that
a connection received. What the server has not read of them as messages, and HTTP/2 and TLS do not need, is
unfinished.
"""

import ipaddress
import os
import socket
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

MAX_BYTES_OF_HOST: Final = 64 * 1024 * 1024
"""Limit per host: first messages of 1 000 Envoys at once, 61 KB each."""

MAX_BYTES: Final = 256 * 1024 * 1024
"""Limit of all hosts: a quarter of the memory limit of the Helm chart."""

_REDUCE_TO: Final = 0.5
"""Share of a limit that is left once it was exceeded."""

_STREAM_BYTES: Final = 1024
"""Headers of a stream, at most."""

_MESSAGE_BYTES: Final = 64
"""Overhead of a message: its prefix, an HTTP/2 frame, a TLS record."""

_OVERHEAD_SHARE: Final = 1 / 64
"""Overhead of long messages, and of what the peer returns for received bytes (window updates)."""

_BYTES_PER_S: Final = 32
"""Keepalive pings and their answers."""

_TCP_INFO_BYTES: Final = 136
_TCP_INFO_ACKED_RECEIVED: Final = struct.Struct("=QQ")
_TCP_INFO_OFFSET: Final = 120
"""Of ``tcpi_bytes_acked`` and ``tcpi_bytes_received``. Source: linux/tcp.h."""


class TcpBytes(NamedTuple):
    """Bytes of a connection so far, as counted by the kernel."""

    received: int
    sent: int


class UnfinishedConnection(NamedTuple):
    """A connection whose streams must end."""

    connection: str
    host: str
    unfinished_bytes: int


class _Connection:
    __slots__ = ("host", "known_bytes", "since_s", "streams")

    def __init__(self, host: str) -> None:
        self.host = host
        self.known_bytes = 0.0
        self.since_s: float | None = None
        self.streams = 0


class UnfinishedMessages:
    """Connections, named like gRPC peers (``ipv4:10.0.0.1:4711``), and what was read of each."""

    def __init__(self, max_bytes_of_host: int = MAX_BYTES_OF_HOST, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes_of_host = max_bytes_of_host
        self._max_bytes = max_bytes
        self._connections: dict[str, _Connection] = {}

    def open(self, connection: str, host: str) -> None:
        """Count a stream."""
        known = self._connections.setdefault(connection, _Connection(host))
        known.streams += 1
        known.known_bytes += _STREAM_BYTES

    def read(self, connection: str, size: int) -> None:
        """Count a complete message."""
        self._connections[connection].known_bytes += size * (1 + _OVERHEAD_SHARE) + _MESSAGE_BYTES

    def close(self, connection: str) -> None:
        """Stop counting a stream."""
        self._connections[connection].streams -= 1

    def excess(self, sockets: Mapping[str, TcpBytes], now_s: float) -> list[UnfinishedConnection]:
        """Connections whose streams must end, those with most unfinished bytes first. Counted as finished then."""
        unfinished: dict[str, int] = {}
        by_host: dict[str, int] = {}
        for name, known in list(self._connections.items()):
            counted = sockets.get(name)
            if counted is None:
                if not known.streams:
                    del self._connections[name]
                continue
            size = self._unfinished_bytes(known, counted, now_s)
            if size > 0:
                unfinished[name] = size
                by_host[known.host] = by_host.get(known.host, 0) + size
        total = sum(by_host.values())
        hosts = {host for host, size in by_host.items() if size > self._max_bytes_of_host}
        all_exceed = total > self._max_bytes
        found = []
        for name in sorted(unfinished, key=unfinished.__getitem__, reverse=True):
            known, size = self._connections[name], unfinished[name]
            host_exceeds = known.host in hosts and by_host[known.host] > self._max_bytes_of_host * _REDUCE_TO
            if host_exceeds or (all_exceed and total > self._max_bytes * _REDUCE_TO):
                by_host[known.host] -= size
                total -= size
                known.known_bytes += size
                found.append(UnfinishedConnection(name, known.host, size))
        return found

    def _unfinished_bytes(self, known: _Connection, counted: TcpBytes, now_s: float) -> int:
        if known.since_s is None:
            known.since_s = now_s
        overhead = counted.sent * _OVERHEAD_SHARE + (now_s - known.since_s) * _BYTES_PER_S
        return int(counted.received - known.known_bytes - overhead)


def tcp_bytes() -> Mapping[str, TcpBytes]:
    """Bytes of each TCP connection of this process; empty where the system does not say. 10 us each."""
    found: dict[str, TcpBytes] = {}
    try:
        descriptors = [one.name for one in os.scandir("/proc/self/fd")]
    except OSError:
        return found
    for descriptor in descriptors:
        try:
            borrowed = socket.socket(fileno=int(descriptor))
        except OSError:  # no socket, or closed meanwhile
            continue
        try:
            name = _peer_name(borrowed)
            info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES) if name else b""
        except OSError:  # not connected, or not TCP
            continue
        finally:
            borrowed.detach()
        if len(info) == _TCP_INFO_BYTES:
            sent, received = _TCP_INFO_ACKED_RECEIVED.unpack_from(info, _TCP_INFO_OFFSET)
            # A peer may use one port for connections to several ports of this process.
            found[name] = max(TcpBytes(received, sent), found.get(name, TcpBytes(0, 0)))
    return found


def _peer_name(borrowed: socket.socket) -> str:
    """The peer as gRPC names it; empty unless it is an IP address."""
    if borrowed.family == socket.AF_INET:
        host, port = borrowed.getpeername()
        return f"ipv4:{host}:{port}"
    if borrowed.family == socket.AF_INET6:
        host, port = borrowed.getpeername()[:2]
        mapped = ipaddress.IPv6Address(host.partition("%")[0]).ipv4_mapped
        return f"ipv6:[{host}]:{port}" if mapped is None else f"ipv4:{mapped}:{port}"
    return ""
