"""Adapters from publisher, telemetry, orders and certificates to the ports of the reconciler."""

import time
from collections.abc import Callable, Collection, Hashable, Mapping
from types import MappingProxyType
from typing import cast

from policies.model import PolicySet
from xds_server.auth.reached_limits import PeerLimit, ReachedLimits
from xds_server.ledger.operator_orders import Orders
from xds_server.model.fleet import EngineId
from xds_server.model.memo import LastResult
from xds_server.model.order import Order
from xds_server.model.pool_traffic import PoolTraffic, TenantDemand
from xds_server.model.secret import NO_CERTIFICATES, Certificates
from xds_server.model.snapshot import OwnResources, Snapshot
from xds_server.model.tenant_usage import TenantUsage
from xds_server.model.view import GRPC_ROLE, View
from xds_server.publish import Publisher
from xds_server.telemetry import Telemetry


class PublisherAdapter:
    """Adapts the publisher to the reconciler's port."""

    def __init__(self, publisher: Publisher, reached: ReachedLimits | None = None) -> None:
        """``reached``: hosts with more node ids than take part in limits."""
        self._publisher = publisher
        self._reached = reached or ReachedLimits()
        self._envoys: LastResult[frozenset[str]] = LastResult()
        self._by_view: LastResult[Mapping[View, int]] = LastResult()

    def views(self) -> frozenset[View]:
        return frozenset(view for view in self._publisher.views if isinstance(view, View))

    def nodes(self) -> Mapping[str, View]:
        return cast("Mapping[str, View]", self._publisher.nodes)  # ``ViewSource`` makes nothing but views

    def envoys(self) -> Collection[str]:
        """Node ids that report their traffic; the same object until a proxy connects or disconnects."""
        views = self.nodes()

        def made() -> frozenset[str]:
            if all(view.role != GRPC_ROLE for view in self.views()):
                return frozenset(views)
            return frozenset(node for node, view in views.items() if view.role != GRPC_ROLE)

        return self._envoys.of((views,), made)

    def speaks_for(self, node: str, identities: tuple[str, ...]) -> Callable[[str], bool] | None:
        """Predicate for the pools that ``node`` may report with these identities; None if no such proxy is
        connected.
        """
        view = self.nodes().get(node)
        if view is None or not self._publisher.speaks_for(node, identities):
            return None
        return _all if view.allowed is None else view.allowed.__contains__

    def proxies_by_role(self) -> Mapping[str, int]:
        return self._counts(lambda view: view.role)

    def proxies_by_zone(self) -> Mapping[str, int]:
        return self._counts(lambda view: view.zone)

    def by_view(self) -> Mapping[View, int]:
        """Number of node ids by view that take part in limits.

        A proxy with many streams takes no larger part than others, and a host with many node ids a limited one.
        """
        shared = self._publisher.connected
        return self._by_view.of(
            (shared.views,), lambda: MappingProxyType(cast("Mapping[View, int]", shared.sharing_by_view))
        )

    def sharing(self) -> Mapping[str, View]:
        """The proxies that take part in limits."""
        crowding = self.crowding()
        views = self.nodes()
        return {node: view for node, view in views.items() if node not in crowding} if crowding else views

    def crowding(self) -> Collection[str]:
        found = self._publisher.connected.crowding
        for host in set(found.values()):
            self._reached.add(PeerLimit.STREAMS, host)
        return found

    def _counts(self, key_of: Callable[[View], str]) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        for view, count in self.by_view().items():
            counts[key_of(view)] = counts.get(key_of(view), 0) + count
        return counts

    def publish(self, snapshots: Mapping[View, Snapshot], own: Mapping[str, OwnResources]) -> None:
        by_key: dict[Hashable, Snapshot] = {view: snapshot for view, snapshot in snapshots.items()}  # noqa: C416 - keys change their type
        self._publisher.publish(by_key, time.monotonic(), own)


class SignalsAdapter:
    """Adapts telemetry, orders and certificates to the reconciler's port."""

    def __init__(
        self,
        telemetry: Telemetry,
        orders: Orders,
        certificates: Callable[[], Certificates] = lambda: NO_CERTIFICATES,
    ) -> None:
        self._telemetry = telemetry
        self._orders = orders
        self._certificates = certificates

    def certificates(self) -> Certificates:
        return self._certificates()

    @property
    def access_log_shares(self) -> Mapping[str, float]:
        return self._telemetry.sampling

    def traffic(self, now_s: float) -> Mapping[str, PoolTraffic]:
        return self._telemetry.traffic(now_s)

    def tenant_usage(self, policies: PolicySet) -> TenantUsage:
        return self._telemetry.traffic_store.tenants.usage.current(policies)

    def tenant_demand(self, now_s: float, nodes: Collection[str]) -> TenantDemand:
        return self._telemetry.traffic_store.tenants.demand.demand(now_s, nodes)

    def orders(self, now_s: float) -> Mapping[EngineId, Order]:
        return self._orders.active(now_s)


def _all(_pool: str) -> bool:
    return True
