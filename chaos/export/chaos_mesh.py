"""A scenario as a Chaos Mesh Workflow: parallel faults, each after its delay.

Fields are those of chaos-mesh.org/v1alpha1 (``api/v1alpha1/*_types.go``): PodChaos, NetworkChaos, HTTPChaos,
StressChaos and TimeChaos, embedded in a Workflow's templates, where ``deadline`` is how long each lasts.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from chaos.export.manifest_export import (
    ManifestExport,
    ManifestRemark,
    cluster_context,
    object_name,
    scenario_remarks,
    target_remarks,
    unmapped_faults,
)
from chaos.faults.cluster_chaos import ChaosMeshObject, pod_selector
from chaos.faults.pod_labels import ClusterNames
from chaos.scenario.fault_timeline import fault_name
from chaos.scenario.placement import selected_targets
from chaos.scenario.scenario_model import FaultSpec, Scenario, ScenarioSpec
from policies.quantity import format_duration

_START_S: Final = 60.0
"""Extra time for start and healing; a Workflow is cut off at its deadline."""

Fields: TypeAlias = Mapping[str, Any]


def chaos_mesh(scenario: Scenario, cluster: ClusterNames | None = None) -> ManifestExport:
    """The Workflow, with remarks. No manifest if no fault can be mapped."""
    names = cluster or ClusterNames()
    spec = scenario.spec
    branches: list[str] = []
    templates: list[Fields] = []
    remarks = list(scenario_remarks(spec))
    for number, strike in enumerate(spec.faults):
        if strike.fault.not_in_clusters:
            continue
        pieces = tuple(strike.fault.chaos_mesh(cluster_context(spec, strike, names)))
        name = object_name(fault_name(strike, number))
        remarks += target_remarks(strike, number)
        differs = dict.fromkeys(one.differs for one in pieces if one.differs)
        remarks += (ManifestRemark(about=fault_name(strike, number), why=why, mapped=True) for why in differs)
        branches.append(name)
        templates += _branch(name, spec, strike, pieces, names)
    remarks += unmapped_faults(spec.faults, lambda fault: fault.not_in_clusters)
    if not branches:
        return ManifestExport(tool="Chaos Mesh", manifests=(), remarks=tuple(remarks))
    workflow = {
        "apiVersion": "chaos-mesh.org/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": scenario.metadata.name, "namespace": names.namespace},
        "spec": {
            "entry": "all-faults",
            "templates": [
                {
                    "name": "all-faults",
                    "templateType": "Parallel",
                    "deadline": format_duration(spec.lasts + _START_S),
                    "children": branches,
                },
                *templates,
            ],
        },
    }
    return ManifestExport(tool="Chaos Mesh", manifests=(workflow,), remarks=tuple(remarks))


def _branch(
    name: str, spec: ScenarioSpec, strike: FaultSpec, pieces: Sequence[ChaosMeshObject], cluster: ClusterNames
) -> Iterator[Fields]:
    """Templates of one fault: a delay, then all of its objects in parallel, once or per turn."""
    targets = len(selected_targets(spec, strike).names)
    turns = targets if strike.in_turn else 1
    turn_s = strike.lasts / turns
    bad_s = turn_s * (1 - strike.pause_percent / 100)
    pods = pod_selector(cluster, strike.fault.aim, strike.target.zone)
    steps = [object_name(name, "wait")]
    yield _wait(steps[0], strike.at)
    for turn in range(turns):
        step = object_name(name, f"turn-{turn}") if strike.in_turn else object_name(name, "bites")
        parts = [object_name(step, str(place)) for place in range(len(pieces))] if len(pieces) > 1 else [step]
        for part, piece in zip(parts, pieces, strict=True):
            chosen = {"mode": "one"} if strike.in_turn else _mode(strike, targets)
            yield {
                "name": part,
                "templateType": piece.kind,
                "deadline": format_duration(round(bad_s, 3)),
                _embedded(piece.kind): {**(piece.chosen or {**chosen, "selector": pods}), **piece.fields},
            }
        if len(parts) > 1:
            yield {
                "name": step,
                "templateType": "Parallel",
                "deadline": format_duration(round(bad_s + _START_S, 3)),
                "children": parts,
            }
        steps.append(step)
        if strike.pause_percent:
            steps.append(object_name(step, "pause"))
            yield _wait(steps[-1], turn_s - bad_s)
    yield {
        "name": name,
        "templateType": "Serial",
        "deadline": format_duration(strike.at + strike.lasts + _START_S),
        "children": steps,
    }


def _wait(name: str, seconds: float) -> Fields:
    return {"name": name, "templateType": "Suspend", "deadline": format_duration(round(seconds, 3))}


def _embedded(kind: str) -> str:
    """Template field of a chaos object: ``podChaos``, ``httpChaos`` and so on."""
    return "httpChaos" if kind == "HTTPChaos" else kind[0].lower() + kind[1:]


def _mode(strike: FaultSpec, targets: int) -> Fields:
    target = strike.target
    if target.fraction is not None:
        return {"mode": "fixed-percent", "value": f"{100 * target.fraction:.0f}"}
    if target.count is not None or target.engine is not None or target.proxy is not None or target.skip:
        return {"mode": "one"} if targets == 1 else {"mode": "fixed", "value": str(targets)}
    return {"mode": "all"}
