"""The reconciler's ports and their adapters in a running control plane.

``PublisherPort``: connected proxies. ``SignalsPort``: inputs besides policies and reports.
``PublisherAdapter`` wraps the publisher, ``SignalsAdapter`` telemetry and orders.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from policies.model import PolicySet
from xds_server.model.fleet import EngineId
from xds_server.model.order import Order
from xds_server.model.pool_traffic import PoolTraffic, TenantDemand
from xds_server.model.secret import Certificates
from xds_server.model.snapshot import OwnResources, Snapshot
from xds_server.model.tenant_usage import TenantUsage
from xds_server.model.view import View


class PublisherPort(Protocol):
    """Connected proxies, and how to reach them."""

    def views(self) -> frozenset[View]:
        """The views of connected proxies."""
        ...

    def nodes(self) -> Mapping[str, View]:
        """The view of each connected proxy by its node id; the same object while none connected or left."""
        ...

    def crowding(self) -> Collection[str]:
        """Node ids that take no part in limits; the same object while no proxy connected or left."""
        ...

    def proxies_by_role(self) -> Mapping[str, int]:
        """Connected proxies by role."""
        ...

    def proxies_by_zone(self) -> Mapping[str, int]:
        """Connected proxies by zone."""
        ...

    def publish(self, snapshots: Mapping[View, Snapshot], own: Mapping[str, OwnResources]) -> None:
        """Serve every proxy the snapshot of its view, and those in ``own`` resources of their own."""
        ...


class SignalsPort(Protocol):
    """Inputs besides policies and reports."""

    def traffic(self, now_s: float) -> Mapping[str, PoolTraffic]:
        """Recent traffic by pool; the same object for a pool without news."""
        ...

    @property
    def access_log_shares(self) -> Mapping[str, float]:
        """The share of calls that a proxy reports, by node id; absent: all."""
        ...

    def orders(self, now_s: float) -> Mapping[EngineId, Order]:
        """The operator orders in force."""
        ...

    def tenant_usage(self, policies: PolicySet) -> TenantUsage:
        """What tenants used in the current periods; ``NO_USAGE`` if these policies have no quotas for them."""
        ...

    def tenant_demand(self, now_s: float, nodes: Collection[str]) -> TenantDemand:
        """Recent requests of tenants by proxy; ``nodes``: those that are connected."""
        ...

    def certificates(self) -> Certificates:
        """The certificates for connections to engines; the same object while unchanged."""
        ...
