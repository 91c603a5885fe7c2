"""The comparison with committed costs: what grew by a third is found, and only with the same Python."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import regressions
from benchmarks.regressions import CostGrowthRow, committed_costs, cpu_s, fixed_loop, grown, python_version


@pytest.fixture
def costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """What the next runs of the only group cost, in order; the last one repeats."""
    planned: dict[str, list[float]] = {"a round": [3.0]}

    def measured_in_child(_module: str, _group: str) -> Mapping[str, float]:
        return {what: some.pop(0) if len(some) > 1 else some[0] for what, some in planned.items()}

    monkeypatch.setattr(regressions, "measured_in_child", measured_in_child)
    monkeypatch.setattr(regressions, "COMMITTED", tmp_path / "committed.json")
    monkeypatch.setattr(regressions, "COSTS", {"group": dict})
    return planned


def run(tmp_path: Path, *flags: str) -> int:
    return regressions.main(["--json", str(tmp_path / "now.json"), *flags])


def test_cost_that_grew_by_a_third_fails(tmp_path: Path, costs: dict[str, list[float]]) -> None:
    costs["a round"] = [3.5, 3.0, 3.2]
    assert run(tmp_path, "--record") == 0
    assert json.loads((tmp_path / "committed.json").read_text())["costs"] == {"a round": 3.0}
    costs["a round"] = [3.9]
    assert run(tmp_path) == 0
    costs["a round"] = [4.1]
    assert run(tmp_path) == 1
    assert json.loads((tmp_path / "committed.json").read_text())["costs"] == {"a round": 3.0}, "not overwritten"


def test_one_quiet_run_among_busy_ones_is_enough(tmp_path: Path, costs: dict[str, list[float]]) -> None:
    run(tmp_path, "--record")
    costs["a round"] = [*[9.0] * (regressions.RUNS + regressions.MORE_RUNS - 1), 3.0]
    assert run(tmp_path) == 0


def test_new_cost_and_another_python_are_not_compared(
    tmp_path: Path, costs: dict[str, list[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "--record")
    costs["a new one"] = [100.0]
    assert run(tmp_path) == 0
    record = {"python": "2.7", "costs": {"a round": 0.1}}
    (tmp_path / "committed.json").write_text(json.dumps(record))
    assert run(tmp_path) == 0
    assert "was recorded with Python 2.7" in capsys.readouterr().out


def test_committed_costs_name_what_is_measured() -> None:
    record = json.loads(regressions.COMMITTED.read_text())
    assert record["costs"]
    assert all(cost > 0 for cost in record["costs"].values())
    if record["python"] == python_version():
        assert committed_costs(regressions.COMMITTED) == record["costs"]


def test_fixed_loop_takes_cpu_time_and_always_does_the_same() -> None:
    assert fixed_loop() == fixed_loop()
    assert cpu_s(fixed_loop) > 0


def test_growth_needs_a_committed_cost() -> None:
    assert grown([CostGrowthRow(what="new", now=5.0, committed=None)]) == []
