"""Connection limits in total and per host, so that one host cannot use up all connections.

A host is an address plus the identity in its certificate: proxies behind one gateway with own identities count
separately, and so do machines that share one identity. IPv6 counts by /64, within which a machine may choose its
address freely.
"""

import resource
from typing import Final
from urllib.parse import unquote

import structlog

from engine.address import source_network

_MOST_INT32: Final = 2**31 - 1
_OTHERS: Final = 1024
"""Descriptors reserved for admin port, agents and files, if there are plenty."""

_log = structlog.get_logger()


class ConnectionLimiter:
    """Counts connections by host. ``what``: plural noun for messages."""

    def __init__(self, what: str, most: int, most_of_host: int) -> None:
        self._what = what
        self._most = most
        self._most_of_host = most_of_host
        self._all = 0
        self._by_host: dict[str, int] = {}
        self._told: set[str] = set()

    def full(self) -> str:
        """Reason why no connection is accepted; empty if there is room."""
        return f"over the limit of {self._most} {self._what}" if self._all >= self._most else ""

    def full_for(self, host: str) -> str:
        """Reason why no connection of this host is accepted; empty if there is room."""
        if self._by_host.get(host, 0) < self._most_of_host:
            return ""
        if host not in self._told:
            # Log once until there is room again: refused peers retry every second.
            self._told.add(host)
            _log.warning("peers.host_full", host=host, what=self._what, most=self._most_of_host)
        return f"over the limit of {self._most_of_host} {self._what} per host"

    def acquire(self, host: str) -> None:
        """Count a connection."""
        self._all += 1
        self._by_host[host] = self._by_host.get(host, 0) + 1

    def release(self, host: str) -> None:
        """Stop counting a connection."""
        self._all -= 1
        left = self._by_host[host] - 1
        if left:
            self._by_host[host] = left
        else:
            del self._by_host[host]
        self._told.discard(host)


def host_of(peer: str, identities: tuple[str, ...]) -> str:
    """Host of a gRPC peer (``ipv4:10.0.0.1:4711``) with its proven identities."""
    kind, _, rest = unquote(peer).partition(":")
    at = peer
    if kind in ("ipv4", "ipv6"):
        at = source_network(rest.rpartition(":")[0].strip("[]"))
    return " ".join((at, *identities))


def most_connections(descriptors: int) -> int:
    """Connection limit for this many descriptors: half of few, all but some of many."""
    if descriptors == resource.RLIM_INFINITY:
        return _MOST_INT32
    return min(_MOST_INT32, max(descriptors // 2, descriptors - _OTHERS))
