"""The engines that a pool's ``kubernetes`` block finds, as entries of its ``endpoints``. Pure, and remembered.

What cannot be an entry is left out and remarked on: a pool is not refused for one odd pod. Which endpoint counts
where several stand for one pod (two address families, a move between slices) follows from what they say alone,
so that every replica comes to the same.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from policies.discovery import Discovery
from xds_server.fleet.orchestrator import OrchestratorWord, Standing
from xds_server.kube.mirror import Key
from xds_server.kube.objects import PodRef
from xds_server.sources.cluster.entry import Entry, entry
from xds_server.sources.cluster.seen import Listed, Node, Pod, Slice
from xds_server.sources.cluster.standing import is_gone, word
from xds_server.sources.cluster.world import World

MOST: Final = 20_000
"""Endpoints that a pool may have, by its model."""

_RANK: Final = {None: 0, Standing.NOT_READY: 1, Standing.UNFIT: 2, Standing.LEAVING: 3, Standing.GONE: 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One engine: its entry, what the cluster says of it, and the pod it runs in where there is one.

    ``uid`` is that of the pod it stands for, there or not; empty where nobody says.
    """

    entry: Entry
    word: OrchestratorWord | None
    pod: PodRef | None
    uid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The engines of a block in the order of their names, what was odd, and names of all pods it looked for."""

    members: tuple[Member, ...] = ()
    remarks: tuple[str, ...] = ()
    pods: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Sight:
    """All that a member is made of; two that are equal make the same one."""

    pod: Pod | None
    node: Node | None
    listed: Listed | None
    ports: Mapping[str, int]
    knows_pods: bool


class Finder:
    """Finds the engines of one block, again and again; what nothing happened to is not looked at anew."""

    def __init__(self, block: Discovery, namespace: str) -> None:
        self.block = block
        self.namespace = namespace
        self._known: dict[str, tuple[_Sight, Member | None, tuple[str, ...]]] = {}

    def looks_for(self, pod: Pod) -> bool:
        """Whether the labels of a pod make it an engine."""
        wanted = self.block.selector
        return bool(wanted) and all(pod.labels.get(key) == value for key, value in wanted.items())

    def found(self, world: World) -> Found:
        """The engines as they are now."""
        sights, looked_for = self._sights(world)
        known: dict[str, tuple[_Sight, Member | None, tuple[str, ...]]] = {}
        remarks: list[str] = []
        members: list[Member] = []
        for name, fresh in sights.items():
            before = self._known.get(name)
            sight = fresh if before is None or fresh.knows_pods else _remembering(fresh, before[0])
            known[name] = now = (
                before if before is not None and before[0] == sight else (sight, *self._made(sight))
            )
            remarks += now[2]
            if now[1] is not None:
                members.append(now[1])
        self._known = known
        kept = sorted(_alone(members, remarks), key=lambda one: one.entry.name)
        if len(kept) > MOST:
            remarks.append(f"{len(kept)} engines were found, and a pool has at most {MOST}: the rest is left out")
        return Found(members=tuple(kept[:MOST]), remarks=tuple(sorted(remarks)), pods=looked_for)

    def _sights(self, world: World) -> tuple[dict[str, _Sight], frozenset[str]]:
        pods, knows = world.pods(self.namespace), world.knows_pods(self.namespace)
        if self.block.service is None:
            chosen = {name: one for name, one in pods.items() if self.looks_for(one)}
            by_label = {
                name: _Sight(one, world.node(one.node), None, one.ports, knows)
                for name, one in chosen.items()
                if one.addresses and not one.over
            }
            return by_label, frozenset(chosen)
        sights: dict[str, _Sight] = {}
        ranks: dict[str, tuple[Any, ...]] = {}
        looked_for = set()
        for part, listed in _listed(world.slices(Key(self.namespace, self.block.service))):
            pod = pods.get(listed.pod) if listed.pod else None
            if listed.pod:
                looked_for.add(listed.pod)
            node = world.node(listed.node or (pod.node if pod is not None else ""))
            sight = _Sight(pod, node, listed, part.ports, knows)
            name = listed.pod or f"{listed.address} {sorted(part.ports.items())}"
            other = sights.setdefault(name, sight)
            if other is sight:
                continue
            # Most stand alone, and are not compared.
            best = ranks.setdefault(name, _preference(other))
            if (rank := _preference(sight)) < best:
                sights[name], ranks[name] = sight, rank
        return sights, frozenset(looked_for)

    def _made(self, sight: _Sight) -> tuple[Member | None, tuple[str, ...]]:
        made, remarks = entry(self.block, sight.pod, sight.listed, sight.node, sight.ports)
        if made is None:
            return None, remarks
        gone = is_gone(sight.pod, sight.listed, knows_pods=sight.knows_pods)
        pod = sight.pod
        member = Member(
            entry=made,
            word=word(pod, sight.listed, sight.node, knows_pods=sight.knows_pods),
            pod=None
            if pod is None or gone
            else PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid, has_gate=pod.gated),
            uid=(sight.listed.pod_uid if sight.listed else "") or (pod.uid if pod else ""),
        )
        return member, remarks


def _remembering(sight: _Sight, before: _Sight) -> _Sight:
    """What was known of a pod when contact was lost stays known: one that was gone does not come back by that."""
    same = sight.pod is before.pod and (sight.listed and sight.listed.pod_uid) == (
        before.listed and before.listed.pod_uid
    )
    return replace(sight, knows_pods=before.knows_pods) if same else sight


def _listed(slices: Iterable[Slice]) -> Iterator[tuple[Slice, Listed]]:
    return ((part, one) for part in slices for one in part.endpoints)


def _preference(sight: _Sight) -> tuple[Any, ...]:
    """Which of several endpoints of one pod counts: the lowest.

    The family comes before what is said of it, or an engine would change its address whenever one slice is
    updated before the other.
    """
    pod, listed = sight.pod, sight.listed
    assert listed is not None  # noqa: S101 - only endpoints of slices are compared
    primary = pod is not None and listed.address in pod.addresses[:1]
    stale = is_gone(pod, listed, knows_pods=True)
    return stale, not primary, _family(listed.address), listed.terminating, not listed.ready, listed.address


@lru_cache(maxsize=65_536)  # asked of every endpoint each time one of them moves
def _family(address: str) -> int:
    try:
        return ipaddress.ip_address(address).version
    except ValueError:
        return 9  # a host name, after both


def _alone(members: list[Member], remarks: list[str]) -> Iterator[Member]:
    """Members without those at an address and port that another one has, which may be a pod that is going."""
    taken: dict[tuple[Any, Any], Member] = {}
    for one in sorted(
        members, key=lambda member: (_RANK[member.word.standing if member.word else None], member.entry.name)
    ):
        first = taken.setdefault((one.entry.address, one.entry.port), one)
        if first is one:
            yield one
        else:
            remarks.append(
                f"{one.entry.name} is left out: {first.entry.name} is at {one.entry.address}:{one.entry.port} too"
            )
