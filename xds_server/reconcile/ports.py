"""Whom the reconciler knows, as it needs them, and who they are when the control plane runs.

``PublisherPort`` are who is connected, ``SignalsPort`` what is known beside policies and reports.
``PublisherAdapter`` is the publisher as the one, ``SignalsAdapter`` telemetry and orders as the other.
"""

from collections.abc import Mapping
from typing import Protocol

from xds_server.model.fleet import EngineId
from xds_server.model.order import Order
from xds_server.model.pool_traffic import PoolTraffic
from xds_server.model.secret import Certificates
from xds_server.model.snapshot import Resource, Snapshot
from xds_server.model.view import View


class PublisherPort(Protocol):
    """Who is connected, and how to reach them."""

    def views(self) -> frozenset[View]:
        """The views of connected proxies."""
        ...

    def nodes(self) -> Mapping[str, View]:
        """The view of each connected proxy by its node id; the same object while nobody came or went."""
        ...

    def proxies_by_role(self) -> Mapping[str, int]:
        """How many proxies of each role are connected."""
        ...

    def proxies_by_zone(self) -> Mapping[str, int]:
        """How many proxies of each zone are connected."""
        ...

    def publish(self, snapshots: Mapping[View, Snapshot], own: Mapping[str, Resource]) -> None:
        """Give every proxy the snapshot of its view, and those named in ``own`` a runtime layer of their own."""
        ...


class SignalsPort(Protocol):
    """What is known beside policies and reports."""

    def traffic(self, now_s: float) -> Mapping[str, PoolTraffic]:
        """What proxies saw lately, by pool; the same object for a pool of which nothing new is known."""
        ...

    @property
    def access_log_percent(self) -> float:
        """The share of calls that proxies are to report."""
        ...

    def orders(self, now_s: float) -> Mapping[EngineId, Order]:
        """The orders of operators that hold now."""
        ...

    def certificates(self) -> Certificates:
        """The certificates for connections to engines; the same object while they are the same."""
        ...
