"""The benchmark runs, at sizes that take no time, and says when a target is missed."""

import json
from pathlib import Path

import pytest

from benchmarks import policy_to_snapshot
from benchmarks.policy_to_snapshot import SnapshotBuildRow, growth, main


def test_benchmark_measures_and_writes_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results" / "out.json"
    main(["--pools", "1", "2", "--engines", "3", "--edits", "2", "--json", str(out)])
    written = json.loads(out.read_text())
    assert [row["pools"] for row in written["rows"]] == [1, 2]
    assert set(written["rows"][0]["cold_s"]) == {"load", "fold", "decide", "translate", "assemble"}
    assert "cost per pool from one size to the next, edit" in capsys.readouterr().out


def test_a_missed_target_is_the_answer_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_to_snapshot, "TARGET_EDIT_S", 0.0)
    assert main(["--pools", "1", "--engines", "1", "--edits", "1", "--json", str(tmp_path / "out.json")]) == 1


def test_growth_is_one_when_cost_is_linear() -> None:
    rows = [
        SnapshotBuildRow(pools=pools, engines=1, cold_s={"load": 0.01 * pools}, edit_s={}, verdict_s={})
        for pools in (10, 100, 1000)
    ]
    assert growth(rows, "cold_s") == pytest.approx([1.0, 1.0])
