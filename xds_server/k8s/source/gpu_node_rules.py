"""Which taints and conditions of a node, and which words of a device plugin, say that GPUs are not to be trusted.

Kubernetes itself has no such sign, so this is a list of those that are in use, to be replaced where others are.
A cordon is none: it says that nothing new is to be scheduled, not that what runs there is broken.

Sources: NVSentinel's integration guide (taints of its rule sets, conditions of its monitors, set only for fatal
faults); AKS' node-problem-detector and the EKS node monitoring agent (their documentation of node conditions);
Kubernetes, "Well-Known Labels, Annotations and Taints". The taint ``nvidia.com/gpu`` is on healthy nodes too: it
keeps others off them. The GPU operator and NVIDIA's device plugin taint nothing; the plugin's word on a device
reaches the status of the pod that has it (``allocatedResourcesStatus``).
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
"""Keys of taints, where their effect is NoSchedule or NoExecute."""

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
"""Types of conditions that are bad when true, or the status that is bad behind ``=``."""

_EFFECTS: Final = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFaultRules:
    """Keys of taints, and types of conditions, that make the engines of a node unfit; ``*`` stands for any text.

    A condition counts while its status is ``True``, or what stands behind ``=``.
    """

    taints: tuple[str, ...] = TAINTS
    conditions: tuple[str, ...] = CONDITIONS

    def fault(self, taints: Iterable[Mapping[str, Any]], conditions: Iterable[Mapping[str, Any]]) -> str:
        """What is said of the node, such as ``has taint nvidia.com/gpu-error``; empty when nothing is."""
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
