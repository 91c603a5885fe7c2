"""Node taints, node conditions and device-plugin messages that mark GPUs as faulty.

Kubernetes defines no such sign, so this lists those in use; operators can replace them. A cordon is not a sign:
it stops scheduling, but does not mean that running pods are broken.

Sources: NVSentinel's integration guide (taints of its rule sets, conditions of its monitors, set only for fatal
faults); AKS' node-problem-detector and the EKS node monitoring agent (their documentation of node conditions);
Kubernetes, "Well-Known Labels, Annotations and Taints". The taint ``nvidia.com/gpu`` is also on healthy nodes: it
keeps other pods away. The GPU operator and NVIDIA's device plugin set no taints; the plugin's device health
reaches the status of the pod (``allocatedResourcesStatus``).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

TAINTS: Final = (
    "nvidia.com/*-error",
    "gpu.health/*",
    "nvlink.health/*",
    "nvswitch.health/*",
    "AggregatedNodeHealth",
    "node.kubernetes.io/out-of-service",
    "node.cloudprovider.kubernetes.io/shutdown",
)
"""Keys of taints with effect NoSchedule or NoExecute."""

CONDITIONS: Final = (
    "Gpu*Watch",
    "SysLogsXIDError",
    "SysLogsSXIDError",
    "SysLogsGPUFallenOff",
    "NVSwitchFatalError",
    "NVSwitchDown",
    "GPUMissing",
    "NVLinkStatusInactive",
    "XIDErrors",
    "AcceleratedHardwareReady=False",
)
"""Condition types that are faults when true, or when equal to the status after ``=``."""

_EFFECTS: Final = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFaultRules:
    """Taint keys and condition types that make the engines of a node unfit; ``*`` matches any text.

    A condition counts while its status is ``True``, or the value after ``=``.
    """

    taints: tuple[str, ...] = TAINTS
    conditions: tuple[str, ...] = CONDITIONS

    def fault(self, taints: Iterable[Mapping[str, Any]], conditions: Iterable[Mapping[str, Any]]) -> str:
        """Faults of the node, e.g. ``has taint nvidia.com/gpu-error``; empty without faults."""
        found = [f"has taint {key}" for key in sorted(self._tainted(taints))]
        found += [f"has condition {said}" for said in sorted(self._conditioned(conditions))]
        return " and ".join(found)

    def _tainted(self, taints: Iterable[Mapping[str, Any]]) -> Iterable[str]:
        for taint in taints:
            key = str(taint.get("key", ""))
            if taint.get("effect") in _EFFECTS and any(fnmatchcase(key, one) for one in self.taints):
                yield key

    def _conditioned(self, conditions: Iterable[Mapping[str, Any]]) -> Iterable[str]:
        for condition in conditions:
            kind, status = str(condition.get("type", "")), condition.get("status")
            for sign in self.conditions:
                pattern, _, bad = sign.partition("=")
                if status == (bad or "True") and fnmatchcase(kind, pattern):
                    yield f"{kind}={bad}" if bad else kind
                    break
