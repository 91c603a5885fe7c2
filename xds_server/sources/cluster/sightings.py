"""The engines of every ``kubernetes`` block, looked for anew where something moved. Pure: it is fed, and asked.

A change of a pod, a slice or a node touches the blocks that could see it and no others. What comes out are engines
per block, and, for the pools that are served, the cluster's words on them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from policies.discovery import Discovery
from xds_server.fleet import EngineId
from xds_server.fleet.orchestrator import OrchestratorWord
from xds_server.kube.mirror import Key
from xds_server.kube.objects import PodRef
from xds_server.sources.cluster.entry import Entry
from xds_server.sources.cluster.members import Finder, Found
from xds_server.sources.cluster.seen import Node, Pod, Slice
from xds_server.sources.cluster.world import World


class Block(NamedTuple):
    """A ``kubernetes`` block and where it stands: the namespace of its pool, and its JSON."""

    namespace: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What there is to say of the pools that are served; ``uids`` tell engines of one name apart."""

    words: Mapping[EngineId, OrchestratorWord]
    pods: Mapping[EngineId, PodRef]
    uids: Mapping[EngineId, str]


class Sightings:
    """Engines by block; see ``want``, the ``see_`` methods, and ``look``."""

    def __init__(self) -> None:
        self._world = World()
        self._finders: dict[Block, Finder] = {}
        self._found: dict[Block, Found] = {}
        self._moved: set[Block] = set()

    def want(self, blocks: Iterable[Discovery], namespace: str) -> tuple[Block, ...]:
        """Names for these blocks, whose engines are looked for from now on."""
        named = []
        for one in blocks:
            block = Block(namespace, one.model_dump_json())
            if block not in self._finders:
                self._finders[block] = Finder(one, namespace)
                self._moved.add(block)
            named.append(block)
        return tuple(named)

    def keep(self, blocks: Iterable[Block]) -> None:
        """Forget all other blocks."""
        kept = set(blocks)
        for gone in self._finders.keys() - kept:
            del self._finders[gone]
            self._found.pop(gone, None)
            self._moved.discard(gone)

    def see_slices(self, keys: Iterable[Key], slices: Mapping[Key, Slice]) -> None:
        """These slices are as ``slices`` has them; one that it has not is gone."""
        touched = {service for key in keys for service in self._world.see_slice(key, slices.get(key))}
        for block, finder in self._finders.items():
            if finder.block.service is not None and Key(block.namespace, finder.block.service) in touched:
                self._moved.add(block)

    def see_pods(self, keys: Iterable[Key], pods: Mapping[Key, Pod]) -> None:
        """Likewise for pods."""
        changed = [(key, self._world.see_pod(key, pods.get(key)), pods.get(key)) for key in keys]
        for block, finder in self._finders.items():
            named = self._found.get(block, Found()).pods
            for key, *versions in changed:
                if key.namespace == block.namespace and (
                    key.name in named or any(one is not None and finder.looks_for(one) for one in versions)
                ):
                    self._moved.add(block)
                    break

    def see_nodes(self, keys: Iterable[Key], nodes: Mapping[Key, Node]) -> None:
        """Likewise for nodes, which are in no namespace; any block may have engines on them."""
        for key in keys:
            self._world.see_node(key.name, nodes.get(key))
        self._moved.update(self._finders)

    def trust(self, blind: frozenset[str] | None) -> None:
        """Of the pods of these namespaces, or of all when None, nothing can be known at present."""
        if blind != self._world.blind:
            self._world.blind = blind
            self._moved.update(self._finders)

    @property
    def moved(self) -> bool:
        """Whether anything is to be looked for anew."""
        return bool(self._moved)

    def look(self) -> bool:
        """Look where something moved; whether entries became different, or what is odd about them."""
        different = False
        for block in self._moved:
            before = self._found.get(block)
            now = self._found[block] = self._finders[block].found(self._world)
            different = different or before is None or _documented(before) != _documented(now)
        self._moved.clear()
        return different

    def entries(self, block: Block) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
        """The engines of a block when it was last looked, and what was odd about them."""
        return _documented(self._found.get(block, Found()))

    def seen(self, serving: Mapping[str, Block]) -> Seen:
        """What there is to say of these pools."""
        words: dict[EngineId, OrchestratorWord] = {}
        pods: dict[EngineId, PodRef] = {}
        uids: dict[EngineId, str] = {}
        for pool, block in serving.items():
            for member in self._found.get(block, Found()).members:
                key = EngineId(pool, member.entry.name)
                if member.word is not None:
                    words[key] = member.word
                if member.pod is not None:
                    pods[key] = member.pod
                if member.uid:
                    uids[key] = member.uid
        return Seen(words=words, pods=pods, uids=uids)


def _documented(found: Found) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    return tuple(member.entry for member in found.members), found.remarks
