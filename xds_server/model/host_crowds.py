"""Node ids that take no part in divided limits, because one host has connected under very many.

Limits are divided by proxies, and a peer without certificate may connect under any number of node ids. So a host
without proven identity counts as at most as many proxies as there are other hosts, or ``MIN_NODES_OF_HOST``. Its
first node ids count; the others are served like a proxy without demand. The only host is not limited: it has no
others to take from.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Final, NamedTuple

MIN_NODES_OF_HOST: Final = 16
"""Envoys of one machine without certificates."""


class NodeHost(NamedTuple):
    """Host of a proxy, and whether it proved an identity."""

    host: str
    proven: bool


class HostCrowds:
    """The node ids of each host, in order of connection; only hosts with very many cost anything."""

    def __init__(self) -> None:
        self._host_of: dict[str, NodeHost] = {}
        self._nodes_of: dict[NodeHost, dict[str, None]] = {}
        self._large: set[NodeHost] = set()

    def put(self, node: str, host: NodeHost) -> None:
        """Record that this node is connected from this host."""
        if self._host_of.get(node) == host:
            return
        self.remove(node)
        self._host_of[node] = host
        nodes = self._nodes_of.setdefault(host, {})
        nodes[node] = None
        if not host.proven and len(nodes) > MIN_NODES_OF_HOST:
            self._large.add(host)

    def remove(self, node: str) -> None:
        """Record that this node is not connected."""
        host = self._host_of.pop(node, None)
        if host is None:
            return
        nodes = self._nodes_of[host]
        del nodes[node]
        if len(nodes) <= MIN_NODES_OF_HOST:
            self._large.discard(host)
        if not nodes:
            del self._nodes_of[host]

    def crowding(self) -> Mapping[str, str]:
        """Node ids that take no part, each with its host."""
        others = len(self._nodes_of) - 1
        if not others:
            return {}
        most = max(MIN_NODES_OF_HOST, others)
        return {node: host.host for host in self._large for node in islice(self._nodes_of[host], most, None)}
