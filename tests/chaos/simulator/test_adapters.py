"""Adapters in simulated time: requests leave an engine that lost theirs, and nothing changes without one."""

from pathlib import Path

import pytest

from chaos.checks.check_finding import CheckResult
from chaos.checks.experiment_verdict import check_findings
from chaos.scenario.scenario_library import chosen_scenarios
from chaos.simulator.simulation import simulate
from chaos.testbed.subjects import Subject, subjects
from tests.chaos.lab.experiments import experiment

EXAMPLE = Path(__file__).parents[3] / "policies" / "examples" / "single-pool.yaml"
FLEET = {"engines": [{"count": 2, "slots": 16}]}
NO_RETRIES = """---
apiVersion: switchgear.dev/v1alpha1
kind: ResiliencePolicy
metadata: {name: chat}
spec: {pools: [chat], retries: {attempts: 0}}
"""
LOST = {"fault": {"kind": "adapter_lost"}, "target": {"engine": 0}, "at": "3s", "lasts": "5s"}


def of(name: str) -> Subject:
    (subject,) = subjects([name])
    return subject


OURS, NAIVE = of(str(EXAMPLE)), of("naive")


def test_scenario_passes_with_lists_of_adapters_only() -> None:
    """As in the lab, where plain Envoy breaks the same promise."""
    (one,) = chosen_scenarios(["adapter-lost"])
    own, plain = (
        {
            found.check
            for found in check_findings(simulate(one.experiment(), subject))
            if found.answer is CheckResult.NO
        }
        for subject in (OURS, NAIVE)
    )
    assert own == set()
    assert plain == {"goodputPercent"}


@pytest.mark.parametrize("agents", [True, False], ids=["agents", "prober"])
def test_requests_leave_within_one_reading_and_return(agents: bool, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(EXAMPLE.read_text() + NO_RETRIES)
    lasting = experiment(
        topology={**FLEET, "agents": agents}, load={"perSecond": 16, "adapter": "sql"}, faults=[LOST], lasts="12s"
    )
    retrying, plain = simulate(lasting, OURS), simulate(lasting, of(str(tmp_path / "p.yaml")))
    refused = [one for one in plain.requests if one.status == 404]
    assert refused, "the fault takes effect"
    assert all(3.0 <= one.at_s <= 5.2 for one in refused), "until the list is read again, in 2 s"
    assert {one.status for one in retrying.requests} == {200}, "each 404 was tried again"
    e0 = [one for one in retrying.attempts if one.engine == "e0"]
    assert not [one for one in e0 if 3.0 < one.at_s < 8.0]
    assert [one for one in e0 if one.at_s < 3.0]
    assert [one for one in e0 if one.at_s > 10.2], "back with the adapter"


def test_load_for_the_model_is_as_without_adapters() -> None:
    usual, other = experiment(topology=FLEET), experiment(topology=FLEET, load={"adapter": "sql"})
    plain, routed = simulate(usual, OURS), simulate(other, OURS)
    assert [one.at_s for one in plain.requests] == [one.at_s for one in routed.requests]
    assert {one.engine for one in plain.attempts} == {one.engine for one in routed.attempts} == {"e0", "e1"}
