"""The scenario guide and the reference match the code."""

import re
from pathlib import Path

import pytest

from chaos.reference import reference_markdown
from chaos.scenario.scenario_reader import checked_scenarios
from chaos.scenario.scenario_schema import fault_kinds, scenario_fields, scenario_schema
from policies.schema import FieldDoc

GUIDE = Path("docs/chaos.md")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def test_reference_page_is_up_to_date() -> None:
    assert Path("docs/chaos/reference.md").read_text() == reference_markdown(), (
        "run `python -m chaos.reference > docs/chaos/reference.md`"
    )


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_guide_resolve(example: str) -> None:
    (only,), problems = checked_scenarios(example.encode(), GUIDE)
    assert not problems
    assert only.experiment().outages[0].targets == ("e0", "e3", "e6")


def test_error_in_the_guide_matches_the_real_one() -> None:
    (example,) = EXAMPLES
    _, (problem,) = checked_scenarios(example.replace("zone: rack-1} ", "zone: rack-4} ").encode(), GUIDE)
    told = str(problem.error("rack.yaml"))
    place, code, path, message = told.split(": ", 3)
    assert f"{place}: error {code}: {path}: {message}" in GUIDE.read_text()
    assert f"hint:    {problem.hint}" in GUIDE.read_text()


def test_fields_named_in_the_guide_exist() -> None:
    names = {part for path in scenario_fields() for part in re.split(r"[.\[\]]+", path)}
    for name in re.findall(r"`([a-z]+[A-Z][A-Za-z]+)`", GUIDE.read_text()):
        assert name in names, name


def test_every_field_and_kind_is_documented() -> None:
    silent = [one.path for one in scenario_fields().values() if not one.description.strip()]
    assert not silent
    undocumented = [kind for kind, model in fault_kinds().items() if not (model.__doc__ or "").strip()]
    assert not undocumented


def test_every_fault_setting_is_documented() -> None:
    for kind, model in fault_kinds().items():
        below = [path for path in scenario_fields() if path.startswith(f"spec.faults[].fault.{kind}.")]
        assert len([path for path in below if path.count(".") == 4]) == len(model.model_fields)


def test_schema_discriminates_faults_by_kind() -> None:
    schema = scenario_schema()
    strike = schema["$defs"]["FaultSpec"]["properties"]["fault"]
    assert set(strike["discriminator"]["mapping"]) == set(fault_kinds())
    for reference in strike["discriminator"]["mapping"].values():
        assert "kind" in schema["$defs"][reference.rpartition("/")[2]]["required"]


def test_discriminated_blocks_name_the_discriminator() -> None:
    told: list[FieldDoc] = [one for one in scenario_fields().values() if one.told_by]
    assert "spec.faults[].fault" in {one.path for one in told}
    assert all(one.block and one.told_by == "kind" for one in told)
