"""The proxies of other replicas, as decisions see them: what a limit is divided by beside the proxies served here.

A fold over the Leases in which replicas say whom they serve. A Lease counts while it is renewed, by the time at
which a renewal is *seen* here: no clock of another machine is asked. A replica that falls silent, or takes its
Lease away, is dropped; its proxies are on their way to another replica, and the roster remembers their number.

A gateway elsewhere is a gateway to ``decide``, of which nothing is known but what it asks for. Other proxies are
many and share one part; those of a kind stand there as one, that asks for all of them, and are counted.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from policies.route import PriorityClass
from xds_server.fleet.traffic import PoolTraffic, Proxy, ProxyTraffic
from xds_server.kube.lease import Record, unix_of
from xds_server.kube.presence import GATEWAY, Asked, Group, Key, Presence, key_of

LIVE_S: Final = 10.0
"""A replica that was not seen to renew its Lease for so long is not counted on."""

LONG_AGO_S: Final = 60.0
"""What was last renewed before that, as clocks of two machines have it, is left over from a replica that died."""

MOST_UNNAMED: Final = 1000
"""Gateways of one kind that are counted without being named, of which each is reckoned with by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """Proxies that other replicas serve: by node id made up for them, by role, by zone, and what they ask by pool.

    ``kinds`` are role, zone and pools of those there are.
    """

    proxies: Mapping[str, Proxy] = field(default_factory=dict)
    proxies_by_role: Mapping[str, int] = field(default_factory=dict)
    proxies_by_zone: Mapping[str, int] = field(default_factory=dict)
    traffic: Mapping[str, Mapping[str, ProxyTraffic]] = field(default_factory=dict)
    kinds: frozenset[tuple[str, str]] = frozenset()


NOWHERE: Final = Elsewhere()


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another replica: its Lease's record, what it said with it, and when (monotonic) that was seen first."""

    record: Record
    presence: Presence
    heard_s: float

    def live(self, now_s: float) -> bool:
        """Whether it can be counted on."""
        return now_s - self.heard_s < LIVE_S


Peers = Mapping[str, Peer]
"""Other replicas by the name of their Lease."""


def heard(peers: Peers, leases: Mapping[str, tuple[Record, Presence]], now_s: float, unix_s: float = 0.0) -> Peers:
    """The replicas once these Leases were seen: all there are but one's own.

    A Lease that says nothing new is the same peer; a ``Peers`` with nothing new in it is the same object.
    ``unix_s`` is the wall's time: what was left behind long ago is not alive because it is seen first now.
    """
    found = {}
    for name, (record, said) in leases.items():
        known = peers.get(name)
        if known is not None and known.record == record:
            found[name] = known
        else:
            left = known is None and LONG_AGO_S < unix_s - unix_of(record.renewed) < math.inf
            found[name] = Peer(record=record, presence=said, heard_s=-math.inf if left else now_s)
    if found.keys() == peers.keys() and all(found[name] is peers[name] for name in found):
        return peers
    return found


def excused(peers: Peers, since_s: float, now_s: float) -> Peers:
    """The replicas after nobody could be heard from ``since_s`` to now: who was alive then has time to renew."""
    return {name: replace(peer, heard_s=now_s) if peer.live(since_s) else peer for name, peer in peers.items()}


def live(peers: Peers, now_s: float) -> tuple[Peer, ...]:
    """Those that can be counted on, whoever was heard last first."""
    counted = [(name, peer) for name, peer in peers.items() if peer.live(now_s)]
    return tuple(peer for name, peer in sorted(counted, key=lambda one: (-one[1].heard_s, one[0])))


def elsewhere(peers: Peers, here: Mapping[str, object], now_s: float) -> Elsewhere:
    """What other replicas serve; a proxy that is connected ``here`` too, by node id, or to two of them, is one."""
    known: set[Key] = set(map(key_of, here)) if peers else set()
    proxies: dict[str, Proxy] = {}
    by_role: dict[str, int] = {}
    by_zone: dict[str, int] = {}
    traffic: dict[str, dict[str, ProxyTraffic]] = {}
    kinds = set()
    for name, peer in sorted(peers.items(), key=lambda one: (-one[1].heard_s, one[0])):
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
                        traffic.setdefault(pool, {})[node] = _told(asked[key], peer.heard_s)
    if not proxies:
        return NOWHERE
    return Elsewhere(
        proxies=MappingProxyType(proxies),
        proxies_by_role=MappingProxyType(by_role),
        proxies_by_zone=MappingProxyType(by_zone),
        traffic=MappingProxyType(traffic),
        kinds=frozenset(kinds),
    )


def same_as(known: Elsewhere, found: Elsewhere) -> Elsewhere:
    """``found``, made of the very objects of ``known`` where they are equal, so that nothing is decided anew."""
    if known == found:
        return known
    return replace(found, proxies=known.proxies) if known.proxies == found.proxies else found


class Joining:
    """Traffic that is known here and traffic elsewhere as one; what was joined of the same two stays the same."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[PoolTraffic | None, Mapping[str, ProxyTraffic], PoolTraffic]] = {}

    def traffic(self, here: Mapping[str, PoolTraffic], there: Elsewhere) -> Mapping[str, PoolTraffic]:
        """What all proxies ask for, by pool; ``here`` itself where nobody elsewhere asks for anything."""
        if not there.traffic:
            self._made = {}
            return here
        made = {}
        for pool, proxies in there.traffic.items():
            local, known = here.get(pool), self._made.get(pool)
            same = known is not None and known[0] is local and known[1] is proxies
            made[pool] = known if known is not None and same else (local, proxies, _joined(local, proxies))
        self._made = made
        return MappingProxyType({**here, **{pool: one[2] for pool, one in made.items()}})


def _joined(here: PoolTraffic | None, there: Mapping[str, ProxyTraffic]) -> PoolTraffic:
    if here is not None:
        return replace(here, proxies=MappingProxyType({**here.proxies, **there}))
    return PoolTraffic(proxies=there, heard_at_s=max(one.heard_at_s for one in there.values()))


def _standing(group: Group, fresh: list[Key]) -> list[Key]:
    if group.role != GATEWAY:
        return [group.key]
    return [*fresh, *(f"{group.key}-{place}" for place in range(min(group.more, MOST_UNNAMED)))]


def _told(asked: Asked, heard_s: float) -> ProxyTraffic:
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
