"""What one round is made of, and what comes of it: decisions, and snapshots of the views that are asked for."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from policies.model import PolicySet
from xds_server.decide.decisions import Decisions
from xds_server.fleet import EngineId, Fleet
from xds_server.fleet.override import Override
from xds_server.pipeline import Built, Inputs, Pipeline
from xds_server.reconcile.neighbours import Proxies, Signals
from xds_server.reconcile.roll import Roll
from xds_server.secrets.secret import NO_CERTIFICATES
from xds_server.snapshot import Snapshot
from xds_server.sources.resolver import Addressing, resolved
from xds_server.translate.view import View

_NO_ORDERS: Final[Mapping[EngineId, Override]] = MappingProxyType({})


class Building:
    """Builds of what neighbours say at that moment; ``addresses`` are of host names, set by who looks them up."""

    def __init__(self, proxies: Proxies, signals: Signals | None, roll: Roll) -> None:
        self._proxies = proxies
        self._signals = signals
        self._roll = roll
        self._pipeline = Pipeline()
        self._addressing = Addressing()
        self.addresses: Mapping[str, str] = {}

    def build(
        self,
        policies: PolicySet,
        fleet: Fleet,
        previous: Decisions | None,
        now_s: float,
        *,
        views: frozenset[View] | None = None,
    ) -> Built:
        """Decisions, and snapshots of these views; of every view in use when none are named."""
        return self._pipeline.build(
            Inputs(
                policies=policies,
                fleet=self._addressing.fleet(fleet, self.addresses),
                previous=previous,
                views=self._proxies.views() if views is None else views,
                proxies_by_role=self._roll.roster.counts(),
                calling_zones=frozenset(self._roll.callers.counts()),
                nodes=self._proxies.nodes(),
                elsewhere=self._roll.elsewhere().proxies,
                overrides=self._signals.overrides(now_s) if self._signals else _NO_ORDERS,
                certificates=self._signals.certificates() if self._signals else NO_CERTIFICATES,
                access_log_percent=self._signals.access_log_percent if self._signals else 100.0,
                now_s=now_s,
            )
        )

    def peek(self, built: Built, view: View) -> Snapshot:
        """What a proxy of this view would be served of this round, which was built without it."""
        return self._pipeline.peek(built, view)

    def resolved(self, fleet: Fleet) -> Fleet:
        """The fleet by the addresses of now, for whoever builds apart from rounds."""
        return resolved(fleet, self.addresses)
