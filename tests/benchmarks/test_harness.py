"""The harness of the benchmarks: percentiles, groups of trials, the JSON file and the exit code."""

import json
from pathlib import Path

import pytest

from benchmarks.harness import ResultColumn, Trial, option_parser, percentile, publish, result_table, trial_groups


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(n) for n in range(1, 21)]
    assert (percentile(values, 50), percentile(values, 99), percentile([3.0], 50)) == (10.0, 20.0, 3.0)


def test_trials_of_the_same_labels_are_one_group() -> None:
    trials = [Trial(labels={"fault": fault}, values={"last_s": n}) for n, fault in enumerate(("b", "a", "b"))]
    groups = trial_groups(trials)
    assert [(some.labels["fault"], some.values("last_s")) for some in groups] == [("b", [0, 2]), ("a", [1])]
    assert groups[0].percentile("last_s", 99) == 2
    assert trials[0].record() == {"fault": "b", "last_s": 0}


def test_results_are_printed_and_written_and_a_missed_target_is_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = option_parser("fanout", "First line.\n\nMore.").parse_args([])
    assert options.json == Path("benchmarks/results/fanout.json")
    table = result_table("numbers", [ResultColumn(heading="square", cell=lambda n: f"{n * n}")], [7])
    path = tmp_path / "results" / "out.json"
    assert publish([table, "a remark"], path, {"rows": [7]}) == 0
    assert json.loads(path.read_text()) == {"rows": [7]}
    printed = capsys.readouterr().out
    assert "square" in printed
    assert "49" in printed
    assert "a remark" in printed
    assert publish([], path, {}, met=False) == 1
