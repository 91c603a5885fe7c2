"""Quotas, deadlines and sizes in a live lab: the scenarios pass with them, and fail without."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chaos.gate.scenario_runs import findings

# Two experiments of 30 s; repeated if the machine was too busy for a verdict.
pytestmark = [pytest.mark.envoy, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "policies" / "examples" / "three-tenants.yaml"
SIZES = EXAMPLE.with_name("long-and-short.yaml")
TRIES = 4


def on_page() -> str:
    """The policy of docs/tenants.md."""
    (text,) = re.findall(
        r"^```yaml\n(.*?)^```$", (ROOT / "docs" / "tenants.md").read_text(), re.MULTILINE | re.DOTALL
    )
    return str(text)


def without_limits(policy: str) -> str:
    """The control: the same policies, without quotas, deadlines and routes for large requests."""
    documents = [one for one in yaml.safe_load_all(policy) if "tokensAbove" not in one["spec"].get("match", {})]
    for one in documents:
        if one["kind"] == "ModelRoute":
            one["spec"]["listener"] = {"port": one["spec"]["listener"]["port"]}
    return yaml.safe_dump_all(documents)


async def judged(scenario: str, policy: str, folder: Path, *, tries: int = TRIES) -> dict[str, dict[str, Any]]:
    """Findings of a run of these policies."""
    folder.mkdir()
    file = folder / "policies.yaml"
    file.write_text(policy)
    return await findings([scenario, "-f", str(file)], folder, tries=tries)


def test_policy_on_the_page_is_short() -> None:
    assert len(on_page().splitlines()) <= 15


@pytest.mark.parametrize(
    ("scenario", "policy", "checks"),
    [
        ("noisy-neighbour", on_page(), {"callerGoodputPercent", "quotaErrorPercent"}),
        ("token-quota-accuracy", EXAMPLE.read_text(), {"quotaErrorPercent"}),
        ("deadline", EXAMPLE.read_text(), {"hopelessRefusedPercent"}),
    ],
    ids=["noisy-neighbour", "token-quota-accuracy", "deadline"],
)
async def test_scenario_passes_with_the_limit_and_fails_without(
    scenario: str, policy: str, checks: set[str], tmp_path: Path
) -> None:
    kept = await judged(scenario, policy, tmp_path / "with")
    assert {name: one["why"] for name, one in kept.items() if one["answer"] != "yes"} == {}
    # Engines and machine are overloaded then, but what callers got is clear.
    missed = await judged(scenario, without_limits(policy), tmp_path / "without", tries=1)
    assert {name for name, one in missed.items() if one["answer"] == "no"} >= checks, missed


async def test_large_requests_hold_up_short_ones_unless_they_have_a_route(tmp_path: Path) -> None:
    policy = SIZES.read_text()
    kept = await judged("long-beside-short", policy, tmp_path / "with")
    assert kept["callerGoodputPercent"]["answer"] == "yes", kept["callerGoodputPercent"]
    missed = await judged("long-beside-short", without_limits(policy), tmp_path / "without", tries=1)
    # Against each other: on a busy machine each p99 is worse than the scenario's own limit.
    with_route, without = (one["callerFirstTokenTimes"]["numbers"]["times"] for one in (kept, missed))
    assert with_route < 0.4 * without, (kept, missed)
