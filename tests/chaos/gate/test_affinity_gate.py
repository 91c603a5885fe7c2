"""Conversations in a live lab: the scenarios pass with affinity, and fail without it or without its bound."""

from pathlib import Path

import pytest

from tests.chaos.gate.scenario_runs import findings

# Two experiments of at most 28 s; repeated if the machine was too busy for a verdict.
pytestmark = [pytest.mark.envoy, pytest.mark.timeout(1200)]

EXAMPLE = Path(__file__).parents[3] / "policies" / "examples" / "conversations.yaml"
AFFINITY = "  affinity:\n    prefix: {}\n"
TRIES = 4


@pytest.mark.parametrize(
    ("scenario", "control", "check"),
    [
        ("sessions-survive-hang", "", "prefixHitPercent"),
        ("hot-prefix", AFFINITY + "    slackPercent: 1000\n", "largestShareTimes"),
    ],
    ids=["no-affinity", "no-bound"],
)
async def test_scenario_passes_with_affinity_and_fails_without(
    scenario: str, control: str, check: str, tmp_path: Path
) -> None:
    kept = await findings([scenario, "-f", str(EXAMPLE)], tmp_path / "with", tries=TRIES)
    assert {name: one["why"] for name, one in kept.items() if one["answer"] != "yes"} == {}
    text = EXAMPLE.read_text()
    assert AFFINITY in text
    file = tmp_path / "control.yaml"
    file.write_text(text.replace(AFFINITY, control))
    # Where requests went is clear on a busy machine, too.
    missed = await findings([scenario, "-f", str(file)], tmp_path / "without", tries=1)
    assert missed[check]["answer"] == "no", missed[check]
