"""Names of the lab's parts in a cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from chaos.faults.target_kind import TargetKind

ZONE_LABEL = "topology.kubernetes.io/zone"
"""Node label for the zone, set by cloud providers. Source: Kubernetes, "Well-Known Labels"."""


def _labels(name: str) -> Mapping[str, str]:
    return MappingProxyType({"app.kubernetes.io/name": name})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNames:
    """Names in one cluster.

    ``engines``, ``proxies`` and ``control_plane`` are pod labels; ``workload`` is the kind of their owner.
    ``engine_container`` and ``agent_container`` are containers of an engine's pod; ``engine_port`` serves
    requests.
    """

    namespace: str = "default"
    engines: Mapping[str, str] = field(default_factory=lambda: _labels("vllm"))
    proxies: Mapping[str, str] = field(default_factory=lambda: _labels("envoy"))
    control_plane: Mapping[str, str] = field(default_factory=lambda: _labels("switchgear"))
    workload: str = "deployment"
    engine_container: str = "vllm"
    agent_container: str = "switchgear-agent"
    engine_port: int = 8000

    def labels(self, aim: TargetKind) -> Mapping[str, str]:
        """Labels of the pods that faults of this aim hit; for zones, those of the engines."""
        return {TargetKind.PROXIES: self.proxies, TargetKind.CONTROL_PLANE: self.control_plane}.get(
            aim, self.engines
        )
