"""The view of a proxy: proxies with the same view are served the same bytes."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What distinguishes the configurations of proxies.

    ``pools`` limits the configuration to the named pools and the routes that lead to them; empty means all.
    ``cuts``: this proxy can cut an engine's requests by removing their listener. ``listen_address`` replaces the
    routes' address, for a proxy that shares its host with others; empty keeps it. ``region`` is empty if the proxy
    does not state one: its zone's engines then decide. ``allowed`` are the pools that its identity may see;
    None means all. ``canary``: it tries new policies first. ``keys``: it may get private keys.
    ``listener_buffers``: its Envoy (before 1.37) limits bodies by the listener's buffer, not by the route.
    ``no_prompt_keys``: its Envoy (before 1.38) cannot balance by the hash of a prompt.
    """

    zone: str = ""
    region: str = ""
    role: str = "gateway"
    pools: frozenset[str] = frozenset()
    listen_address: str = ""
    cuts: bool = False
    allowed: frozenset[str] | None = None
    canary: bool = False
    keys: bool = False
    listener_buffers: bool = False
    no_prompt_keys: bool = False

    def may_see(self, pools: Collection[str]) -> bool:
        """Whether all of these pools are visible."""
        return self.allowed is None or self.allowed.issuperset(pools)


GATEWAY: Final = "gateway"
SIDECAR: Final = "sidecar"

GRPC_ROLE: Final = "grpc"
"""gRPC's own xDS client, which is not a proxy."""

ROLES: Final = (GATEWAY, SIDECAR, GRPC_ROLE)
"""Every role of an xDS client."""
