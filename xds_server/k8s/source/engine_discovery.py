"""Engines of every ``kubernetes`` block, rediscovered where something changed. Pure.

A change of a pod, slice or node affects only the blocks it can match. The results are engines per block and, for
served pools, their pod states.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from policies.discovery import Discovery
from xds_server.k8s.object_store import ObjectKey
from xds_server.k8s.source.cluster_cache import ClusterCache
from xds_server.k8s.source.cluster_objects import EndpointSlice, KubeNode, Pod
from xds_server.k8s.source.endpoint_entry import EndpointEntry
from xds_server.k8s.source.pool_members import DiscoveredMembers, MemberDiscovery
from xds_server.model.fleet import EngineId
from xds_server.model.pod_state import PodRef, PodState


class DiscoveryBlock(NamedTuple):
    """A ``kubernetes`` block: the namespace of its pool, and its JSON."""

    namespace: str
    spec_json: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveredEngines:
    """Engines of the served pools; ``uids`` distinguish engines of one name."""

    pod_states: Mapping[EngineId, PodState]
    pods: Mapping[EngineId, PodRef]
    uids: Mapping[EngineId, str]


class EngineDiscovery:
    """Engines by block; see ``track``, the ``on_`` methods, and ``refresh``."""

    def __init__(self) -> None:
        self._world = ClusterCache()
        self._finders: dict[DiscoveryBlock, MemberDiscovery] = {}
        self._found: dict[DiscoveryBlock, DiscoveredMembers] = {}
        self._moved: set[DiscoveryBlock] = set()

    def track(self, blocks: Iterable[Discovery], namespace: str) -> tuple[DiscoveryBlock, ...]:
        """Start discovery for these blocks; returns their keys."""
        named = []
        for one in blocks:
            block = DiscoveryBlock(namespace, one.model_dump_json())
            if block not in self._finders:
                self._finders[block] = MemberDiscovery(one, namespace)
                self._moved.add(block)
            named.append(block)
        return tuple(named)

    def retain(self, blocks: Iterable[DiscoveryBlock]) -> None:
        """Forget all other blocks."""
        kept = set(blocks)
        for gone in self._finders.keys() - kept:
            del self._finders[gone]
            self._found.pop(gone, None)
            self._moved.discard(gone)

    def on_slices(self, keys: Iterable[ObjectKey], slices: Mapping[ObjectKey, EndpointSlice]) -> None:
        """Update these slices; those missing in ``slices`` are deleted."""
        touched = {service for key in keys for service in self._world.set_slice(key, slices.get(key))}
        for block, finder in self._finders.items():
            if finder.block.service is not None and ObjectKey(block.namespace, finder.block.service) in touched:
                self._moved.add(block)

    def on_pods(self, keys: Iterable[ObjectKey], pods: Mapping[ObjectKey, Pod]) -> None:
        """Update these pods in the same way."""
        changed = [(key, self._world.set_pod(key, pods.get(key)), pods.get(key)) for key in keys]
        for block, finder in self._finders.items():
            named = self._found.get(block, DiscoveredMembers()).pods
            for key, *versions in changed:
                if key.namespace == block.namespace and (
                    key.name in named or any(one is not None and finder.matches(one) for one in versions)
                ):
                    self._moved.add(block)
                    break

    def on_nodes(self, keys: Iterable[ObjectKey], nodes: Mapping[ObjectKey, KubeNode]) -> None:
        """Update these nodes; they are cluster-scoped, so any block may have engines on them."""
        for key in keys:
            self._world.set_node(key.name, nodes.get(key))
        self._moved.update(self._finders)

    def set_unobservable(self, blind: frozenset[str] | None) -> None:
        """Mark the pods of these namespaces (None: all) as not observable."""
        if blind != self._world.unobservable:
            self._world.unobservable = blind
            self._moved.update(self._finders)

    @property
    def refresh_due(self) -> bool:
        """Whether a block must be rediscovered."""
        return bool(self._moved)

    def refresh(self) -> bool:
        """Rediscover changed blocks; returns whether entries or remarks changed."""
        different = False
        for block in self._moved:
            before = self._found.get(block)
            now = self._found[block] = self._finders[block].discover(self._world)
            different = different or before is None or _documented(before) != _documented(now)
        self._moved.clear()
        return different

    def entries(self, block: DiscoveryBlock) -> tuple[tuple[EndpointEntry, ...], tuple[str, ...]]:
        """Engines of a block at the last discovery, and remarks about them."""
        return _documented(self._found.get(block, DiscoveredMembers()))

    def discovered(self, serving: Mapping[str, DiscoveryBlock]) -> DiscoveredEngines:
        """Engines of these pools: pod states, pods and uids."""
        pod_states: dict[EngineId, PodState] = {}
        pods: dict[EngineId, PodRef] = {}
        uids: dict[EngineId, str] = {}
        for pool, block in serving.items():
            for member in self._found.get(block, DiscoveredMembers()).members:
                key = EngineId(pool, member.entry.name)
                if member.pod_state is not None:
                    pod_states[key] = member.pod_state
                if member.pod is not None:
                    pods[key] = member.pod
                if member.uid:
                    uids[key] = member.uid
        return DiscoveredEngines(pod_states=pod_states, pods=pods, uids=uids)


def _documented(found: DiscoveredMembers) -> tuple[tuple[EndpointEntry, ...], tuple[str, ...]]:
    return tuple(member.entry for member in found.members), found.remarks
