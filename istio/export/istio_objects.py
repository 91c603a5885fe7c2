"""Where exported objects live, how they are called, and the few forms of values that Istio takes.

Names are stable: they follow from the policies' own, and one that is too long, or no name to Kubernetes, is cut
and gets a digest, so that no two meet.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from policies.document import Metadata
from policies.model import PolicySet

Object: TypeAlias = dict[str, object]

NETWORKING: Final = "networking.istio.io/v1"
FILTERS: Final = "networking.istio.io/v1alpha3"
"""EnvoyFilter has never left it."""

POLICY_ANNOTATION: Final = "switchgear.dev/policy"
DIGEST_ANNOTATION: Final = "switchgear.dev/digest"
MANAGED_BY: Final = ("app.kubernetes.io/managed-by", "switchgear")

LARGEST_INT32: Final = 2**31 - 1
"""Istio counts in int32 where Envoy has uint32."""

_LONGEST_NAME: Final = 63
_NO_NAME: Final = re.compile(r"[^a-z0-9-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class IstioTarget:
    """Where the objects go and who uses them.

    ``namespace`` is for documents that name none. EnvoyFilters go to ``filter_namespace``: in the mesh's root
    namespace they reach every proxy, elsewhere only those of that namespace. With ``gateway``
    (``NAMESPACE/NAME``) requests come through that gateway, else from sidecars. ``host`` is what callers ask for;
    empty means a name of its own for each port. ``proxies`` share the ceilings. ``live``: engines of the cluster
    serve only while ``switchgear istio run`` labels them so; those outside of it carry the label from the start.
    """

    namespace: str = "default"
    host_suffix: str = "svc.cluster.local"
    filter_namespace: str = "istio-system"
    gateway: str = ""
    host: str = ""
    proxies: int = 1
    telemetry: bool = True
    live: bool = False

    def of(self, metadata: Metadata) -> str:
        """The namespace of a document's objects."""
        return metadata.namespace or self.namespace

    def service(self, name: str, namespace: str) -> str:
        """The host of a service."""
        return f"{name}.{namespace}.{self.host_suffix}"

    @property
    def context(self) -> str:
        """Which proxies' configuration is patched."""
        return "GATEWAY" if self.gateway else "SIDECAR_OUTBOUND"


def object_name(*parts: str) -> str:
    """``parts`` joined to a DNS-1123 label; with a digest where that would lose something."""
    said = "-".join(parts)
    plain = _NO_NAME.sub("-", said.lower()).strip("-")
    if plain == said and len(said) <= _LONGEST_NAME:
        return said
    digest = hashlib.sha256(said.encode()).hexdigest()[:8]
    return f"{plain[: _LONGEST_NAME - 9].strip('-')}-{digest}".strip("-")


def istio_object(
    kind: str,
    name: str,
    namespace: str,
    spec: Object,
    *,
    policies: PolicySet,
    of: Sequence[str],
    version: str = NETWORKING,
) -> Object:
    """An object annotated with its source documents (``Kind/name``) and the digest of all policies."""
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict([MANAGED_BY]),
            "annotations": {POLICY_ANNOTATION: ",".join(of), DIGEST_ANNOTATION: policies.digest},
        },
        "spec": spec,
    }


def with_annotation(one: Object, annotation: str, text: str) -> Object:
    """The object with a further annotation."""
    metadata = one["metadata"]
    if not isinstance(metadata, dict):
        raise TypeError("an object without metadata")
    annotations = {**metadata["annotations"], annotation: text}
    return {**one, "metadata": {**metadata, "annotations": annotations}}


def governed_by(policies: PolicySet, pool: str) -> tuple[str, ...]:
    """The pool and the policies that are laid over each other for it, as ``Kind/name``."""
    return (f"EnginePool/{pool}", *(f"ResiliencePolicy/{name}" for name in policies.layers.get(pool, ())))


def istio_duration(seconds: float) -> str:
    """A duration as Istio's API takes it: at least a millisecond, and no finer than that."""
    return envoy_duration(max(1, round(seconds * 1000)) / 1000)


def envoy_duration(seconds: float) -> str:
    """A duration as Envoy's JSON has it: seconds with up to nine decimals."""
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"
