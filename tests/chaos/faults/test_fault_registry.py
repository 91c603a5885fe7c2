"""All kinds of faults: what a scenario may name, and what a lab must know to do."""

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from chaos.faults import fault_registry
from chaos.faults.fault import Fault
from chaos.faults.target_kind import TargetKind
from chaos.lab.injectors.injector_registry import INJECTORS

KINDS = tuple(fault_registry.FAULT_KINDS.values())
TARGETS = {
    TargetKind.ENGINES: "e0",
    TargetKind.PROXIES: "p0",
    TargetKind.ZONES: "e0",
    TargetKind.CONTROL_PLANE: "control-plane",
}
NAMES = [one.model_fields["kind"].default for one in KINDS]


def test_every_fault_file_is_registered() -> None:
    folder = Path(fault_registry.__file__).parent
    written = {
        path.stem.removesuffix("_fault")
        for path in folder.glob("*.py")
        if "    kind: Literal[" in path.read_text(encoding="utf-8")
    }
    assert set(NAMES) == written
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("fault", KINDS, ids=NAMES)
def test_every_fault_has_an_incident_and_a_description(fault: type[Fault]) -> None:
    kind = fault.model_fields["kind"].default
    assert fault.__module__.removeprefix("chaos.faults.") in {kind, f"{kind}_fault"}
    assert fault.incident.endswith(".")
    assert fault.__doc__


@pytest.mark.parametrize("fault", KINDS, ids=NAMES)
def test_fault_round_trips_and_each_action_has_one_injector(fault: type[Fault]) -> None:
    made = fault()
    assert TypeAdapter(fault_registry.AnyFault).validate_json(made.model_dump_json(by_alias=True)) == made
    pulls = made.actions(TARGETS.get(fault.aim, "clients"))
    assert pulls
    for pull in pulls:
        assert len([lever for lever in INJECTORS if isinstance(pull, lever.handles)]) == 1
        # Levers keep account of pulls by their value.
        assert hash(pull) == hash(pull)


@pytest.mark.parametrize("fault", KINDS, ids=NAMES)
def test_every_fault_has_a_test_of_its_effect(fault: type[Fault]) -> None:
    chaos = Path(__file__).parents[1]
    tests = (*chaos.glob("faults/test_*_faults.py"), *chaos.glob("lab/injectors/test_*.py"))
    assert any(f"{fault.__name__}(" in path.read_text(encoding="utf-8") for path in tests)
