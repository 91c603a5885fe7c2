"""Engines found by a pool's ``kubernetes`` block, as entries of its ``endpoints``. Pure, with cache.

An engine that cannot be an entry is left out with a remark; one odd pod does not refuse the pool. If a pod has
several endpoints (two address families, a move between slices), the choice depends on their content only, so that
every replica chooses the same.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from policies.discovery import Discovery
from xds_server.k8s.object_store import ObjectKey
from xds_server.k8s.source.cluster_cache import ClusterCache
from xds_server.k8s.source.cluster_objects import EndpointSlice, KubeNode, Pod, SliceEndpoint
from xds_server.k8s.source.endpoint_entry import EndpointEntry, endpoint_entry
from xds_server.model.pod_state import PodPhase, PodRef, PodState


def is_pod_gone(pod: Pod | None, listed: SliceEndpoint | None, *, knows_pods: bool) -> bool:
    """Whether the pod of an endpoint no longer exists; a new pod of that name is another one."""
    if listed is None or not listed.pod or not knows_pods:
        return False
    return pod is None or bool(listed.pod_uid and pod.uid != listed.pod_uid)


def pod_state(
    pod: Pod | None, listed: SliceEndpoint | None, node: KubeNode | None, *, knows_pods: bool
) -> PodState | None:
    """The most severe pod state, None if normal. ``listed`` is None for pods found by labels."""
    if is_pod_gone(pod, listed, knows_pods=knows_pods):
        return _state(PodPhase.GONE, f"pod {listed.pod if listed else ''} has been deleted")
    if pod is not None and pod.leaving:
        return _state(PodPhase.LEAVING, f"pod {pod.name} is being deleted")
    if listed is not None and listed.terminating:
        return _state(PodPhase.LEAVING, f"endpoint {listed.pod or listed.address} is terminating")
    if node is not None and node.fault:
        name = (pod.node if pod is not None else "") or (listed.node if listed is not None else "")
        return _state(PodPhase.UNFIT, f"node {name} {node.fault}")
    if pod is not None and pod.fault:
        return _state(PodPhase.UNFIT, f"pod {pod.name}: {pod.fault}")
    reason = _not_ready_reason(pod, listed)
    return _state(PodPhase.NOT_READY, reason) if reason else None


def _not_ready_reason(pod: Pod | None, listed: SliceEndpoint | None) -> str:
    """Why the engine is not ready, empty if ready.

    A Service may publish unready pods, so its endpoint decides if there is one. With our own readiness gate, an
    endpoint may be unready because of our gate: then the other pod conditions decide, or our gate would keep the
    engine unready forever.
    """
    if listed is None or (pod is not None and pod.gated):
        return f"pod {pod.name} is not ready: {pod.unready}" if pod is not None and pod.unready else ""
    if listed.ready:
        return ""
    if pod is not None and pod.unready:
        return f"pod {pod.name} is not ready: {pod.unready}"
    return f"endpoint {listed.pod or listed.address} is not ready"


def _state(standing: PodPhase, reason: str) -> PodState:
    return PodState(standing=standing, reason=reason)


MOST: Final = 20_000
"""Maximum endpoints of a pool, by its model."""

_RANK: Final = {None: 0, PodPhase.NOT_READY: 1, PodPhase.UNFIT: 2, PodPhase.LEAVING: 3, PodPhase.GONE: 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMember:
    """One engine: its entry, its pod state, and its pod if any.

    ``uid``: of its pod, existing or not; empty if unknown.
    """

    entry: EndpointEntry
    pod_state: PodState | None
    pod: PodRef | None
    uid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveredMembers:
    """Engines of a block ordered by name, remarks, and the names of all matched pods."""

    members: tuple[PoolMember, ...] = ()
    remarks: tuple[str, ...] = ()
    pods: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _MemberFacts:
    """Inputs of a member; equal facts make equal members."""

    pod: Pod | None
    node: KubeNode | None
    listed: SliceEndpoint | None
    ports: Mapping[str, int]
    knows_pods: bool


class MemberDiscovery:
    """Discovers the engines of one block; reuses unchanged ones."""

    def __init__(self, block: Discovery, namespace: str) -> None:
        self.block = block
        self.namespace = namespace
        self._known: dict[str, tuple[_MemberFacts, PoolMember | None, tuple[str, ...]]] = {}

    def matches(self, pod: Pod) -> bool:
        """Whether a pod's labels make it an engine."""
        wanted = self.block.selector
        return bool(wanted) and all(pod.labels.get(key) == value for key, value in wanted.items())

    def discover(self, world: ClusterCache) -> DiscoveredMembers:
        """Current engines."""
        sights, looked_for = self._sights(world)
        known: dict[str, tuple[_MemberFacts, PoolMember | None, tuple[str, ...]]] = {}
        remarks: list[str] = []
        members: list[PoolMember] = []
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
            remarks.append(f"{len(kept)} engines found, limit {MOST} per pool: the rest is left out")
        return DiscoveredMembers(members=tuple(kept[:MOST]), remarks=tuple(sorted(remarks)), pods=looked_for)

    def _sights(self, world: ClusterCache) -> tuple[dict[str, _MemberFacts], frozenset[str]]:
        pods, knows = world.pods(self.namespace), world.knows_pods(self.namespace)
        if self.block.service is None:
            chosen = {name: one for name, one in pods.items() if self.matches(one)}
            by_label = {
                name: _MemberFacts(one, world.node(one.node), None, one.ports, knows)
                for name, one in chosen.items()
                if one.addresses and not one.over
            }
            return by_label, frozenset(chosen)
        sights: dict[str, _MemberFacts] = {}
        ranks: dict[str, tuple[Any, ...]] = {}
        looked_for = set()
        for part, listed in _listed(world.slices(ObjectKey(self.namespace, self.block.service))):
            pod = pods.get(listed.pod) if listed.pod else None
            if listed.pod:
                looked_for.add(listed.pod)
            node = world.node(listed.node or (pod.node if pod is not None else ""))
            sight = _MemberFacts(pod, node, listed, part.ports, knows)
            name = listed.pod or f"{listed.address} {sorted(part.ports.items())}"
            other = sights.setdefault(name, sight)
            if other is sight:
                continue
            # Most have one endpoint and need no comparison.
            best = ranks.setdefault(name, _preference(other))
            if (rank := _preference(sight)) < best:
                sights[name], ranks[name] = sight, rank
        return sights, frozenset(looked_for)

    def _made(self, sight: _MemberFacts) -> tuple[PoolMember | None, tuple[str, ...]]:
        made, remarks = endpoint_entry(self.block, sight.pod, sight.listed, sight.node, sight.ports)
        if made is None:
            return None, remarks
        gone = is_pod_gone(sight.pod, sight.listed, knows_pods=sight.knows_pods)
        pod = sight.pod
        member = PoolMember(
            entry=made,
            pod_state=pod_state(pod, sight.listed, sight.node, knows_pods=sight.knows_pods),
            pod=None
            if pod is None or gone
            else PodRef(namespace=pod.namespace, name=pod.name, uid=pod.uid, has_gate=pod.gated),
            uid=(sight.listed.pod_uid if sight.listed else "") or (pod.uid if pod else ""),
        )
        return member, remarks


