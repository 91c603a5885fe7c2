"""Verdicts from findings, and exit statuses."""

from dataclasses import replace

import pytest

from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.experiment_verdict import (
    EXIT_STATUS,
    ExperimentVerdict,
    combined_result,
    overall_result,
    under_test,
    verdict,
)
from chaos.history.history_events import CpuUsage
from tests.chaos import history_builders

YES, NO, UNKNOWN = CheckResult.YES, CheckResult.NO, CheckResult.UNKNOWN


def finding(check: str, answer: CheckResult) -> CheckFinding:
    return CheckFinding(check=check, answer=answer, why="")


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([YES, YES], YES),
        ([YES, UNKNOWN], UNKNOWN),
        ([YES, NO], NO),
        ([NO, UNKNOWN], NO),
        ([], UNKNOWN),
    ],
)
def test_one_failed_or_inconclusive_check_decides_the_verdict(
    answers: list[CheckResult], expected: CheckResult
) -> None:
    assert combined_result([finding(f"check{place}", one) for place, one in enumerate(answers)]) is expected


@pytest.mark.parametrize(("check", "expected"), [("goodputPercent", UNKNOWN), ("amplification", NO)])
def test_slow_bench_keeps_only_machine_independent_failures(check: str, expected: CheckResult) -> None:
    assert combined_result([finding(check, NO), finding("bench", UNKNOWN)]) is expected


@pytest.mark.parametrize(
    ("answers", "expected"), [([YES, YES], YES), ([YES, UNKNOWN], UNKNOWN), ([UNKNOWN, NO], NO), ([], UNKNOWN)]
)
def test_worst_experiment_decides_the_overall_result(answers: list[CheckResult], expected: CheckResult) -> None:
    assert overall_result(answers) is expected


def test_exit_status_is_zero_only_for_pass_and_two_for_usage_errors() -> None:
    assert EXIT_STATUS == {YES: 0, NO: 1, UNKNOWN: 3}


def test_busy_machine_never_passes() -> None:
    quiet = history_builders.history(
        began=history_builders.began(hypothesis={"goodputPercent": 90}, policies=""),
        requests=[history_builders.request(number, number / 10) for number in range(300)],
        attempts=[history_builders.attempt(number, f"e{number % 4}", number / 10) for number in range(300)],
    )
    assert verdict(quiet).answer is YES
    busy = history_builders.history(
        began=quiet.began,
        requests=quiet.requests,
        attempts=quiet.attempts,
        used=CpuUsage(at_s=30.0, processes={}, machine=100.0, ours=10.0),
    )
    assert verdict(busy).answer is UNKNOWN


def test_comparison_subjects_do_not_count_in_the_verdict() -> None:
    def judged(subject: str, answer: CheckResult) -> ExperimentVerdict:
        seen = history_builders.history(began=replace(history_builders.began(), subject=subject))
        return ExperimentVerdict(history=seen, findings=(), answer=answer)

    mine, naive = judged("mine", YES), judged("naive", NO)
    assert under_test([mine, naive]) is NO
    assert under_test([mine, naive], beside={"naive"}) is YES
    assert under_test([naive, naive], beside={"naive"}) is NO
