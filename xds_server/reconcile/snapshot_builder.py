"""Builds decisions and snapshots of a round from the present inputs."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from policies.model import PolicySet
from xds_server.decide.decision_memory import DecisionMemory
from xds_server.engine_health.engine_addresses import AddressSubstitution, resolved_fleet
from xds_server.model.fleet import EngineId, Fleet
from xds_server.model.order import Order
from xds_server.model.pool_traffic import NO_DEMAND
from xds_server.model.secret import NO_CERTIFICATES
from xds_server.model.snapshot import Snapshot
from xds_server.model.tenant_usage import NO_USAGE
from xds_server.model.view import View
from xds_server.reconcile.pipeline import BuildInputs, BuildResult, Pipeline
from xds_server.reconcile.ports import PublisherPort, SignalsPort
from xds_server.reconcile.proxy_counts import ProxyCounts

_NO_ORDERS: Final[Mapping[EngineId, Order]] = MappingProxyType({})


class SnapshotBuilder:
    """Builds from the present state of its ports; ``addresses`` of host names are set by the resolver."""

    def __init__(self, proxies: PublisherPort, signals: SignalsPort | None, roll: ProxyCounts) -> None:
        self._proxies = proxies
        self._signals = signals
        self._roll = roll
        self._pipeline = Pipeline()
        self._addressing = AddressSubstitution()
        self.addresses: Mapping[str, str] = {}

    def build(
        self,
        policies: PolicySet,
        fleet: Fleet,
        memory: DecisionMemory,
        now_s: float,
        *,
        views: frozenset[View] | None = None,
    ) -> BuildResult:
        """Decisions, and snapshots of these views; of every view in use if none are named."""
        nodes = self._proxies.nodes()
        return self._pipeline.build(
            BuildInputs(
                policies=policies,
                fleet=self._addressing.fleet(fleet, self.addresses),
                memory=memory,
                views=self._proxies.views() if views is None else views,
                proxies_by_role=self._roll.by_role.counts(),
                calling_zones=frozenset(self._roll.by_zone.counts()),
                nodes=nodes,
                crowding=self._proxies.crowding(),
                remote_proxies=self._roll.remote_proxies().proxies,
                orders=self._signals.orders(now_s) if self._signals else _NO_ORDERS,
                certificates=self._signals.certificates() if self._signals else NO_CERTIFICATES,
                access_log_shares=self._signals.access_log_shares if self._signals else {},
                usage=self._signals.tenant_usage(policies) if self._signals else NO_USAGE,
                demand=self._signals.tenant_demand(now_s, nodes) if self._signals else NO_DEMAND,
                now_s=now_s,
            )
        )

    def peek(self, built: BuildResult, view: View) -> Snapshot:
        """What a proxy of this view would be served by this build, which did not include it."""
        return self._pipeline.peek(built, view)

    def resolved(self, fleet: Fleet) -> Fleet:
        """The fleet with present addresses, for builds outside of rounds."""
        return resolved_fleet(fleet, self.addresses)
