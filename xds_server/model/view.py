"""Which kind of proxy is looking: proxies with the same view are served the same bytes."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What distinguishes the configuration of one proxy from another's.

    ``pools`` limits what is served to the named pools and the routes that lead to them; empty means all.
    ``cuts``: this proxy can end what an engine holds, by the removal of the listener it went through.
    ``listen_address`` takes the place of the address that routes name, for a proxy that shares its host with
    others; empty means as the routes say. ``region`` is empty where the proxy says none: then it is that of the
    engines in its zone. ``allowed`` are the pools that its identity may see, whatever it asks for; None means all.
    ``canary``: it tries other policies before the rest. ``keys``: it may be sent private keys.
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

    def may_see(self, pools: Collection[str]) -> bool:
        """Whether all of these pools may be seen."""
        return self.allowed is None or self.allowed.issuperset(pools)


GATEWAY: Final = "gateway"
SIDECAR: Final = "sidecar"

GRPC_ROLE: Final = "grpc"
"""gRPC's own xDS client, which is no proxy."""

ROLES: Final = (GATEWAY, SIDECAR, GRPC_ROLE)
"""Every role of a peer."""
