"""Where exported objects live, and the few forms of values that the Gateway API takes."""

from dataclasses import dataclass
from typing import Final

from istio.export.istio_objects import IstioTarget, Object
from policies.document import Metadata

ROUTES: Final = "gateway.networking.k8s.io"
INFERENCE: Final = "inference.networking.k8s.io"
ENVOY_GATEWAY: Final = "gateway.envoyproxy.io"

_LARGEST_UNITS: Final = 99_999
"""GEP-2257: at most five digits for each unit, and at most four units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayTarget:
    """Where the objects go and who serves them.

    ``namespace`` is for documents that name none. ``gateway`` and ``gateway_namespace`` name the Gateway that
    routes are attached to; it is not written. ``picker`` is the Service of the endpoint picker of a pool, with
    ``{pool}`` in it, as every InferencePool needs one. ``proxies`` share the ceilings. ``plain``: nothing of Envoy
    Gateway's. ``experimental``: the cluster has the experimental channel's CRDs, which ``plain`` retries need.
    """

    namespace: str = "default"
    gateway: str = "switchgear"
    gateway_namespace: str = "default"
    picker: str = "{pool}-epp"
    picker_port: int = 9002
    proxies: int = 1
    plain: bool = False
    experimental: bool = False

    def of(self, metadata: Metadata) -> str:
        """The namespace of a document's objects."""
        return metadata.namespace or self.namespace

    @property
    def istio_target(self) -> IstioTarget:
        """The same for what exports have in common."""
        return IstioTarget(namespace=self.namespace, proxies=self.proxies)


def gateway_duration(seconds: float) -> str:
    """A duration of the Gateway API: whole milliseconds, at least one unless it is 0.

    Source: GEP-2257, ``([0-9]{1,5}(h|m|s|ms)){1,4}``.
    """
    rest = max(1, round(seconds * 1000)) if seconds else 0
    parts = []
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count = min(rest // size, _LARGEST_UNITS)
        rest -= count * size
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def object_reference(group: str, kind: str, name: str) -> Object:
    """As objects name each other."""
    return {"group": group, "kind": kind, "name": name}
