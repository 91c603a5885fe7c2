"""What is known of pods, nodes and EndpointSlices, so ordered that the engines of a pool are found quickly."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from xds_server.kube.mirror import Key
from xds_server.sources.cluster.seen import Node, Pod, Slice

_NO_PODS: Final[Mapping[str, Pod]] = MappingProxyType({})


class World:
    """Everything seen. ``blind`` are the namespaces of whose pods nothing can be known now: there, one that is
    missing may well exist.
    """

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self.blind: frozenset[str] | None = frozenset()
        self._slices: dict[Key, Slice] = {}
        self._services: dict[Key, dict[str, Slice]] = {}
        self._pods: dict[str, dict[str, Pod]] = {}
        self._nodes: dict[str, Node] = {}

    def see_slice(self, key: Key, one: Slice | None) -> frozenset[Key]:
        """A slice as it is now, None when there is none; the Services whose endpoints it touches."""
        before = self._slices.pop(key, None)
        touched = set()
        if before is not None:
            service = Key(key.namespace, before.service)
            touched.add(service)
            self._services[service].pop(key.name, None)
        if one is not None:
            service = Key(key.namespace, one.service)
            touched.add(service)
            self._slices[key] = one
            self._services.setdefault(service, {})[key.name] = one
        return frozenset(touched)

    def see_pod(self, key: Key, one: Pod | None) -> Pod | None:
        """A pod as it is now, None when there is none; what it was before."""
        pods = self._pods.setdefault(key.namespace, {})
        before = pods.pop(key.name, None)
        if one is not None:
            pods[key.name] = one
        return before

    def see_node(self, name: str, one: Node | None) -> None:
        """A node as it is now, None when there is none."""
        if one is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = one

    def slices(self, service: Key) -> Iterable[Slice]:
        """The slices of a Service, in the order of their names."""
        of = self._services.get(service, {})
        return (of[name] for name in sorted(of))

    def pods(self, namespace: str) -> Mapping[str, Pod]:
        """The pods of a namespace by name."""
        return self._pods.get(namespace, _NO_PODS)

    def node(self, name: str) -> Node | None:
        """A node."""
        return self._nodes.get(name)

    def knows_pods(self, namespace: str) -> bool:
        """Whether a pod that is not there does not exist."""
        return self.blind is not None and namespace not in self.blind
