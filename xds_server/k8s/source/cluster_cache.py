"""Known pods, nodes and EndpointSlices, indexed to find the engines of a pool quickly."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from xds_server.k8s.object_store import ObjectKey
from xds_server.k8s.source.cluster_objects import EndpointSlice, KubeNode, Pod

_NO_PODS: Final[Mapping[str, Pod]] = MappingProxyType({})


class ClusterCache:
    """All known objects. ``unobservable``: namespaces whose pods cannot be read now, where a missing pod may
    exist.
    """

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self.unobservable: frozenset[str] | None = frozenset()
        self._slices: dict[ObjectKey, EndpointSlice] = {}
        self._services: dict[ObjectKey, dict[str, EndpointSlice]] = {}
        self._pods: dict[str, dict[str, Pod]] = {}
        self._nodes: dict[str, KubeNode] = {}

    def set_slice(self, key: ObjectKey, one: EndpointSlice | None) -> frozenset[ObjectKey]:
        """Set a slice (None: deleted); returns the Services whose endpoints changed."""
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
        """Set a pod (None: deleted); returns the previous one."""
        pods = self._pods.setdefault(key.namespace, {})
        before = pods.pop(key.name, None)
        if one is not None:
            pods[key.name] = one
        return before

    def set_node(self, name: str, one: KubeNode | None) -> None:
        """Set a node (None: deleted)."""
        if one is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = one

    def slices(self, service: ObjectKey) -> Iterable[EndpointSlice]:
        """Slices of a Service, ordered by name."""
        of = self._services.get(service, {})
        return (of[name] for name in sorted(of))

    def pods(self, namespace: str) -> Mapping[str, Pod]:
        """Pods of a namespace by name."""
        return self._pods.get(namespace, _NO_PODS)

    def node(self, name: str) -> KubeNode | None:
        """A node."""
        return self._nodes.get(name)

    def knows_pods(self, namespace: str) -> bool:
        """Whether a missing pod does not exist."""
        return self.unobservable is not None and namespace not in self.unobservable
