"""The control loop's benchmark decides something, and says what it cost."""

import json
from pathlib import Path

from benchmarks.decide_loop import FleetSize, main, measure


def test_a_small_loop_is_measured_with_and_without_what_follows() -> None:
    row = measure(FleetSize(engines=12, proxies=6, pools=2), 8, None)
    assert row.rounds == 8
    assert 0 < row.decide_p50_ms <= row.decide_p99_ms
    assert row.whole_core_percent > 0
    # Traffic moves what single proxies may have in flight.
    assert row.own_layers_per_round > 0


def test_a_profile_is_written_instead_of_a_result(tmp_path: Path, capsys) -> None:
    argv = ["--engines", "6", "--proxies", "3", "--pools", "1", "--rounds", "4"]
    assert main([*argv, "--profile", str(tmp_path / "p"), "--json", str(tmp_path / "r.json")]) == 0
    assert (tmp_path / "p").stat().st_size > 0
    assert not (tmp_path / "r.json").exists()
    assert "function calls" in capsys.readouterr().out
    main([*argv, "--json", str(tmp_path / "r.json")])
    assert json.loads((tmp_path / "r.json").read_text())["rows"][0]["rounds"] == 4
