"""How many may be here at once, and how many of them from one host: nobody takes the places of all others.

A host is an address, together with what its certificate proves: proxies behind one gateway that prove to be
somebody each are hosts of their own, and one identity that many machines share is as many hosts. Of IPv6 it is the
/64, within which a machine may call itself what it likes.
"""

from urllib.parse import unquote

import structlog

from engine.address import source_network

_log = structlog.get_logger()


class ConnectionLimiter:
    """Counts who is here, by host. ``what`` is what there are so many of, for people."""

    def __init__(self, what: str, most: int, most_of_host: int) -> None:
        self._what = what
        self._most = most
        self._most_of_host = most_of_host
        self._all = 0
        self._by_host: dict[str, int] = {}
        self._told: set[str] = set()

    def full(self) -> str:
        """Why nobody is let in; empty where there is room."""
        return f"more than {self._most} {self._what}" if self._all >= self._most else ""

    def full_for(self, host: str) -> str:
        """Why nobody of this host is let in; empty where there is room."""
        if self._by_host.get(host, 0) < self._most_of_host:
            return ""
        if host not in self._told:
            # Once, until there is room again: who is refused comes back each second.
            self._told.add(host)
            _log.warning("peers.host_full", host=host, what=self._what, most=self._most_of_host)
        return f"more than {self._most_of_host} {self._what} of one host"

    def acquire(self, host: str) -> None:
        """Count one more."""
        self._all += 1
        self._by_host[host] = self._by_host.get(host, 0) + 1

    def release(self, host: str) -> None:
        """Count one less, of those that entered."""
        self._all -= 1
        left = self._by_host[host] - 1
        if left:
            self._by_host[host] = left
        else:
            del self._by_host[host]
        self._told.discard(host)


def host_of(peer: str, identities: tuple[str, ...]) -> str:
    """The host of a gRPC peer (``ipv4:10.0.0.1:4711``), with what it proved."""
    kind, _, rest = unquote(peer).partition(":")
    at = peer
    if kind in ("ipv4", "ipv6"):
        at = source_network(rest.rpartition(":")[0].strip("[]"))
    return " ".join((at, *identities))
