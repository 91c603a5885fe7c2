"""A scenario as Litmus ChaosEngines, one per fault, all applied at the same time.

Experiments and their environment are from litmuschaos/chaos-charts (``faults/kubernetes/*/fault.yaml``). A
ChaosEngine starts when applied; ``RAMP_TIME``, the delay before (and after) the injection, sets the start of each
fault.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from chaos.export.manifest_export import (
    ManifestExport,
    ManifestRemark,
    cluster_context,
    object_name,
    scenario_remarks,
    target_remarks,
    unmapped_faults,
)
from chaos.faults.cluster_chaos import LitmusExperiment
from chaos.faults.fault import Fault
from chaos.faults.pod_labels import ZONE_LABEL, ClusterNames
from chaos.scenario.fault_timeline import fault_name
from chaos.scenario.placement import selected_targets
from chaos.scenario.scenario_model import FaultSpec, Scenario, ScenarioSpec


def why_not_in_litmus(fault: type[Fault] | Fault) -> str:
    """Why Litmus cannot inject this fault; empty if it can."""
    return fault.not_in_clusters or fault.not_in_litmus


def litmus(scenario: Scenario, cluster: ClusterNames | None = None) -> ManifestExport:
    """One ChaosEngine per mapped fault, with remarks."""
    names = cluster or ClusterNames()
    spec = scenario.spec
    manifests: list[Mapping[str, Any]] = []
    remarks = list(scenario_remarks(spec))
    for number, strike in enumerate(spec.faults):
        run = strike.fault.litmus(cluster_context(spec, strike, names))
        if run is None:
            continue
        name = fault_name(strike, number)
        remarks += target_remarks(strike, number)
        remarks += (ManifestRemark(about=name, why=why, mapped=True) for why in _differences(strike, run))
        manifests.append(_engine(object_name(scenario.metadata.name, name), spec, strike, run, names))
    remarks += unmapped_faults(spec.faults, why_not_in_litmus)
    if manifests:
        why = "Litmus pods start first, so times are off by seconds; service accounts are named as in its charts"
        remarks.append(ManifestRemark(about="timeline", why=why, mapped=True))
    return ManifestExport(tool="Litmus", manifests=tuple(manifests), remarks=tuple(remarks))


def _differences(strike: FaultSpec, run: LitmusExperiment) -> Iterator[str]:
    if run.differs:
        yield run.differs
    if strike.pause_percent:
        yield "no pauses between turns"


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
