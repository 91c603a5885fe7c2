"""What each kind of fault is in Chaos Mesh: which objects, with which fields, and in what they differ.

Source: chaos-mesh/chaos-mesh, ``api/v1alpha1/{podchaos,networkchaos,httpchaos,podhttpchaos,stresschaos,timechaos,
selector}_types.go``.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from chaos.export.pod_labels import ZONE_LABEL, ClusterNames
from chaos.faults.bandwidth import BandwidthFault
from chaos.faults.black_hole import BlackHoleFault
from chaos.faults.clock_skew import ClockSkewFault
from chaos.faults.engine_error import EngineErrorFault
from chaos.faults.fault import Fault, TargetKind
from chaos.faults.latency_fault import LatencyFault
from chaos.faults.loss_fault import LossFault
from chaos.faults.lying_health import LyingHealthFault
from chaos.faults.rolling_restart import RollingRestartFault
from chaos.faults.slow import SlowFault
from chaos.faults.slow_proxy import SlowProxyFault
from chaos.scenario.scenario_model import FaultSpec, ScenarioSpec
from policies.quantity import format_duration

Fields: TypeAlias = Mapping[str, Any]

_ANSWERS: Final = "/v1/*"
_HEALTH: Final = "/health"
_SLOW_HEALTH: Final = "5s"  # as LyingHealth's slow answer
_COMES_BACK: Final = "the kubelet starts it again at once, not when it is healed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosMeshContext:
    """What there is to know besides the fault."""

    spec: ScenarioSpec
    strike: FaultSpec
    cluster: ClusterNames


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosMeshObject:
    """One chaos object: its kind and fields, and in what it differs from the lab's fault. ``chosen`` selects pods
    where those of the target are not the ones.
    """

    kind: str
    fields: Fields
    differs: str = ""
    chosen: Fields | None = None


def pod_selector(cluster: ClusterNames, aim: TargetKind, zone: str | None) -> Fields:
    """The pods that faults of an aim hit, in one zone or everywhere."""
    pods: dict[str, Any] = {"namespaces": [cluster.namespace], "labelSelectors": dict(cluster.labels(aim))}
    return pods | ({"nodeSelectors": {ZONE_LABEL: zone}} if zone else {})


def _all(place: ChaosMeshContext, aim: TargetKind, zone: str | None = None) -> Fields:
    return {"mode": "all", "selector": pod_selector(place.cluster, aim, zone)}


def _gone(_: Fault, __: ChaosMeshContext) -> Iterator[ChaosMeshObject]:
    differs = "the pod is made unavailable; what it held ends as its signal handler decides"
    yield ChaosMeshObject(kind="PodChaos", fields={"action": "pod-failure"}, differs=differs)


def _engine_killed(_: Fault, place: ChaosMeshContext) -> Iterator[ChaosMeshObject]:
    fields = {"action": "container-kill", "containerNames": [place.cluster.engine_container]}
    yield ChaosMeshObject(kind="PodChaos", fields=fields, differs=_COMES_BACK)


def _agent_killed(_: Fault, place: ChaosMeshContext) -> Iterator[ChaosMeshObject]:
    fields = {"action": "container-kill", "containerNames": [place.cluster.agent_container]}
    yield ChaosMeshObject(kind="PodChaos", fields=fields, differs=_COMES_BACK)


def _replaced(_: Fault, __: ChaosMeshContext) -> Iterator[ChaosMeshObject]:
    differs = "it comes back empty only where its state is not on a persistent volume"
    yield ChaosMeshObject(kind="PodChaos", fields={"action": "pod-kill", "gracePeriod": 0}, differs=differs)


def _restarted(fault: RollingRestartFault, _: ChaosMeshContext) -> Iterator[ChaosMeshObject]:
    grace_s = fault.drain_deadline if fault.drain else fault.shutdown_timeout
    yield ChaosMeshObject(
        kind="PodChaos",
        fields={"action": "pod-kill", "gracePeriod": round(grace_s)},
        differs="the pod is deleted; it is drained first only by a preStop hook of yours",
    )


def _on_the_wire(place: ChaosMeshContext, action: str, **fields: Any) -> ChaosMeshObject:
    """A fault of the network between the targets and the proxies, both ways."""
    both = {"direction": "both", "target": _all(place, TargetKind.PROXIES)}
    return ChaosMeshObject(kind="NetworkChaos", fields={"action": action, **fields, **both})


def _latency(fault: LatencyFault, place: ChaosMeshContext) -> Iterator[ChaosMeshObject]:
    delay = {"latency": format_duration(fault.delay), "jitter": format_duration(fault.jitter), "correlation": "0"}
    yield _on_the_wire(place, "delay", delay=delay)


def _loss(fault: LossFault, place: ChaosMeshContext) -> Iterator[ChaosMeshObject]:
    yield _on_the_wire(place, "loss", loss={"loss": f"{fault.percent:g}", "correlation": "0"})


def _bandwidth(fault: BandwidthFault, place: ChaosMeshContext) -> Iterator[ChaosMeshObject]:
    # In its own words "bps means bytes per second"; a queue of a second, and bursts of a tenth.
    rate = max(1, round(fault.bytes_per_second))
    shaped = {"rate": f"{rate}bps", "limit": max(rate, 3000), "buffer": max(rate // 10, 1500)}
    yield _on_the_wire(place, "bandwidth", bandwidth=shaped)


def _black_hole(fault: BlackHoleFault, place: ChaosMeshContext) -> Iterator[ChaosMeshObject]:
    yield _on_the_wire(place, "partition")
    if fault.agent:
        target = _all(place, TargetKind.CONTROL_PLANE)
        fields = {"action": "partition", "direction": "both", "target": target}
        yield ChaosMeshObject(kind="NetworkChaos", fields=fields)


def _partition(_: Fault, place: ChaosMeshContext) -> Iterator[ChaosMeshObject]:
    """The zone's engines from other zones' proxies, its proxies from their engines, all from the control plane."""
    zone = place.strike.target.zone
    others = [one for one in place.spec.topology.zones if one != zone]
    for inside, outside in ((TargetKind.ENGINES, TargetKind.PROXIES), (TargetKind.PROXIES, TargetKind.ENGINES)):
        for other in others:
            target = _all(place, outside, other)
            fields = {"action": "partition", "direction": "both", "target": target}
            yield ChaosMeshObject(kind="NetworkChaos", fields=fields, chosen=_all(place, inside, zone))
        target = _all(place, TargetKind.CONTROL_PLANE)
        fields = {"action": "partition", "direction": "both", "target": target}
        yield ChaosMeshObject(kind="NetworkChaos", fields=fields, chosen=_all(place, inside, zone))


def _http(place: ChaosMeshContext, side: str, path: str, **action: Any) -> Fields:
    return {"target": side, "port": place.cluster.engine_port, "path": path, **action}


def _reset(_: Fault, place: ChaosMeshContext) -> Iterator[ChaosMeshObject]:
    differs = "each request is aborted as it comes; connections that are open are left"
    yield ChaosMeshObject(kind="HTTPChaos", fields=_http(place, "Request", _ANSWERS, abort=True), differs=differs)


def _error(fault: EngineErrorFault, place: ChaosMeshContext) -> Iterator[ChaosMeshObject]:
    differs = "" if fault.share == 1 else f"every answer is replaced, not {100 * fault.share:g} in a hundred"
    fields = _http(place, "Response", _ANSWERS, replace={"code": fault.status})
    yield ChaosMeshObject(kind="HTTPChaos", fields=fields, differs=differs)


def _hang(_: Fault, place: ChaosMeshContext) -> Iterator[ChaosMeshObject]:
    delay = format_duration(place.strike.lasts)
    yield ChaosMeshObject(
        kind="HTTPChaos",
        fields=_http(place, "Request", _ANSWERS, delay=delay),
        differs="requests are held in front of the engine; its GPU goes on, and its metrics say that it is idle",
    )


def _slow(fault: SlowFault, place: ChaosMeshContext) -> Iterator[ChaosMeshObject]:
    more_s = (fault.factor - 1) * place.spec.topology.service_time
    yield ChaosMeshObject(
        kind="HTTPChaos",
        fields=_http(place, "Request", _ANSWERS, delay=format_duration(round(more_s, 3))),
        differs="the same delay for every request, in front of the engine; set it by your own service time",
    )


def _health(fault: LyingHealthFault, place: ChaosMeshContext) -> Iterator[ChaosMeshObject]:
    if fault.health == "fail":
        yield ChaosMeshObject(kind="HTTPChaos", fields=_http(place, "Response", _HEALTH, replace={"code": 503}))
    else:
        yield ChaosMeshObject(kind="HTTPChaos", fields=_http(place, "Response", _HEALTH, delay=_SLOW_HEALTH))


def _slow_proxy(fault: SlowProxyFault, _: ChaosMeshContext) -> Iterator[ChaosMeshObject]:
    differs = "CPU is taken by others, who may leave more or less than meant"
    if fault.config_delay:
        differs += "; configuration comes when it comes"
    cpu = {"workers": 1, "load": round(100 * fault.stopped_share)}
    yield ChaosMeshObject(kind="StressChaos", fields={"stressors": {"cpu": cpu}}, differs=differs)


def _clock_skew(fault: ClockSkewFault, place: ChaosMeshContext) -> Iterator[ChaosMeshObject]:
    sign = "" if fault.direction == "ahead" else "-"
    offset = f"{sign}{format_duration(fault.offset)}"
    fields = {"timeOffset": offset, "containerNames": [place.cluster.agent_container]}
    yield ChaosMeshObject(kind="TimeChaos", fields=fields)


CHAOS_MESH_MAPPINGS: Final[Mapping[str, Callable[[Any, ChaosMeshContext], Iterator[ChaosMeshObject]]]] = (
    MappingProxyType(
        {
            "agent_killed": _agent_killed,
            "bandwidth": _bandwidth,
            "black_hole": _black_hole,
            "clock_skew": _clock_skew,
            "control_plane_killed": _gone,
            "control_plane_restarted_empty": _replaced,
            "crash": _gone,
            "engine_error": _error,
            "hang": _hang,
            "latency": _latency,
            "loss": _loss,
            "lying_health": _health,
            "oom_kill": _engine_killed,
            "partition": _partition,
            "reset": _reset,
            "rolling_restart": _restarted,
            "slow": _slow,
            "slow_proxy": _slow_proxy,
            "zone_loss": _gone,
        }
    )
)
"""By kind; what is not here has its reason in ``why_not``."""
