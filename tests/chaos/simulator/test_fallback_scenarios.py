"""Fallback pools and regions in simulated time: each library scenario keeps its promises."""

from pathlib import Path

import pytest

from chaos.checks.experiment_verdict import CheckResult, verdict
from chaos.history.recorded_history import History
from chaos.scenario.scenario_library import chosen_scenarios
from chaos.simulator.simulation import simulate
from chaos.testbed.policy_fit import MissingPoolError
from chaos.testbed.subjects import PolicySubject, subjects
from policies.load import load_contents

HEAD = "apiVersion: switchgear.dev/v1alpha1\n"
SETTLED_S = 2.0
GOOD_PERCENT = 95.0


def subject(*fallbacks: str, model: str = "lab", policy: str = "") -> PolicySubject:
    """A pool named chat with these fallbacks, and defaults."""
    pools = [
        f"kind: EnginePool\nmetadata: {{name: {name}}}\n"
        f"spec: {{model: {'lab' if name == 'chat' else model}, serviceTime: 500ms, longestServiceTime: 720ms, "
        f"endpoints: [{{address: 10.0.0.{number}, port: 80}}]}}\n"
        for number, name in enumerate(("chat", *fallbacks), start=1)
    ]
    route = (
        "kind: ModelRoute\nmetadata: {name: chat}\n"
        f"spec: {{listener: {{port: 8080}}, pools: [{{pool: chat}}], fallbacks: [{', '.join(fallbacks)}]}}\n"
    )
    more = [f"kind: ResiliencePolicy\nmetadata: {{name: default}}\nspec: {policy}\n"] if policy else []
    text = "---\n".join(HEAD + one for one in (*pools, route, *more))
    return PolicySubject(name="switchgear", policies=load_contents({Path("policies.yaml"): text.encode()}))


def played(name: str, policies: PolicySubject) -> History:
    (scenario,) = chosen_scenarios([name])
    return simulate(scenario.experiment(), policies)


def broken(history: History) -> list[str]:
    """Promises not kept, each with its reason."""
    return [f"{one.check}: {one.why}" for one in verdict(history).findings if one.answer is not CheckResult.YES]


def good_percent(history: History, from_s: float, to_s: float) -> float:
    some = [one.ok for one in history.requests if from_s <= one.at_s < to_s]
    return 100.0 * sum(some) / len(some)


CHAINS = {
    "fallback-serves": ("small",),
    "fallback-serves-shed": ("small",),
    "fallback-fails": ("small",),
    "fallback-slow": ("small",),
    "fallback-hangs": ("small",),
    "fallback-chain": ("small", "tiny"),
    "region-lost": (),
    "region-fails": (),
    "pool-fails": (),
    "pool-sheds": (),
    "most-shed": (),
    "pool-slow": (),
    "zone-slow": (),
    "lone-engine-slow": (),
    "lone-engine-fails": (),
    "lone-engine-hangs": (),
    "callers-in-one-zone": (),
    "hangs-uncontrolled": (),
}


@pytest.mark.parametrize("name", CHAINS)
def test_scenario_keeps_its_promises(name: str) -> None:
    assert broken(played(name, subject(*CHAINS[name]))) == []


@pytest.mark.parametrize("model", ["lab", "small"])
@pytest.mark.parametrize("name", ["fallback-serves", "fallback-serves-shed"])
def test_fallback_serves_after_two_seconds(name: str, model: str) -> None:
    """With another model, a retry cannot leave the pool: the control plane alone moves the callers."""
    history = played(name, subject("small", model=model))
    assert good_percent(history, history.fault_s + SETTLED_S, history.end_s) >= GOOD_PERCENT


def test_scenario_with_fallbacks_refuses_policies_without() -> None:
    with pytest.raises(MissingPoolError, match="needs 1 fallback pool, and route chat has none"):
        played("fallback-serves", subject())
    (preset,) = subjects(["naive"])
    (scenario,) = chosen_scenarios(["fallback-serves"])
    with pytest.raises(MissingPoolError, match="preset naive has none"):
        simulate(scenario.experiment(), preset)


def test_engines_of_a_fallback_fail_alone() -> None:
    history = played("fallback-chain", subject("small", "tiny"))
    by_pool = {one.name: one.pool for one in history.began.engines}
    failed = {by_pool[one.engine] for one in history.attempts if one.reason and one.at_s < history.healed_s}
    assert {"chat", "small"} <= failed
    assert "tiny" not in failed
    assert {"f0-e0", "f0-e1"} == {target for one in history.outages for target in one.targets if "f0" in target}
