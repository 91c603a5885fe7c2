"""What a fault becomes in the chaos tools of a cluster, Chaos Mesh and Litmus, and the pieces that faults share.

Each kind of fault declares its own objects and experiments, or why there are none.

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

INSIDE_ENGINE: Final = "it happens inside the engine; only a simulated one can be told to"
NEEDS_GPU_DOUBLE: Final = "it needs the NVML double of the lab: nothing makes a sound GPU report this"
NEEDS_SIGSTOP: Final = "no fault stops a process without killing it (SIGSTOP)"
DONE_BY_CALLERS: Final = "it is what callers do: tell your load generator"
ON_XDS_STREAM: Final = (
    "it changes what is said on a stream of the control plane; the lab's wiretap can, a cluster has none"
)

ANSWERS_PATH: Final = "/v1/*"
HEALTH_PATH: Final = "/health"
_RESTARTED_AT_ONCE: Final = "the kubelet starts it again at once, not when it is healed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterContext:
    """What a manifest needs besides the fault: names, the target's zone among all, times.

    ``turn_s`` is how long one target has the fault: ``lasts_s``, or its part where targets take turns.
    """

    cluster: ClusterNames
    zone: str | None
    zones: tuple[str, ...]
    lasts_s: float
    turn_s: float
    service_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosMeshObject:
    """One chaos object: its kind and fields, and in what it differs from the lab's fault.

    ``chosen`` selects other pods than those of the target.
    """

    kind: str
    fields: Fields
    differs: str = ""
    chosen: Fields | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LitmusExperiment:
    """One experiment of Litmus: its name, its environment, and in what it differs from the lab's fault."""

    experiment: str
    env: Env
    differs: str = ""


def pod_selector(cluster: ClusterNames, aim: TargetKind, zone: str | None) -> Fields:
    """The pods that faults of an aim hit, in one zone or everywhere."""
    pods: dict[str, Any] = {"namespaces": [cluster.namespace], "labelSelectors": dict(cluster.labels(aim))}
    return pods | ({"nodeSelectors": {ZONE_LABEL: zone}} if zone else {})


def all_pods(cluster: ClusterNames, aim: TargetKind, zone: str | None = None) -> Fields:
    """The same as the target of a Chaos Mesh object."""
    return {"mode": "all", "selector": pod_selector(cluster, aim, zone)}


# -- Chaos Mesh ------------------------------------------------------------------------------------------------


def pod_unavailable() -> ChaosMeshObject:
    """The pod is gone until the fault ends."""
    differs = "the pod is made unavailable; what it held ends as its signal handler decides"
    return ChaosMeshObject(kind="PodChaos", fields={"action": "pod-failure"}, differs=differs)


def container_killed(container: str) -> ChaosMeshObject:
    """SIGKILL of one container."""
    fields = {"action": "container-kill", "containerNames": [container]}
    return ChaosMeshObject(kind="PodChaos", fields=fields, differs=_RESTARTED_AT_ONCE)


def network_chaos(context: ClusterContext, action: str, **fields: Any) -> ChaosMeshObject:
    """A fault of the network between the targets and the proxies, both ways."""
    both = {"direction": "both", "target": all_pods(context.cluster, TargetKind.PROXIES)}
    return ChaosMeshObject(kind="NetworkChaos", fields={"action": action, **fields, **both})


def partitioned(target: Fields, chosen: Fields | None = None) -> ChaosMeshObject:
    """Nothing passes between these pods, either way."""
    fields = {"action": "partition", "direction": "both", "target": target}
    return ChaosMeshObject(kind="NetworkChaos", fields=fields, chosen=chosen)


def http_chaos(
    context: ClusterContext, side: str, path: str, *, differs: str = "", **action: Any
) -> ChaosMeshObject:
    """A fault of requests to an engine, or of its responses."""
    fields = {"target": side, "port": context.cluster.engine_port, "path": path, **action}
    return ChaosMeshObject(kind="HTTPChaos", fields=fields, differs=differs)


# -- Litmus ----------------------------------------------------------------------------------------------------


def pod_deleted(context: ClusterContext) -> LitmusExperiment:
    """The pod is deleted."""
    return LitmusExperiment(
        experiment="pod-delete",
        env={"FORCE": "true", "CHAOS_INTERVAL": str(max(1, round(context.lasts_s)))},
        differs="its controller starts another pod at once, not when it is healed",
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
    """Every request is late."""
    env = litmus_http(context, LATENCY=f"{1000 * seconds:.0f}", TOXICITY="100")
    return LitmusExperiment(
        experiment="pod-http-latency", env=env, differs=f"{differs}; /health and /metrics are late, too"
    )
