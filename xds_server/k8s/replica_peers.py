"""Proxies of other replicas, which share the limits with the proxies served here.

Computed from the Leases in which replicas publish their proxies. A Lease counts while it is renewed, measured by
when the renewal is *seen* here, independent of other clocks. A replica that is silent or deletes its Lease is
dropped; its proxies are moving to another replica, and the roster remembers their number.

For ``decide`` a remote gateway is a gateway known only by its demand. Other proxies are many and share
one part; each kind appears as one entry with their total demand and count.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from policies.route import PriorityClass
from xds_server.k8s.lease import LeaderElectionRecord, unix_of
from xds_server.k8s.replica_status import GATEWAY, ProxyDemand, ProxyKey, ReplicaProxyGroup, ReplicaStatus, key_of
from xds_server.model.memo import reuse_equal, reuse_mapping
from xds_server.model.pool_traffic import Proxy, ProxyTraffic
from xds_server.model.remote_proxies import NO_REMOTE_PROXIES, RemoteProxies

LIVE_S: Final = 10.0
"""A replica without renewal for this long is ignored."""

LONG_AGO_S: Final = 60.0
"""A Lease last renewed longer ago (by wall clock) belongs to a dead replica."""

MOST_UNNAMED: Final = 1000
"""Gateways of one kind that are counted without names; each counts separately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPeer:
    """Another replica: its Lease record, its status, and when (monotonic) that was first seen."""

    record: LeaderElectionRecord
    presence: ReplicaStatus
    observed_s: float

    def live(self, now_s: float) -> bool:
        """Whether it renewed in time."""
        return now_s - self.observed_s < LIVE_S


ReplicaPeers = Mapping[str, ReplicaPeer]
"""Other replicas by Lease name."""


def updated_peers(
    peers: ReplicaPeers,
    leases: Mapping[str, tuple[LeaderElectionRecord, ReplicaStatus]],
    now_s: float,
    unix_s: float = 0.0,
) -> ReplicaPeers:
    """Update peers with these Leases, except the own one.

    An unchanged Lease keeps its peer object; without any change the same ``ReplicaPeers`` is returned.
    ``unix_s``: wall time, to ignore Leases left behind long ago.
    """
    found = {}
    for name, (record, status) in leases.items():
        known = peers.get(name)
        if known is not None and known.record == record:
            found[name] = known
        else:
            left = known is None and LONG_AGO_S < unix_s - unix_of(record.renewed) < math.inf
            found[name] = ReplicaPeer(record=record, presence=status, observed_s=-math.inf if left else now_s)
    return reuse_mapping(peers, found)


def peers_after_outage(peers: ReplicaPeers, since_s: float, now_s: float) -> ReplicaPeers:
    """Peers after an outage from ``since_s`` to now: those alive before get time to renew."""
    return {name: replace(peer, observed_s=now_s) if peer.live(since_s) else peer for name, peer in peers.items()}


def live_peers(peers: ReplicaPeers, now_s: float) -> tuple[ReplicaPeer, ...]:
    """Live peers, latest renewal first."""
    counted = [(name, peer) for name, peer in peers.items() if peer.live(now_s)]
    return tuple(peer for name, peer in sorted(counted, key=lambda one: (-one[1].observed_s, one[0])))


def remote_proxies(peers: ReplicaPeers, here: Mapping[str, object], now_s: float) -> RemoteProxies:
    """Proxies of other replicas; a proxy connected ``here`` or to two replicas (by node id) counts once."""
    known: set[ProxyKey] = set(map(key_of, here)) if peers else set()
    proxies: dict[str, Proxy] = {}
    by_role: dict[str, int] = {}
    by_zone: dict[str, int] = {}
    traffic: dict[str, dict[str, ProxyTraffic]] = {}
    kinds = set()
    for name, peer in sorted(peers.items(), key=lambda one: (-one[1].observed_s, one[0])):
        if not peer.live(now_s):
            continue
        for group in peer.presence.groups:
            fresh = [key for key in dict.fromkeys(group.keys) if key not in known]
            known.update(fresh)
            count = len(fresh) + group.more
            if not count:
                continue
            kinds.add((group.role, group.zone))
            by_role[group.role] = by_role.get(group.role, 0) + count
            by_zone[group.zone] = by_zone.get(group.zone, 0) + count
            for key in _standing(group, fresh):
                node = f"{name}/{key}"
                proxies[node] = Proxy(
                    node=node,
                    zone=group.zone,
                    region=group.region,
                    role=group.role,
                    pools=frozenset(group.pools),
                )
                for pool, asked in peer.presence.asks.items():
                    if key in asked:
                        traffic.setdefault(pool, {})[node] = _told(asked[key], peer.observed_s)
    if not proxies:
        return NO_REMOTE_PROXIES
    return RemoteProxies(
        proxies=MappingProxyType(proxies),
        proxies_by_role=MappingProxyType(by_role),
        proxies_by_zone=MappingProxyType(by_zone),
        traffic=MappingProxyType(traffic),
        kinds=frozenset(kinds),
    )


def reuse_remote_proxies(known: RemoteProxies, found: RemoteProxies) -> RemoteProxies:
    """``found``, reusing equal objects of ``known``, so that unchanged input causes no new decision."""
    proxies = reuse_equal(known.proxies, found.proxies)
    return reuse_equal(known, found if proxies is found.proxies else replace(found, proxies=proxies))


def _standing(group: ReplicaProxyGroup, fresh: list[ProxyKey]) -> list[ProxyKey]:
    if group.role != GATEWAY:
        return [group.key]
    return [*fresh, *(f"{group.key}-{place}" for place in range(min(group.more, MOST_UNNAMED)))]


def _told(asked: ProxyDemand, heard_s: float) -> ProxyTraffic:
    shed = {
        kind: 1.0
        for kind, sheds in (
            (PriorityClass.INTERACTIVE, asked.sheds_interactive),
            (PriorityClass.BATCH, asked.sheds_batch),
        )
        if sheds
    }
    return ProxyTraffic(
        arrivals_per_s={
            PriorityClass.INTERACTIVE: asked.interactive_per_s,
            PriorityClass.BATCH: asked.batch_per_s,
        },
        shed_per_s=shed,
        heard_at_s=heard_s,
    )
