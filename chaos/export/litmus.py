"""A scenario as ChaosEngines of Litmus, one for each fault, all applied at the same moment.

Experiments and their environment are those of litmuschaos/chaos-charts (``faults/kubernetes/*/fault.yaml``). An
engine begins when it is applied; ``RAMP_TIME``, the wait before (and after) the injection, is what puts faults
on a timeline.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from chaos.export.manifest_export import (
    ManifestExport,
    ManifestRemark,
    object_name,
    scenario_remarks,
    target_remarks,
    unmapped_faults,
)
from chaos.export.pod_labels import ZONE_LABEL, ClusterNames
from chaos.export.unsupported_faults import LITMUS_LACKS, UNSUPPORTED
from chaos.faults.bandwidth import BandwidthFault
from chaos.faults.engine_error import EngineErrorFault
from chaos.faults.fault import Fault
from chaos.faults.latency_fault import LatencyFault
from chaos.faults.loss_fault import LossFault
from chaos.faults.rolling_restart import RollingRestartFault
from chaos.faults.slow import SlowFault
from chaos.faults.slow_proxy import SlowProxyFault
from chaos.scenario.fault_timeline import fault_name
from chaos.scenario.placement import selected_targets
from chaos.scenario.scenario_model import FaultSpec, Scenario, ScenarioSpec

Env: TypeAlias = Mapping[str, str]

_STATUSES: Final = (500, 501, 502, 503, 504)
"""Those of pod-http-status-code that a fault of ours may answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LitmusExperiment:
    """One experiment of Litmus: its name, what is set, and in what it differs from the lab's fault."""

    experiment: str
    env: Env
    differs: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LitmusContext:
    """What there is to know besides the fault."""

    spec: ScenarioSpec
    strike: FaultSpec
    cluster: ClusterNames


def litmus(scenario: Scenario, cluster: ClusterNames | None = None) -> ManifestExport:
    """One ChaosEngine for each fault that maps, and what they do not say."""
    names = cluster or ClusterNames()
    spec = scenario.spec
    manifests: list[Mapping[str, Any]] = []
    remarks = list(scenario_remarks(spec))
    for number, strike in enumerate(spec.faults):
        mapping = LITMUS_MAPPINGS.get(strike.fault.kind)
        if mapping is None:
            continue
        name = fault_name(strike, number)
        run = mapping(strike.fault, LitmusContext(spec=spec, strike=strike, cluster=names))
        remarks += target_remarks(strike, number)
        remarks += (ManifestRemark(about=name, why=why, mapped=True) for why in _differences(strike, run))
        manifests.append(_engine(object_name(scenario.metadata.name, name), spec, strike, run, names))
    remarks += unmapped_faults(spec.faults, {**UNSUPPORTED, **LITMUS_LACKS})
    if manifests:
        why = "pods of Litmus have to start first: seconds of inaccuracy; service accounts named as its charts do"
        remarks.append(ManifestRemark(about="timeline", why=why, mapped=True))
    return ManifestExport(tool="Litmus", manifests=tuple(manifests), remarks=tuple(remarks))


def _differences(strike: FaultSpec, run: LitmusExperiment) -> Iterator[str]:
    if run.differs:
        yield run.differs
    if strike.pause_percent:
        yield "there are no pauses between turns"


def _engine(
    name: str, spec: ScenarioSpec, strike: FaultSpec, run: LitmusExperiment, cluster: ClusterNames
) -> Mapping[str, Any]:
    labels = cluster.labels(strike.fault.aim)
    found = selected_targets(spec, strike)
    share = round(100 * len(found.names) / max(1, found.left + strike.target.skip))
    env = {
        "TOTAL_CHAOS_DURATION": str(max(1, round(strike.lasts))),
        "RAMP_TIME": str(round(strike.at)),
        "PODS_AFFECTED_PERC": str(share),
        "SEQUENCE": "serial" if strike.in_turn else "parallel",
        **({"NODE_LABEL": f"{ZONE_LABEL}={strike.target.zone}"} if strike.target.zone else {}),
        **run.env,
    }
    return {
        "apiVersion": "litmuschaos.io/v1alpha1",
        "kind": "ChaosEngine",
        "metadata": {"name": name, "namespace": cluster.namespace},
        "spec": {
            "engineState": "active",
            "appinfo": {
                "appns": cluster.namespace,
                "applabel": ",".join(f"{key}={value}" for key, value in labels.items()),
                "appkind": cluster.workload,
            },
            "chaosServiceAccount": f"{run.experiment}-sa",
            "experiments": [
                {
                    "name": run.experiment,
                    "spec": {"components": {"env": [{"name": key, "value": env[key]} for key in env]}},
                }
            ],
        },
    }


def _deleted(_: Fault, place: LitmusContext) -> LitmusExperiment:
    return LitmusExperiment(
        experiment="pod-delete",
        env={"FORCE": "true", "CHAOS_INTERVAL": str(max(1, round(place.strike.lasts)))},
        differs="its controller starts another pod at once, not when it is healed",
    )


def _restarted(fault: RollingRestartFault, place: LitmusContext) -> LitmusExperiment:
    turns = len(selected_targets(place.spec, place.strike).names) if place.strike.in_turn else 1
    return LitmusExperiment(
        experiment="pod-delete",
        env={
            "FORCE": "false" if fault.drain else "true",
            "CHAOS_INTERVAL": str(max(1, round(place.strike.lasts / turns))),
        },
        differs="the pod is deleted; it is drained first only by a preStop hook of yours",
    )


