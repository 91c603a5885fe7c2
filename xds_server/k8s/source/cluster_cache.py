"""What is known of pods, nodes and EndpointSlices, so ordered that the engines of a pool are found quickly."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from xds_server.k8s.object_store import ObjectKey
from xds_server.k8s.source.cluster_objects import EndpointSlice, KubeNode, Pod

_NO_PODS: Final[Mapping[str, Pod]] = MappingProxyType({})


class ClusterCache:
    """Everything seen. ``unobservable`` are the namespaces of whose pods nothing can be known now: there, one
    that is missing may well exist.
    """

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self.unobservable: frozenset[str] | None = frozenset()
        self._slices: dict[ObjectKey, EndpointSlice] = {}
        self._services: dict[ObjectKey, dict[str, EndpointSlice]] = {}
        self._pods: dict[str, dict[str, Pod]] = {}
        self._nodes: dict[str, KubeNode] = {}

    def set_slice(self, key: ObjectKey, one: EndpointSlice | None) -> frozenset[ObjectKey]:
        """A slice as it is now, None when there is none; the Services whose endpoints it touches."""
        before = self._slices.pop(key, None)
        touched = set()
        if before is not None:
            service = ObjectKey(key.namespace, before.service)
            touched.add(service)
            self._services[service].pop(key.name, None)
        if one is not None:
            service = ObjectKey(key.namespace, one.service)
            touched.add(service)
            self._slices[key] = one
            self._services.setdefault(service, {})[key.name] = one
        return frozenset(touched)

    def set_pod(self, key: ObjectKey, one: Pod | None) -> Pod | None:
        """A pod as it is now, None when there is none; what it was before."""
        pods = self._pods.setdefault(key.namespace, {})
        before = pods.pop(key.name, None)
        if one is not None:
            pods[key.name] = one
        return before

    def set_node(self, name: str, one: KubeNode | None) -> None:
        """A node as it is now, None when there is none."""
        if one is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = one

    def slices(self, service: ObjectKey) -> Iterable[EndpointSlice]:
        """The slices of a Service, in the order of their names."""
        of = self._services.get(service, {})
        return (of[name] for name in sorted(of))

    def pods(self, namespace: str) -> Mapping[str, Pod]:
        """The pods of a namespace by name."""
        return self._pods.get(namespace, _NO_PODS)

    def node(self, name: str) -> KubeNode | None:
        """A node."""
        return self._nodes.get(name)

    def knows_pods(self, namespace: str) -> bool:
        """Whether a pod that is not there does not exist."""
        return self.unobservable is not None and namespace not in self.unobservable
