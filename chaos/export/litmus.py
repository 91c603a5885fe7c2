"""A scenario as ChaosEngines of Litmus, one for each fault, all applied at the same moment.

Experiments and their environment are those of litmuschaos/chaos-charts (``faults/kubernetes/*/fault.yaml``). An
engine begins when it is applied; ``RAMP_TIME``, the wait before (and after) the injection, is what puts faults
on a timeline.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from chaos.export.cluster import ZONE_LABEL, Cluster
from chaos.export.exported import Exported, Remark, object_name, of_scenario, of_target, unmapped
from chaos.export.why_not import LITMUS_LACKS, NOWHERE
from chaos.faults.bandwidth import Bandwidth
from chaos.faults.engine_error import EngineError
from chaos.faults.fault import Fault
from chaos.faults.latency import Latency
from chaos.faults.loss import Loss
from chaos.faults.rolling_restart import RollingRestart
from chaos.faults.slow import Slow
from chaos.faults.slow_proxy import SlowProxy
from chaos.scenario.model import Scenario, ScenarioSpec, Strike
from chaos.scenario.places import picked
from chaos.scenario.timeline import name_of

Env: TypeAlias = Mapping[str, str]

_STATUSES: Final = (500, 501, 502, 503, 504)
"""Those of pod-http-status-code that a fault of ours may answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One experiment of Litmus: its name, what is set, and in what it differs from the lab's fault."""

    experiment: str
    env: Env
    differs: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What there is to know besides the fault."""

    spec: ScenarioSpec
    strike: Strike
    cluster: Cluster


def litmus(scenario: Scenario, cluster: Cluster | None = None) -> Exported:
    """One ChaosEngine for each fault that maps, and what they do not say."""
    names = cluster or Cluster()
    spec = scenario.spec
    manifests: list[Mapping[str, Any]] = []
    remarks = list(of_scenario(spec))
    for number, strike in enumerate(spec.faults):
        mapping = MAPPINGS.get(strike.fault.kind)
        if mapping is None:
            continue
        name = name_of(strike, number)
        run = mapping(strike.fault, Place(spec=spec, strike=strike, cluster=names))
        remarks += of_target(strike, number)
        remarks += (Remark(about=name, why=why, mapped=True) for why in _differences(strike, run))
        manifests.append(_engine(object_name(scenario.metadata.name, name), spec, strike, run, names))
    remarks += unmapped(spec.faults, {**NOWHERE, **LITMUS_LACKS})
    if manifests:
        why = "pods of Litmus have to start first: seconds of inaccuracy; service accounts named as its charts do"
        remarks.append(Remark(about="timeline", why=why, mapped=True))
    return Exported(tool="Litmus", manifests=tuple(manifests), remarks=tuple(remarks))


def _differences(strike: Strike, run: Run) -> Iterator[str]:
    if run.differs:
        yield run.differs
    if strike.pause_percent:
        yield "there are no pauses between turns"


def _engine(name: str, spec: ScenarioSpec, strike: Strike, run: Run, cluster: Cluster) -> Mapping[str, Any]:
    labels = cluster.labels(strike.fault.aim)
    found = picked(spec, strike)
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


def _deleted(_: Fault, place: Place) -> Run:
    return Run(
        experiment="pod-delete",
        env={"FORCE": "true", "CHAOS_INTERVAL": str(max(1, round(place.strike.lasts)))},
        differs="its controller starts another pod at once, not when it is healed",
    )


def _restarted(fault: RollingRestart, place: Place) -> Run:
    turns = len(picked(place.spec, place.strike).names) if place.strike.in_turn else 1
    return Run(
        experiment="pod-delete",
        env={
            "FORCE": "false" if fault.drain else "true",
            "CHAOS_INTERVAL": str(max(1, round(place.strike.lasts / turns))),
        },
        differs="the pod is deleted; it is drained first only by a preStop hook of yours",
    )


def _killed(container: str, place: Place) -> Run:
    return Run(
        experiment="container-kill",
        env={
            "TARGET_CONTAINER": container,
            "SIGNAL": "SIGKILL",
            "CHAOS_INTERVAL": str(max(1, round(place.strike.lasts))),
        },
        differs="the kubelet starts it again at once, not when it is healed",
    )


def _engine_killed(_: Fault, place: Place) -> Run:
    return _killed(place.cluster.engine_container, place)


def _agent_killed(_: Fault, place: Place) -> Run:
    return _killed(place.cluster.agent_container, place)


def _latency(fault: Latency, _: Place) -> Run:
    return Run(
        experiment="pod-network-latency",
        env={"NETWORK_LATENCY": f"{1000 * fault.delay:.0f}", "JITTER": f"{1000 * fault.jitter:.0f}"},
        differs="all that the pod sends is late, to everybody; what it receives is not",
    )


def _loss(fault: Loss, _: Place) -> Run:
    return Run(
        experiment="pod-network-loss",
        env={"NETWORK_PACKET_LOSS_PERCENTAGE": f"{fault.percent:.0f}"},
        differs="packets that the pod sends are lost, to everybody; what it receives is not",
    )


def _black_hole(_: Fault, __: Place) -> Run:
    return Run(
        experiment="pod-network-loss",
        env={"NETWORK_PACKET_LOSS_PERCENTAGE": "100"},
        differs="nothing that the pod sends arrives, its agent's reports neither",
    )


def _bandwidth(fault: Bandwidth, _: Place) -> Run:
    kbit = max(1, round(fault.bytes_per_second * 8 / 1000))
    return Run(
        experiment="pod-network-rate-limit",
        env={
            "NETWORK_BANDWIDTH": f"{kbit}kbit",
            "BURST": f"{max(32, kbit // 10)}kbit",
            "LIMIT": str(max(3000, round(fault.bytes_per_second))),
        },
        differs="what the pod sends is shaped, to everybody; what it receives is not",
    )


def _http(place: Place, **env: str) -> Env:
    return {"TARGET_SERVICE_PORT": str(place.cluster.engine_port), **env}


def _reset(_: Fault, place: Place) -> Run:
    return Run(
        experiment="pod-http-reset-peer",
        env=_http(place, RESET_TIMEOUT="0", TOXICITY="100"),
        differs="/health and /metrics are reset, too",
    )


def _error(fault: EngineError, place: Place) -> Run:
    status = fault.status if fault.status in _STATUSES else _STATUSES[0]
    differs = "/health and /metrics answer so, too"
    if status != fault.status:
        differs += f"; there is no {fault.status}, so {status}"
    env = _http(place, STATUS_CODE=str(status), TOXICITY=f"{100 * fault.share:.0f}")
    return Run(experiment="pod-http-status-code", env=env, differs=differs)


def _late(place: Place, seconds: float, differs: str) -> Run:
    env = _http(place, LATENCY=f"{1000 * seconds:.0f}", TOXICITY="100")
    return Run(experiment="pod-http-latency", env=env, differs=f"{differs}; /health and /metrics are late, too")


def _hang(_: Fault, place: Place) -> Run:
    return _late(place, place.strike.lasts, "requests are held in front of the engine, whose GPU goes on")


def _slow(fault: Slow, place: Place) -> Run:
    more_s = (fault.factor - 1) * place.spec.topology.service_time
    return _late(place, more_s, "the same delay for every request; set it by your own service time")


def _slow_proxy(fault: SlowProxy, _: Place) -> Run:
    return Run(
        experiment="pod-cpu-hog",
        env={"CPU_CORES": "1", "CPU_LOAD": str(round(100 * fault.stopped_share))},
        differs="CPU is taken by others, who may leave more or less than meant; configuration is not late",
    )


MAPPINGS: Final[Mapping[str, Callable[[Any, Place], Run]]] = MappingProxyType(
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
