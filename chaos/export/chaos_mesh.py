"""A scenario as a Workflow of Chaos Mesh: faults side by side, each after its wait.

Fields are those of chaos-mesh.org/v1alpha1 (``api/v1alpha1/*_types.go``): PodChaos, NetworkChaos, HTTPChaos,
StressChaos and TimeChaos, embedded in a Workflow's templates, where ``deadline`` is how long each lasts.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from chaos.export.cluster import Cluster
from chaos.export.exported import Exported, Remark, object_name, of_scenario, of_target, unmapped
from chaos.export.mesh_faults import MAPPINGS, Piece, Place, selector
from chaos.export.why_not import NOWHERE
from chaos.scenario.model import Scenario, ScenarioSpec, Strike
from chaos.scenario.places import picked
from chaos.scenario.timeline import name_of
from policies.quantity import format_duration

_START_S: Final = 60.0
"""What starting and healing may take in all; a Workflow that reaches its deadline is cut off."""

Fields: TypeAlias = Mapping[str, Any]


def chaos_mesh(scenario: Scenario, cluster: Cluster | None = None) -> Exported:
    """The Workflow, and what it does not say. Without a fault that maps there is no manifest."""
    names = cluster or Cluster()
    spec = scenario.spec
    branches: list[str] = []
    templates: list[Fields] = []
    remarks = list(of_scenario(spec))
    for number, strike in enumerate(spec.faults):
        mapping = MAPPINGS.get(strike.fault.kind)
        if mapping is None:
            continue
        pieces = tuple(mapping(strike.fault, Place(spec=spec, strike=strike, cluster=names)))
        name = object_name(name_of(strike, number))
        remarks += of_target(strike, number)
        differs = dict.fromkeys(one.differs for one in pieces if one.differs)
        remarks += (Remark(about=name_of(strike, number), why=why, mapped=True) for why in differs)
        branches.append(name)
        templates += _branch(name, spec, strike, pieces, names)
    remarks += unmapped(spec.faults, NOWHERE)
    if not branches:
        return Exported(tool="Chaos Mesh", manifests=(), remarks=tuple(remarks))
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
    return Exported(tool="Chaos Mesh", manifests=(workflow,), remarks=tuple(remarks))


def _branch(
    name: str, spec: ScenarioSpec, strike: Strike, pieces: Sequence[Piece], cluster: Cluster
) -> Iterator[Fields]:
    """The templates of one fault: a wait, then all of its pieces side by side, once or turn by turn."""
    targets = len(picked(spec, strike).names)
    turns = targets if strike.in_turn else 1
    turn_s = strike.lasts / turns
    bad_s = turn_s * (1 - strike.pause_percent / 100)
    pods = selector(cluster, strike.fault.aim, strike.target.zone)
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
    """The field of a template that holds a chaos object: ``podChaos``, ``httpChaos`` and so on."""
    return "httpChaos" if kind == "HTTPChaos" else kind[0].lower() + kind[1:]


def _mode(strike: Strike, targets: int) -> Fields:
    target = strike.target
    if target.fraction is not None:
        return {"mode": "fixed-percent", "value": f"{100 * target.fraction:.0f}"}
    if target.count is not None or target.engine is not None or target.proxy is not None or target.skip:
        return {"mode": "one"} if targets == 1 else {"mode": "fixed", "value": str(targets)}
    return {"mode": "all"}
