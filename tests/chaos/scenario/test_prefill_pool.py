"""A prefill pool: what faults on it hit, errors with their location, and what the lab makes of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.scenario.resolve_experiment import resolve_experiment
from chaos.scenario.scenario_library import chosen_scenarios
from chaos.testbed.blueprint import lab_blueprint
from chaos.testbed.policy_fit import MissingPoolError
from chaos.testbed.service_costs import PREFILL_SHARE
from chaos.testbed.static_envoy import POOL, static_bootstrap
from chaos.testbed.subjects import STATICS, PolicySubject, subjects
from policies.load import load
from policies.remote_prefill import Stage
from tests.chaos.scenario.conftest import Make, problems_of, written

TOPOLOGY = "topology: {engines: [{count: 2}], prefill: [{count: 2, slots: 2}]}\n"
EXAMPLES = Path(__file__).parents[3] / "policies" / "examples"


def fault(target: str) -> str:
    return f"faults:\n- {{fault: {{kind: crash}}, target: {target}, at: 8s, lasts: 9s}}\n"


def of_example(name: str) -> PolicySubject:
    return PolicySubject(name=name, policies=load([EXAMPLES / f"{name}.yaml"]))


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("{}", ("e0", "e1")),
        ("{stage: prefill}", ("prefill-e0", "prefill-e1")),
        ("{stage: prefill, engine: 1}", ("prefill-e1",)),
    ],
)
def test_fault_hits_the_engines_of_its_stage(scenario: Make, target: str, names: tuple[str, ...]) -> None:
    (outage,) = resolve_experiment(scenario(TOPOLOGY + fault(target))).outages
    assert outage.targets == names


@pytest.mark.parametrize(
    ("text", "code", "path"),
    [
        (fault("{stage: prefill}"), "SC002", "faults[0].target.stage"),
        (TOPOLOGY + fault("{stage: prefill, engine: 2}"), "SC002", "faults[0].target.engine"),
        (TOPOLOGY + fault("{stage: prefill, fallback: 0}"), "SC008", "faults[0].target.stage"),
        (
            "hypothesis: {prefilledRemotelyPercent: 80}\n",
            "SC011",
            "hypothesis.prefilledRemotelyPercent",
        ),
        (
            TOPOLOGY + "hypothesis: {backWithin: 5s}\n" + fault("{stage: prefill}"),
            "SC011",
            "hypothesis.backWithin",
        ),
        ("topology: {engine: vllm, prefill: [{count: 1}]}\n", "SC010", "topology.prefill"),
        ("topology: {prefill: [{count: 1, zone: x}]}\n", "SC001", "topology.prefill[0].zone"),
    ],
)
def test_contradictions_are_found(text: str, code: str, path: str) -> None:
    (problem,) = problems_of(written(text))
    assert (problem.code, problem.path) == (code, f"spec.{path}")


def test_blast_radius_counts_prefill_engines() -> None:
    text = TOPOLOGY + fault("{stage: prefill, count: 1}") + "blastRadius: {enginesPercent: 20}\n"
    (problem,) = problems_of(written(text))
    assert "1 of 4 engines" in problem.message


def test_lab_has_engines_of_both_stages() -> None:
    (one,) = chosen_scenarios(["prefiller-dies"])
    plan = lab_blueprint(one.experiment(), of_example("prefill-and-decode"))
    pools = plan.named_pools
    assert {name: (pool.stage, len(pool.engines)) for name, pool in pools.items()} == {
        "chat": (Stage.DECODE, 2),
        "chat-prefill": (Stage.PREFILL, 2),
    }
    assert pools["chat-prefill"].service_s == pytest.approx(PREFILL_SHARE * pools["chat"].service_s)


def test_policies_without_prefill_are_refused() -> None:
    (one,) = chosen_scenarios(["prefiller-dies"])
    with pytest.raises(MissingPoolError, match="needs a prefill pool, and route chat has none; set its prefill"):
        lab_blueprint(one.experiment(), of_example("single-pool"))


def test_policies_with_prefill_run_in_scenarios_without() -> None:
    (one,) = chosen_scenarios(["one-hangs"])
    pools = lab_blueprint(one.experiment(), of_example("prefill-and-decode")).named_pools
    assert [one.name for one in pools["chat-prefill"].engines] == ["chat-prefill-0", "chat-prefill-1"]


def test_preset_names_prefill_engines_from_a_fixed_list() -> None:
    (one,) = chosen_scenarios(["prefiller-dies"])
    (preset,) = subjects(["envoy"])
    plan = lab_blueprint(one.experiment(), preset)
    assert [pool.stage for pool in plan.named_pools.values()] == [Stage.DECODE, Stage.PREFILL]

    def filters(*prefill_ports: int) -> str:
        text = static_bootstrap(
            replace(STATICS["envoy"], prefill_ports=prefill_ports),
            engine_ports=[1],
            slots=8,
            proxies=1,
            deadline_s=1.0,
            listener_port=2,
            admin_port=3,
        )
        assert json.loads(text)["static_resources"]["clusters"][0]["name"] == POOL
        return text

    assert "127.0.0.1:7001" in filters(7001, 7002)
    assert "x-prefiller-host-port" not in filters()
