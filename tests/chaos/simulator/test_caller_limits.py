"""Quotas, deadlines, fair shares and sizes in simulated time: scenarios pass with them, and fail without."""

from pathlib import Path
from statistics import fmean

import pytest
import yaml

from chaos.checks.check_finding import CheckResult
from chaos.checks.experiment_verdict import verdict
from chaos.history.recorded_history import History
from chaos.scenario.scenario_library import scenario_library
from chaos.simulator.simulation import simulate
from chaos.testbed.subjects import Subject, subjects

EXAMPLES = Path(__file__).parents[3] / "policies" / "examples"
SCENARIOS = {
    "noisy-neighbour": ("three-tenants.yaml", {"callerGoodputPercent", "quotaErrorPercent"}),
    "quota-accuracy": ("three-tenants.yaml", {"quotaErrorPercent"}),
    "token-quota-accuracy": ("three-tenants.yaml", {"quotaErrorPercent"}),
    "deadline": ("three-tenants.yaml", {"hopelessRefusedPercent"}),
    "fair-shares": ("ten-tenants.yaml", {"callerGoodputPercent", "callerP99Times"}),
    "long-beside-short": ("long-and-short.yaml", {"callerFirstTokenTimes"}),
}
"""The policies that keep the promises of each scenario, and the promises that break without their limits."""


BOUNDS = {
    "callerGoodputPercent": (98.0, 100.0),
    "quotaErrorPercent": (0.0, 10.0),
    "hopelessRefusedPercent": (85.0, 100.0),
    "callerP99Times": (0.0, 1.3),
    "callerFirstTokenTimes": (0.0, 1.3),
}
"""For any seed: looser than promises where few requests count, as a tenant's burst within its quota does."""


def without_limits(policy: str) -> str:
    """The control: the same policies, without tenants, deadlines and routes for large requests."""
    documents = [one for one in yaml.safe_load_all(policy) if "tokensAbove" not in one["spec"].get("match", {})]
    for one in documents:
        if one["kind"] == "ModelRoute":
            one["spec"]["listener"] = {"port": one["spec"]["listener"]["port"]}
    return yaml.safe_dump_all(documents)


def subject(policy: str, folder: Path) -> Subject:
    file = folder / "policies.yaml"
    file.write_text(policy)
    (found,) = subjects([str(file)])
    return found


def played(scenario: str, policies: Subject, seed: int | None = None) -> History:
    return simulate(scenario_library()[scenario].experiment(), policies, seed)


def broken(history: History) -> dict[str, str]:
    """Promises that were broken, with the reason."""
    return {one.check: one.why for one in verdict(history).findings if one.answer is CheckResult.NO}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_passes_with_the_limit_and_fails_without(scenario: str, tmp_path: Path) -> None:
    file, checks = SCENARIOS[scenario]
    policy = (EXAMPLES / file).read_text()
    assert broken(played(scenario, subject(policy, tmp_path))) == {}
    missed = broken(played(scenario, subject(without_limits(policy), tmp_path)))
    assert checks <= missed.keys(), missed


@pytest.mark.parametrize("seed", [2, 5])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_limit_holds_for_other_arrivals(scenario: str, seed: int) -> None:
    file, checks = SCENARIOS[scenario]
    (policies,) = subjects([str(EXAMPLES / file)])
    findings = {one.check: one for one in verdict(played(scenario, policies, seed)).findings}
    for check in checks:
        low, high = BOUNDS[check]
        numbers = findings[check].numbers
        assert low <= numbers.get("percent", numbers.get("times", -1.0)) <= high, findings[check]


def test_tenants_within_their_quota_lose_hardly_any_request_over_many_arrivals() -> None:
    file, _ = SCENARIOS["noisy-neighbour"]
    (policies,) = subjects([str(EXAMPLES / file)])
    found = [verdict(played("noisy-neighbour", policies, seed)).findings for seed in range(1, 7)]
    shares = [one.numbers["percent"] for some in found for one in some if one.check == "callerGoodputPercent"]
    assert len(shares) == len(found)
    assert fmean(shares) >= 99.0, shares
