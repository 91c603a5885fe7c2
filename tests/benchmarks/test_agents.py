"""The benchmark of agents runs, at a size that takes no time, and says when the target is missed."""

import json
from pathlib import Path

import pytest

from benchmarks import agents


def test_benchmark_measures_every_agent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "SETTLE_S", 0.0)
    monkeypatch.setattr(agents, "TARGET_PERCENT", 0.0)
    out = tmp_path / "results" / "out.json"
    asked = ["--agents", "12", "--kind", "busy", "--window", "2.5", "--json", str(out)]
    # Each says something every second; who did not run for two of them is asked again.
    for _ in range(5):
        assert agents.main(asked) == 1, "no server needs nothing at all"
        (row,) = json.loads(out.read_text())["rows"]
        if row["reports_per_s"] >= 12 / 2.5:
            break
    assert row["agents"] == 12
    assert 12 / 2.5 <= row["reports_per_s"] <= 12 * 8
    assert row["with_agents"]["rss_mib"] > 20
    assert "12" in capsys.readouterr().out
