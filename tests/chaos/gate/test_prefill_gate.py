"""A dead prefill engine in a live lab: callers notice nothing, and half of them do with a fixed list."""

from pathlib import Path

import pytest

from tests.chaos.gate.scenario_runs import findings

# Repeated if the machine was too busy for a verdict.
pytestmark = [pytest.mark.envoy, pytest.mark.timeout(1200)]

EXAMPLE = Path(__file__).parents[3] / "policies" / "examples" / "prefill-and-decode.yaml"
TRIES = 4


async def test_dead_prefill_engine_is_named_by_a_fixed_list_only(tmp_path: Path) -> None:
    kept = await findings(["prefiller-dies", "-f", str(EXAMPLE)], tmp_path / "policies", tries=TRIES)
    assert {name: one["why"] for name, one in kept.items() if one["answer"] != "yes"} == {}
    missed = await findings(["prefiller-dies", "-f", "envoy"], tmp_path / "envoy", tries=1)
    assert missed["goodputPercent"]["answer"] == "no"
    assert "http_error" in missed["goodputPercent"]["why"]