def _remembering(sight: _MemberFacts, before: _MemberFacts) -> _MemberFacts:
    """Keep what was known of a pod when contact was lost: a deleted pod must not come back by that."""
    same = sight.pod is before.pod and (sight.listed and sight.listed.pod_uid) == (
        before.listed and before.listed.pod_uid
    )
    return replace(sight, knows_pods=before.knows_pods) if same else sight


def _listed(slices: Iterable[EndpointSlice]) -> Iterator[tuple[EndpointSlice, SliceEndpoint]]:
    return ((part, one) for part in slices for one in part.endpoints)


def _preference(sight: _MemberFacts) -> tuple[Any, ...]:
    """Sort key of a pod's endpoints; the lowest counts.

    The address family comes first: otherwise an engine would change its address whenever one slice is updated
    before the other.
    """
    pod, listed = sight.pod, sight.listed
    assert listed is not None  # noqa: S101 - only endpoints of slices are compared
    primary = pod is not None and listed.address in pod.addresses[:1]
    stale = is_pod_gone(pod, listed, knows_pods=True)
    return stale, not primary, _family(listed.address), listed.terminating, not listed.ready, listed.address


@lru_cache(maxsize=65_536)  # called for every endpoint each time one changes
def _family(address: str) -> int:
    try:
        return ipaddress.ip_address(address).version
    except ValueError:
        return 9  # host names last


def _alone(members: list[PoolMember], remarks: list[str]) -> Iterator[PoolMember]:
    """Members without duplicates of an address and port; the duplicate may be a terminating pod."""
    taken: dict[tuple[Any, Any], PoolMember] = {}
    for one in sorted(
        members,
        key=lambda member: (_RANK[member.pod_state.standing if member.pod_state else None], member.entry.name),
    ):
        first = taken.setdefault((one.entry.address, one.entry.port), one)
        if first is one:
            yield one
        else:
            remarks.append(
                f"{one.entry.name} is left out: {first.entry.name} already uses "
                f"{one.entry.address}:{one.entry.port}"
            )
