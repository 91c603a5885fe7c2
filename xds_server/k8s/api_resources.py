"""Kubernetes API resources that Switchgear reads or writes, and their paths.

Source: Kubernetes API reference; API concepts, "Resource URIs".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

from policies.document import API_VERSION

GROUP: Final = API_VERSION.partition("/")[0]
VERSION: Final = API_VERSION.partition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiResource:
    """One kind of object; ``group`` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Value of an object's ``apiVersion``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Path of all objects, of a namespace, of one object, or of a subresource (``status``)."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/" + "/".join(quote(part, safe="") for part in parts)


PODS: Final = ApiResource(group="", version="v1", plural="pods", kind="Pod")
NODES: Final = ApiResource(group="", version="v1", plural="nodes", kind="Node", namespaced=False)
EVENTS: Final = ApiResource(group="", version="v1", plural="events", kind="Event")
ENDPOINT_SLICES: Final = ApiResource(
    group="discovery.k8s.io", version="v1", plural="endpointslices", kind="EndpointSlice"
)
LEASES: Final = ApiResource(group="coordination.k8s.io", version="v1", plural="leases", kind="Lease")
ENGINE_POOLS: Final = ApiResource(group=GROUP, version=VERSION, plural="enginepools", kind="EnginePool")
MODEL_ROUTES: Final = ApiResource(group=GROUP, version=VERSION, plural="modelroutes", kind="ModelRoute")
RESILIENCE_POLICIES: Final = ApiResource(
    group=GROUP, version=VERSION, plural="resiliencepolicies", kind="ResiliencePolicy"
)

POLICY_RESOURCES: Final[Mapping[str, ApiResource]] = MappingProxyType(
    {one.kind: one for one in (ENGINE_POOLS, MODEL_ROUTES, RESILIENCE_POLICIES)}
)
"""Custom resources for policy documents, by kind."""
