"""A bench that cannot keep up reports that instead of numbers."""

import pytest

from benchmarks.failover.experiment_history import CpuUse
from benchmarks.failover.experiment_setting import ExperimentSetting
from benchmarks.failover.result import experiment_validity
from chaos.history.request_outcomes import OutcomeReason

SETTING = ExperimentSetting(engines=2)


def good(story, **more: object) -> list:
    return [story.outcome(number, 101.0 + 0.05 * number, **more) for number in range(100)]


def problems(story, **more: object) -> str:
    return "; ".join(experiment_validity(story.history(**{"outcomes": good(story), **more}), SETTING).problems)


def test_a_bench_that_keeps_up_has_no_problem(story) -> None:
    calls = [story.attempt(number, 0, 101.001 + 0.05 * number) for number in range(100)]
    assert not problems(story, attempts=calls, use=CpuUse(machine=50.0, ours=40.0))


def test_run_with_late_requests_is_invalid(story) -> None:
    assert "requests sent late (p99): 50 ms" in problems(story, outcomes=good(story, lag_s=0.05))


def test_one_long_pause_of_the_generator_does_not_count_either(story) -> None:
    outcomes = [*good(story), *good(story), story.outcome(999, 112.0, lag_s=0.5)]
    assert "request sent late (max): 500 ms" in problems(story, outcomes=outcomes)


def test_engines_that_keep_a_finished_answer_do_not_count(story) -> None:
    calls = [
        story.attempt(number, 0, 101.0 + 0.05 * number, slot_s=0.5, closed_s=101.6 + 0.05 * number)
        for number in range(100)
    ]
    assert "engine answers sent late (p99): 100 ms" in problems(story, attempts=calls)


def test_a_long_way_to_the_engine_does_not_count(story) -> None:
    calls = [story.attempt(number, 0, 101.2 + 0.05 * number) for number in range(100)]
    assert "request path slow (p99): 200 ms" in problems(story, attempts=calls)


@pytest.mark.parametrize(
    ("machine", "ours", "said"),
    [(60.0, 20.0, "other programs used 40 %"), (95.0, 90.0, "95 % busy"), (50.0, 40.0, "")],
)
def test_a_machine_that_others_use_does_not_count(story, machine: float, ours: float, said: str) -> None:
    found = problems(story, use=CpuUse(machine=machine, ours=ours))
    assert said in found
    assert bool(found) == bool(said)


def test_a_bench_that_was_not_well_before_the_fault_does_not_count(story) -> None:
    assert "before the fault began" in problems(story, outcomes=good(story, reason=OutcomeReason.RESET))


def test_requests_hit_by_the_fault_do_not_invalidate_the_bench(story) -> None:
    hit = [story.outcome(500 + number, 109.5, reason=OutcomeReason.TIMEOUT) for number in range(20)]
    assert not problems(story, outcomes=[*good(story), *hit])
