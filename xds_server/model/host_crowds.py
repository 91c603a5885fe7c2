"""Node ids that take no part in divided limits, because one host has connected under very many.

Limits are divided by proxies, and a peer without certificate may connect under any number of node ids. So a host
without proven identity counts as at most as many proxies as there are other hosts, or ``MIN_NODES_OF_HOST``. Its
first node ids count; the others are served like a proxy without demand. The only host is not limited: it has no
others to take from.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

MIN_NODES_OF_HOST: Final = 16
"""Envoys of one machine without certificates."""


class NodeHost(NamedTuple):
    """Host of a proxy, and whether it proved an identity."""

    host: str
    proven: bool


def crowding_nodes(hosts: Mapping[str, NodeHost]) -> Mapping[str, str]:
    """Node ids that take no part, each with its host; ``hosts`` of all proxies in order of connection."""
    by_host: dict[NodeHost, list[str]] = {}
    for node, host in hosts.items():
        by_host.setdefault(host, []).append(node)
    others = len(by_host) - 1
    if not others:
        return {}
    most = max(MIN_NODES_OF_HOST, others)
    return {node: host.host for host, nodes in by_host.items() if not host.proven for node in nodes[most:]}
