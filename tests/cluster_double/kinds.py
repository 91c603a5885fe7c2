"""The kinds of objects a cluster serves: a few built-in ones, and one for each version of each definition.

What differs between kinds is data here. Only what Switchgear and its tests touch is built in; everything else
comes as a CustomResourceDefinition, as in a cluster.

Source: the strategies of kube-apiserver's registry, and the ``patchMergeKey`` / ``listMapKey`` tags of its types.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from tests.cluster_double.json_object import Object

EMPTY: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind in one version. ``schema`` is that of a custom resource, None for a built-in one.

    ``keys`` names the fields that tell the items of a list apart, by the name of the list; ``typed`` lists omit
    kind and version of their items. ``counts`` says whether ``metadata.generation`` is kept. ``unconditional``
    updates need not say which version they replace.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    has_status: bool = False
    status_at_birth: bool = False
    counts: bool = False
    unconditional: bool = True
    typed: bool = True
    merge_keys: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: EMPTY)
    apply_keys: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: EMPTY)
    selectable: frozenset[str] = frozenset()
    schema: Object | None = None
    columns: tuple[Object, ...] = ()

    @property
    def api_version(self) -> str:
        """As objects have it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def storage(self) -> str:
        """What objects of this kind are kept under, whatever the version."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


_OWNERS: Final = {"ownerReferences": ("uid",), "finalizers": ()}
_CONDITIONS: Final = {"conditions": ("type",)}
_POD_MERGE: Final = {
    **_OWNERS, **_CONDITIONS, "containers": ("name",), "initContainers": ("name",), "volumes": ("name",),
    "env": ("name",), "ports": ("containerPort",), "podIPs": ("ip",), "imagePullSecrets": ("name",),
    "volumeMounts": ("mountPath",),
}  # fmt: skip
_POD_APPLY: Final = {**_POD_MERGE, "ports": ("containerPort", "protocol")}
_NODE_MERGE: Final = {**_OWNERS, **_CONDITIONS, "taints": ("key",), "addresses": ("type",)}
_NODE_APPLY: Final = {**_OWNERS, **_CONDITIONS, "addresses": ("type",)}


def _core(plural: str, kind: str, **said: Any) -> Kind:
    about: dict[str, Any] = {"merge_keys": _OWNERS, "apply_keys": _OWNERS, **said}
    return Kind(group="", version="v1", plural=plural, kind=kind, **about)


NAMESPACES: Final = _core("namespaces", "Namespace", namespaced=False, short=("ns",), has_status=True)
PODS: Final = _core(
    "pods", "Pod", short=("po",), categories=("all",), has_status=True, counts=True, merge_keys=_POD_MERGE,
    apply_keys=_POD_APPLY,
    selectable=frozenset(
        {"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "status.phase",
         "status.podIP", "status.nominatedNodeName", "spec.hostNetwork"}
    ),
)  # fmt: skip
NODES: Final = _core(
    "nodes", "Node", namespaced=False, short=("no",), has_status=True, status_at_birth=True,
    merge_keys=_NODE_MERGE, apply_keys=_NODE_APPLY, selectable=frozenset({"spec.unschedulable"}),
)  # fmt: skip
SERVICES: Final = _core(
    "services", "Service", short=("svc",), categories=("all",), has_status=True,
    merge_keys={**_OWNERS, **_CONDITIONS, "ports": ("port",)},
    apply_keys={**_OWNERS, **_CONDITIONS, "ports": ("port", "protocol")},
    selectable=frozenset({"spec.clusterIP", "spec.type"}),
)  # fmt: skip
EVENTS: Final = _core(
    "events", "Event", short=("ev",),
    selectable=frozenset(
        {"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
         "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason",
         "reportingComponent", "source", "type"}
    ),
)  # fmt: skip
CONFIG_MAPS: Final = _core("configmaps", "ConfigMap", short=("cm",))
SLICES: Final = Kind(
    group="discovery.k8s.io", version="v1", plural="endpointslices", kind="EndpointSlice", counts=True,
    merge_keys=_OWNERS, apply_keys=_OWNERS,
)  # fmt: skip
LEASES: Final = Kind(
    group="coordination.k8s.io", version="v1", plural="leases", kind="Lease", unconditional=False,
    merge_keys=_OWNERS, apply_keys=_OWNERS,
)  # fmt: skip
DEFINITIONS: Final = Kind(
    group="apiextensions.k8s.io", version="v1", plural="customresourcedefinitions",
    kind="CustomResourceDefinition", namespaced=False, short=("crd", "crds"), categories=("api-extensions",),
    has_status=True, counts=True, merge_keys=_OWNERS,
    apply_keys={**_OWNERS, **_CONDITIONS, "versions": ("name",)}, unconditional=False,
)  # fmt: skip
BUILT_IN: Final = (
    NAMESPACES, PODS, NODES, SERVICES, EVENTS, CONFIG_MAPS, SLICES, LEASES, DEFINITIONS
)  # fmt: skip
