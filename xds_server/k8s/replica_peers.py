"""The proxies of other replicas, as decisions see them: what a limit is divided by beside the proxies served here.

A fold over the Leases in which replicas say whom they serve. A Lease counts while it is renewed, by the time at
which a renewal is *seen* here: no clock of another machine is asked. A replica that falls silent, or takes its
Lease away, is dropped; its proxies are on their way to another replica, and the roster remembers their number.

A gateway elsewhere is a gateway to ``decide``, of which nothing is known but what it asks for. Other proxies are
many and share one part; those of a kind stand there as one, that asks for all of them, and are counted.
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
"""A replica that was not seen to renew its Lease for so long is not counted on."""

LONG_AGO_S: Final = 60.0
"""What was last renewed before that, as clocks of two machines have it, is left over from a replica that died."""

MOST_UNNAMED: Final = 1000
"""Gateways of one kind that are counted without being named, of which each is reckoned with by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPeer:
    """Another replica: its Lease's record, what it said with it, and when (monotonic) that was seen first."""

    record: LeaderElectionRecord
    presence: ReplicaStatus
    observed_s: float

    def live(self, now_s: float) -> bool:
        """Whether it can be counted on."""
        return now_s - self.observed_s < LIVE_S


ReplicaPeers = Mapping[str, ReplicaPeer]
"""Other replicas by the name of their Lease."""


def updated_peers(
    peers: ReplicaPeers,
    leases: Mapping[str, tuple[LeaderElectionRecord, ReplicaStatus]],
    now_s: float,
    unix_s: float = 0.0,
) -> ReplicaPeers:
    """The replicas once these Leases were seen: all there are but one's own.

    A Lease that says nothing new is the same peer; a ``ReplicaPeers`` with nothing new in it is the same object.
    ``unix_s`` is the wall's time: what was left behind long ago is not alive because it is seen first now.
    """
    found = {}
    for name, (record, said) in leases.items():
        known = peers.get(name)
        if known is not None and known.record == record:
            found[name] = known
        else:
            left = known is None and LONG_AGO_S < unix_s - unix_of(record.renewed) < math.inf
            found[name] = ReplicaPeer(record=record, presence=said, observed_s=-math.inf if left else now_s)
    return reuse_mapping(peers, found)


def peers_after_outage(peers: ReplicaPeers, since_s: float, now_s: float) -> ReplicaPeers:
    """The replicas after nobody could be heard from ``since_s`` to now: who was alive then has time to renew."""
    return {name: replace(peer, observed_s=now_s) if peer.live(since_s) else peer for name, peer in peers.items()}


def live_peers(peers: ReplicaPeers, now_s: float) -> tuple[ReplicaPeer, ...]:
    """Those that can be counted on, whoever was heard last first."""
    counted = [(name, peer) for name, peer in peers.items() if peer.live(now_s)]
    return tuple(peer for name, peer in sorted(counted, key=lambda one: (-one[1].observed_s, one[0])))


def remote_proxies(peers: ReplicaPeers, here: Mapping[str, object], now_s: float) -> RemoteProxies:
    """What other replicas serve; a proxy that is connected ``here`` too, by node id, or to two of them, is one."""
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
    """``found``, made of the very objects of ``known`` where they are equal, so that nothing is decided anew."""
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
