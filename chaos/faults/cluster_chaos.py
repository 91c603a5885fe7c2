"""Faults as Chaos Mesh objects and Litmus experiments, with the helpers that faults share.

Each fault defines its own objects and experiments, or the reason why there are none.

Source: chaos-mesh/chaos-mesh, ``api/v1alpha1/{podchaos,networkchaos,httpchaos,podhttpchaos,stresschaos,timechaos,
selector}_types.go``; litmuschaos/chaos-charts, ``faults/kubernetes/*/fault.yaml``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from chaos.faults.pod_labels import ZONE_LABEL, ClusterNames
from chaos.faults.target_kind import TargetKind

Fields: TypeAlias = Mapping[str, Any]
Env: TypeAlias = Mapping[str, str]

INSIDE_ENGINE: Final = "it happens inside the engine; only a simulated engine can do it"
NEEDS_GPU_DOUBLE: Final = "it needs the lab's NVML double; a healthy GPU cannot be made to report this"
NEEDS_SIGSTOP: Final = "no chaos tool sends SIGSTOP"
DONE_BY_CALLERS: Final = "it is caller behaviour; use your load generator"
ON_XDS_STREAM: Final = "it changes messages on an xDS stream; only the lab's xDS tap can"

ANSWERS_PATH: Final = "/v1/*"
HEALTH_PATH: Final = "/health"
_RESTARTED_AT_ONCE: Final = "the kubelet restarts it at once, not at healing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterContext:
    """Context of a manifest: names, zones and times.

    ``turn_s`` is how long each target has the fault: ``lasts_s``, or its part with inTurn.
    """

    cluster: ClusterNames
    zone: str | None
    zones: tuple[str, ...]
    lasts_s: float
    turn_s: float
    service_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosMeshObject:
    """One Chaos Mesh object: its kind and fields, and how it differs from the lab's fault.

    ``chosen`` selects pods other than the target's.
    """

    kind: str
    fields: Fields
    differs: str = ""
    chosen: Fields | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LitmusExperiment:
    """One Litmus experiment: its name and environment, and how it differs from the lab's fault."""

    experiment: str
    env: Env
    differs: str = ""


def pod_selector(cluster: ClusterNames, aim: TargetKind, zone: str | None) -> Fields:
    """Selector of the pods that faults of an aim hit, in one zone or all."""
    pods: dict[str, Any] = {"namespaces": [cluster.namespace], "labelSelectors": dict(cluster.labels(aim))}
    return pods | ({"nodeSelectors": {ZONE_LABEL: zone}} if zone else {})


def all_pods(cluster: ClusterNames, aim: TargetKind, zone: str | None = None) -> Fields:
    """The same pods as the target of a Chaos Mesh object."""
    return {"mode": "all", "selector": pod_selector(cluster, aim, zone)}


# -- Chaos Mesh ------------------------------------------------------------------------------------------------


def pod_unavailable() -> ChaosMeshObject:
    """The pod is unavailable until the fault ends."""
    differs = "the pod is made unavailable; its signal handler decides how running requests end"
    return ChaosMeshObject(kind="PodChaos", fields={"action": "pod-failure"}, differs=differs)


def container_killed(container: str) -> ChaosMeshObject:
    """SIGKILL of one container."""
    fields = {"action": "container-kill", "containerNames": [container]}
    return ChaosMeshObject(kind="PodChaos", fields=fields, differs=_RESTARTED_AT_ONCE)


def network_chaos(context: ClusterContext, action: str, **fields: Any) -> ChaosMeshObject:
    """A network fault between the targets and the proxies, in both directions."""
    both = {"direction": "both", "target": all_pods(context.cluster, TargetKind.PROXIES)}
    return ChaosMeshObject(kind="NetworkChaos", fields={"action": action, **fields, **both})


def partitioned(target: Fields, chosen: Fields | None = None) -> ChaosMeshObject:
    """A full partition between these pods, in both directions."""
    fields = {"action": "partition", "direction": "both", "target": target}
    return ChaosMeshObject(kind="NetworkChaos", fields=fields, chosen=chosen)


def http_chaos(
    context: ClusterContext, side: str, path: str, *, differs: str = "", **action: Any
) -> ChaosMeshObject:
    """A fault of an engine's HTTP requests or responses."""
    fields = {"target": side, "port": context.cluster.engine_port, "path": path, **action}
    return ChaosMeshObject(kind="HTTPChaos", fields=fields, differs=differs)


# -- Litmus ----------------------------------------------------------------------------------------------------


def pod_deleted(context: ClusterContext) -> LitmusExperiment:
    """The pod is deleted."""
    return LitmusExperiment(
        experiment="pod-delete",
        env={"FORCE": "true", "CHAOS_INTERVAL": str(max(1, round(context.lasts_s)))},
        differs="its controller starts another pod at once, not at healing",
    )


def litmus_container_killed(container: str, context: ClusterContext) -> LitmusExperiment:
    """SIGKILL of one container."""
    return LitmusExperiment(
        experiment="container-kill",
        env={
            "TARGET_CONTAINER": container,
            "SIGNAL": "SIGKILL",
            "CHAOS_INTERVAL": str(max(1, round(context.lasts_s))),
        },
        differs=_RESTARTED_AT_ONCE,
    )


def litmus_http(context: ClusterContext, **env: str) -> Env:
    """The environment of an HTTP experiment."""
    return {"TARGET_SERVICE_PORT": str(context.cluster.engine_port), **env}


def litmus_http_latency(context: ClusterContext, seconds: float, differs: str) -> LitmusExperiment:
    """A delay for every request."""
    env = litmus_http(context, LATENCY=f"{1000 * seconds:.0f}", TOXICITY="100")
    return LitmusExperiment(
        experiment="pod-http-latency", env=env, differs=f"{differs}; /health and /metrics are delayed too"
    )