def _killed(container: str, place: LitmusContext) -> LitmusExperiment:
    return LitmusExperiment(
        experiment="container-kill",
        env={
            "TARGET_CONTAINER": container,
            "SIGNAL": "SIGKILL",
            "CHAOS_INTERVAL": str(max(1, round(place.strike.lasts))),
        },
        differs="the kubelet starts it again at once, not when it is healed",
    )


def _engine_killed(_: Fault, place: LitmusContext) -> LitmusExperiment:
    return _killed(place.cluster.engine_container, place)


def _agent_killed(_: Fault, place: LitmusContext) -> LitmusExperiment:
    return _killed(place.cluster.agent_container, place)


def _latency(fault: LatencyFault, _: LitmusContext) -> LitmusExperiment:
    return LitmusExperiment(
        experiment="pod-network-latency",
        env={"NETWORK_LATENCY": f"{1000 * fault.delay:.0f}", "JITTER": f"{1000 * fault.jitter:.0f}"},
        differs="all that the pod sends is late, to everybody; what it receives is not",
    )


def _loss(fault: LossFault, _: LitmusContext) -> LitmusExperiment:
    return LitmusExperiment(
        experiment="pod-network-loss",
        env={"NETWORK_PACKET_LOSS_PERCENTAGE": f"{fault.percent:.0f}"},
        differs="packets that the pod sends are lost, to everybody; what it receives is not",
    )


def _black_hole(_: Fault, __: LitmusContext) -> LitmusExperiment:
    return LitmusExperiment(
        experiment="pod-network-loss",
        env={"NETWORK_PACKET_LOSS_PERCENTAGE": "100"},
        differs="nothing that the pod sends arrives, its agent's reports neither",
    )


def _bandwidth(fault: BandwidthFault, _: LitmusContext) -> LitmusExperiment:
    kbit = max(1, round(fault.bytes_per_second * 8 / 1000))
    return LitmusExperiment(
        experiment="pod-network-rate-limit",
        env={
            "NETWORK_BANDWIDTH": f"{kbit}kbit",
            "BURST": f"{max(32, kbit // 10)}kbit",
            "LIMIT": str(max(3000, round(fault.bytes_per_second))),
        },
        differs="what the pod sends is shaped, to everybody; what it receives is not",
    )


def _http(place: LitmusContext, **env: str) -> Env:
    return {"TARGET_SERVICE_PORT": str(place.cluster.engine_port), **env}


def _reset(_: Fault, place: LitmusContext) -> LitmusExperiment:
    return LitmusExperiment(
        experiment="pod-http-reset-peer",
        env=_http(place, RESET_TIMEOUT="0", TOXICITY="100"),
        differs="/health and /metrics are reset, too",
    )


def _error(fault: EngineErrorFault, place: LitmusContext) -> LitmusExperiment:
    status = fault.status if fault.status in _STATUSES else _STATUSES[0]
    differs = "/health and /metrics answer so, too"
    if status != fault.status:
        differs += f"; there is no {fault.status}, so {status}"
    env = _http(place, STATUS_CODE=str(status), TOXICITY=f"{100 * fault.share:.0f}")
    return LitmusExperiment(experiment="pod-http-status-code", env=env, differs=differs)


def _late(place: LitmusContext, seconds: float, differs: str) -> LitmusExperiment:
    env = _http(place, LATENCY=f"{1000 * seconds:.0f}", TOXICITY="100")
    return LitmusExperiment(
        experiment="pod-http-latency", env=env, differs=f"{differs}; /health and /metrics are late, too"
    )


def _hang(_: Fault, place: LitmusContext) -> LitmusExperiment:
    return _late(place, place.strike.lasts, "requests are held in front of the engine, whose GPU goes on")


def _slow(fault: SlowFault, place: LitmusContext) -> LitmusExperiment:
    more_s = (fault.factor - 1) * place.spec.topology.service_time
    return _late(place, more_s, "the same delay for every request; set it by your own service time")


def _slow_proxy(fault: SlowProxyFault, _: LitmusContext) -> LitmusExperiment:
    return LitmusExperiment(
        experiment="pod-cpu-hog",
        env={"CPU_CORES": "1", "CPU_LOAD": str(round(100 * fault.stopped_share))},
        differs="CPU is taken by others, who may leave more or less than meant; configuration is not late",
    )


LITMUS_MAPPINGS: Final[Mapping[str, Callable[[Any, LitmusContext], LitmusExperiment]]] = MappingProxyType(
    {
        "agent_killed": _agent_killed,
        "bandwidth": _bandwidth,
        "black_hole": _black_hole,
        "control_plane_killed": _deleted,
        "control_plane_restarted_empty": _deleted,
        "crash": _deleted,
        "engine_error": _error,
        "hang": _hang,
        "latency": _latency,
        "loss": _loss,
        "oom_kill": _engine_killed,
        "reset": _reset,
        "rolling_restart": _restarted,
        "slow": _slow,
        "slow_proxy": _slow_proxy,
        "zone_loss": _deleted,
    }
)
"""By kind; what is not here has its reason in ``why_not``."""
