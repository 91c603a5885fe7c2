"""Proxies of all replicas: what limits are divided by, and where requests come from.

Counts cover all replicas, so a proxy that moves between them changes nothing. Briefly disconnected proxies are
still counted; see ``DampedCounts``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from xds_server.model.pool_traffic import PoolTraffic
from xds_server.model.remote_proxies import NO_REMOTE_PROXIES, RemoteProxies, TrafficMerger
from xds_server.model.view import View
from xds_server.reconcile.ports import PublisherPort

HOLD_S: Final = 30.0
"""Longer than Envoy's maximum reconnect backoff with Switchgear's bootstrap (1 s), with room for a rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DampedCounts:
    """Proxies by role, or by zone: ``connected`` now, ``remembered`` with the monotonic end of a higher count."""

    connected: Mapping[str, int]
    remembered: Mapping[str, tuple[int, float]]

    def counts(self) -> Mapping[str, int]:
        """Effective counts by role or zone; at least one each."""
        roles = sorted({*self.connected, *self.remembered})
        counts = {role: max(self.connected.get(role, 0), self.remembered.get(role, (0, 0.0))[0]) for role in roles}
        return MappingProxyType({role: count for role, count in counts.items() if count})


NO_COUNTS: Final = DampedCounts(connected=MappingProxyType({}), remembered=MappingProxyType({}))


def restored_counts(counts: Mapping[str, int], now_s: float) -> DampedCounts:
    """Counts of a server that just started and knows those of its last run."""
    remembered = {role: (count, now_s + HOLD_S) for role, count in counts.items()}
    return DampedCounts(connected=MappingProxyType({}), remembered=MappingProxyType(remembered))


def damped_counts(roster: DampedCounts, connected: Mapping[str, int], now_s: float) -> DampedCounts:
    """The counts with these proxies connected; a count that fell is remembered for ``HOLD_S``."""
    remembered = {role: held for role, held in roster.remembered.items() if held[1] > now_s}
    for role, before in roster.connected.items():
        count = max(before, remembered.get(role, (0, 0.0))[0])
        if connected.get(role, 0) < before:
            remembered[role] = (count, now_s + HOLD_S)
    kept = {role: held for role, held in remembered.items() if held[0] > connected.get(role, 0)}
    return DampedCounts(connected=MappingProxyType(dict(connected)), remembered=MappingProxyType(kept))


class RemoteProxySource(Protocol):
    """Other replicas that serve the same policies."""

    def remote_proxies(self, here: Mapping[str, object]) -> RemoteProxies:
        """Their proxies, without those connected ``here``; the same object without news."""
        ...


class ProxyCounts:
    """The proxies of all replicas, as far as known here."""

    def __init__(self, proxies: PublisherPort, peers: RemoteProxySource | None) -> None:
        """``peers`` is None without other replicas."""
        self._proxies = proxies
        self._peers = peers
        self._joining = TrafficMerger()
        self.by_role = NO_COUNTS
        self.by_zone = NO_COUNTS

    def remote_proxies(self) -> RemoteProxies:
        """The proxies of other replicas."""
        return NO_REMOTE_PROXIES if self._peers is None else self._peers.remote_proxies(self._proxies.nodes())

    def traffic(self, here: Mapping[str, PoolTraffic]) -> Mapping[str, PoolTraffic]:
        """Demand of proxies, here and on other replicas."""
        return self._joining.traffic(here, self.remote_proxies())

    def restore(self, by_role: Mapping[str, int], by_zone: Mapping[str, int], now_s: float) -> None:
        """Restore the counts of the last run."""
        self.by_role, self.by_zone = (
            restored_counts(by_role, now_s),
            restored_counts(by_zone, now_s),
        )

    def update(self, now_s: float, arriving: View | None = None) -> bool:
        """Update the counts, including a proxy about to connect; returns whether they changed."""
        there = self.remote_proxies()
        by_role = _together(self._proxies.proxies_by_role(), there.proxies_by_role)
        by_zone = _together(self._proxies.proxies_by_zone(), there.proxies_by_zone)
        # If another replica has such a proxy, it most likely comes from there and is already counted. If not, the
        # next round counts it.
        if arriving is not None and (arriving.role, arriving.zone) not in there.kinds:
            by_role[arriving.role] = by_role.get(arriving.role, 0) + 1
            by_zone[arriving.zone] = by_zone.get(arriving.zone, 0) + 1
        before = (self.by_role.counts(), self.by_zone.counts())
        self.by_role = damped_counts(self.by_role, by_role, now_s)
        self.by_zone = damped_counts(self.by_zone, by_zone, now_s)
        return (self.by_role.counts(), self.by_zone.counts()) != before


def _together(here: Mapping[str, int], there: Mapping[str, int]) -> dict[str, int]:
    return {key: here.get(key, 0) + there.get(key, 0) for key in here.keys() | there.keys()}
