"""Scenarios whose callers ask for an adapter: contradictions, and what the policies become."""

from pathlib import Path

import pytest

from chaos.scenario.scenario_library import chosen_scenarios
from chaos.testbed.blueprint import lab_blueprint
from chaos.testbed.subjects import subjects
from tests.chaos.scenario.conftest import problems_of, written

EXAMPLE = Path(__file__).parents[3] / "policies" / "examples" / "single-pool.yaml"
LOST = "faults:\n- {fault: {kind: adapter_lost}, at: 8s, lasts: 9s}\n"


@pytest.mark.parametrize(
    ("text", "code", "path"),
    [
        (LOST, "SC010", "faults[0].fault"),
        ("load: {adapter: sql}\ntopology: {engine: vllm}\n", "SC010", "load.adapter"),
        ("load: {adapter: sql}\ntopology: {prefill: [{count: 1}]}\n", "SC008", "load.adapter"),
    ],
)
def test_contradictions_are_found(text: str, code: str, path: str) -> None:
    (problem,) = problems_of(written(text))
    assert (problem.code, problem.path) == (code, f"spec.{path}")


def test_routes_of_the_policies_become_routes_to_the_adapter() -> None:
    (one,) = chosen_scenarios(["adapter-lost"])
    ours, naive = (lab_blueprint(one.experiment(), subjects([name])[0]) for name in (str(EXAMPLE), "naive"))
    assert ours.fitting is not None
    assert {route.spec.adapter_name for route in ours.fitting.routes} == {"sql"}
    assert [plan.asking.model for plan in (ours, naive)] == ["sql", "sql"]
    assert [plan.pools[0].adapter for plan in (ours, naive)] == ["sql", "sql"]
