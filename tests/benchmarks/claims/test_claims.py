"""Claims stand beside what was found, and a live run is told where there is one."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.claims.claims import hedging, spare_capacity, table_of_spares, wasted_calls
from benchmarks.claims.live_results import retry_storm
from chaos.planning.retry_storm_model import BREAKER, HEDGED, HEDGED_IN_SPARE, NAIVE, RetryStormModel, run_model

SHORT = RetryStormModel(ticks=600)


def result(contestant: str, wasted_s: float, made_at: str = "2026-01-01", problems: tuple[str, ...] = ()) -> str:
    found: dict[str, Any] = {
        "scenario": "S1",
        "scenario_title": "half fail",
        "contestant": contestant,
        "contestant_title": contestant,
        "load_percent": 80.0,
        "seed": 1,
        "made_at": made_at,
        "bench": {"problems": problems},
        "measures": {
            "both": {"goodput_percent": 50.0},
            "waste": {"wasted_s": wasted_s},
            "calls_per_request": 2.5,
        },
    }
    return json.dumps(found)


def test_live_runs_are_told_in_pairs(tmp_path: Path) -> None:
    assert retry_storm(tmp_path) is None
    (tmp_path / "S1.80.naive.seed1.json").write_text(result("naive", 100.0))
    assert retry_storm(tmp_path) is None, "one side alone says nothing"
    (tmp_path / "S1.80.switchgear.seed1.json").write_text(result("switchgear", 4.0))
    found = retry_storm(tmp_path)
    assert found is not None
    assert found.wasted_times == pytest.approx(25)


def test_a_run_on_a_bad_bench_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "S1.80.naive.seed1.json").write_text(result("naive", 100.0, problems=("late",)))
    (tmp_path / "S1.80.switchgear.seed1.json").write_text(result("switchgear", 4.0))
    assert retry_storm(tmp_path) is None


def test_the_spares_of_the_table_are_borne_out() -> None:
    found = [next(table_of_spares()), *spare_capacity()]
    assert len(found) == 4
    assert all(one.holds for one in found)


def test_a_run_of_another_length_is_not_the_published_one() -> None:
    pair = run_model(NAIVE, SHORT), run_model(BREAKER, SHORT)
    found = wasted_calls(*pair, [pair, pair], None)
    assert not found.holds
    assert found.live == ""


def test_hedging_is_told_apart_by_room() -> None:
    found = list(hedging(run_model(NAIVE, SHORT), run_model(HEDGED, SHORT), run_model(HEDGED_IN_SPARE, SHORT)))
    assert [one.holds for one in found] == [True, True]
    assert [one.published for one in found] == ["helps the tail", "hurts"]
