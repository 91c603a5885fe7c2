"""Which view a proxy belongs to, from what it says of itself when it connects."""

import ipaddress
from typing import Final

from xds_server.model.view import GRPC_ROLE, ROLES, View
from xds_server.xds import NodeInfo

NO_POOL: Final = ""
"""No pool can be called this: who asks for it sees none, and is nobody's caller."""


def view_of(node: NodeInfo, allowed: frozenset[str] | None = None, *, keys: bool = False) -> View:
    """The view of this node: its place, and ``role``, ``pools``, ``listen_address`` and ``cuts`` of its metadata.

    Who names no role that exists is a gateway, unless it is a gRPC client with its own xDS stack, which cannot
    be served what an Envoy is. ``allowed`` are the pools that its identity may see; None means all.
    ``keys``: it may be sent private keys, which a gRPC client has no use for.
    """
    role = node.metadata.get("role")
    if role not in ROLES:
        role = GRPC_ROLE if node.user_agent_name.startswith("gRPC") else "gateway"
    pools = node.metadata.get("pools")
    named = frozenset(pool for pool in pools if isinstance(pool, str)) if isinstance(pools, list | tuple) else None
    asked = named or frozenset()
    if allowed is not None:
        asked = ((asked & allowed) if asked else allowed) or frozenset((NO_POOL,))
    return View(
        zone=node.zone,
        region=node.region,
        role=str(role),
        pools=asked,
        allowed=allowed,
        listen_address=_address(node.metadata.get("listen_address")),
        cuts=role != GRPC_ROLE and node.metadata.get("cuts") is True,
        keys=keys and role != GRPC_ROLE,
    )


def _address(said: object) -> str:
    """An IP address a listener can bind; empty for anything else, which Envoy would refuse."""
    try:
        return str(ipaddress.ip_address(said)) if isinstance(said, str) else ""
    except ValueError:
        return ""
