"""View of a proxy, from the node it sends when it connects."""

import ipaddress
from typing import Final

from xds_server.model.software_version import parsed_version
from xds_server.model.view import GRPC_ROLE, ROLES, View
from xds_server.xds import NodeInfo

NO_POOL: Final = ""
"""Not a valid pool name: a proxy that asks for it sees no pools and calls none."""

ROUTES_LIMIT_BODIES: Final = (1, 37)
"""Older Envoys answer 413 above the listener's buffer, and ignore the routes' limit (seen with 1.36.4)."""

HASHABLE_STATE: Final = (1, 38)
"""Older Envoys refuse a listener with ``envoy.hashable_string`` (seen with 1.36.4 and 1.37.0)."""


def view_of(node: NodeInfo, allowed: frozenset[str] | None = None, *, keys: bool = False) -> View:
    """View of this node: locality, and ``role``, ``pools``, ``listen_address`` and ``cuts`` of its metadata.

    Without a valid role a node is a gateway, unless it is a gRPC client with its own xDS stack, which cannot use
    an Envoy's resources. ``allowed``: pools visible to its identity, None for all. ``keys``: it may receive
    private keys, which a gRPC client cannot use.
    """
    role = node.metadata.get("role")
    if role not in ROLES:
        role = GRPC_ROLE if node.user_agent_name.startswith("gRPC") else "gateway"
    pools = node.metadata.get("pools")
    named = frozenset(pool for pool in pools if isinstance(pool, str)) if isinstance(pools, list | tuple) else None
    visible = named or frozenset()
    if allowed is not None:
        visible = ((visible & allowed) if visible else allowed) or frozenset((NO_POOL,))
    return View(
        zone=node.zone,
        region=node.region,
        role=str(role),
        pools=visible,
        allowed=allowed,
        listen_address=_address(node.metadata.get("listen_address")),
        cuts=role != GRPC_ROLE and node.metadata.get("cuts") is True,
        keys=keys and role != GRPC_ROLE,
        listener_buffers=_is_before(node, ROUTES_LIMIT_BODIES),
        no_prompt_keys=_is_before(node, HASHABLE_STATE),
    )


def _is_before(node: NodeInfo, version: tuple[int, ...]) -> bool:
    """Whether it is an Envoy of an older version; not if it names none."""
    return node.user_agent_name == "envoy" and () < parsed_version(node.user_agent_version) < version


def _address(value: object) -> str:
    """An IP address for listeners; empty for anything else, which Envoy would refuse."""
    try:
        return str(ipaddress.ip_address(value)) if isinstance(value, str) else ""
    except ValueError:
        return ""
