"""Goodput: absolute, relative to the possible, and before the first fault."""

from dataclasses import replace
from typing import Any

import pytest

from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import check_input
from chaos.checks.goodput_checks import goodput, goodput_of_possible, steady_before
from chaos.history.history_events import RequestRecord
from chaos.history.recorded_history import History
from chaos.history.request_outcomes import OutcomeReason
from tests.chaos import history_builders


def asked(good_of_ten: int, from_s: float, to_s: float, first: int = 0) -> list[RequestRecord]:
    """Ten requests a second, ``good_of_ten`` of each ten good."""
    return [
        history_builders.request(
            first + place,
            from_s + place / 10,
            reason=OutcomeReason.OK if place % 10 < good_of_ten else OutcomeReason.TIMEOUT,
        )
        for place in range(round(10 * (to_s - from_s)))
    ]


def seen(requests: list[RequestRecord], *, limits: dict[str, Any], **more: Any) -> History:
    began = history_builders.began(hypothesis=limits, rate_per_s=10.0)
    return history_builders.history(history_builders.outage("e0"), began=began, requests=requests, **more)


def found(check: Any, history: History) -> CheckFinding:
    answer = check(check_input(history))
    assert answer is not None
    return answer  # type: ignore[no-any-return] # a check's


@pytest.mark.parametrize(("good", "answer"), [(9, CheckResult.YES), (8, CheckResult.NO)])
def test_goodput_counts_from_first_fault_to_end(good: int, answer: CheckResult) -> None:
    before, after = asked(2, 0.0, 10.0), asked(good, 10.0, 30.0, first=1000)
    told = found(goodput, seen([*before, *after], limits={"goodputPercent": 85}))
    assert told.answer is answer
    assert told.numbers["goodput_percent"] == pytest.approx(10.0 * good)


def test_failed_goodput_reports_times_failures_and_faults() -> None:
    requests = [*asked(10, 10.0, 15.0), *asked(5, 15.0, 30.0, first=1000)]
    told = found(goodput, seen(requests, limits={"goodputPercent": 85}))
    assert told.at_s == 15.0
    assert "125 of 200 caller requests" in told.why
    assert "75 timeout" in told.why
    assert "hang of e0 (10.0 s to 20.0 s)" in told.why


def test_caller_request_is_good_if_one_attempt_is() -> None:
    first = replace(history_builders.request(1, 12.0, reason=OutcomeReason.SHED), question="same")
    second = replace(history_builders.request(2, 13.0), question="same", try_number=2)
    assert found(goodput, seen([first, second], limits={"goodputPercent": 100})).answer is CheckResult.YES
    third = replace(history_builders.request(2, 13.0, reason=OutcomeReason.TIMEOUT), question="same", try_number=2)
    told = found(goodput, seen([first, third], limits={"goodputPercent": 100}))
    assert (told.answer, told.numbers["questions"]) == (CheckResult.NO, 1)


def test_goodput_limit_excludes_excess_load() -> None:
    # Three of four engines hang for half of the time: 8 a second are left, and a queue of 16.
    hung = history_builders.outage("e0", "e1", "e2")
    requests = [*asked(10, 0.0, 10.0), *asked(9, 10.0, 20.0, first=1000), *asked(10, 20.0, 30.0, first=2000)]
    began = history_builders.began(hypothesis={"goodputOfPossiblePercent": 95}, rate_per_s=10.0)
    told = found(goodput_of_possible, history_builders.history(hung, began=began, requests=requests))
    assert told.answer is CheckResult.YES
    assert 90.0 < told.numbers["possible_percent"] <= 100.0


def test_goodput_before_the_fault_must_meet_the_limit() -> None:
    good = [*asked(10, 0.0, 10.0), *asked(9, 10.0, 30.0, first=1000)]
    bad = [*asked(5, 0.0, 10.0), *asked(9, 10.0, 30.0, first=1000)]
    limits = {"goodputPercent": 85}
    assert found(steady_before, seen(good, limits=limits)).answer is CheckResult.YES
    told = found(steady_before, seen(bad, limits=limits))
    assert (told.answer, told.at_s) == (CheckResult.NO, 0.0)
    assert "before the first fault only 52.9 %" in told.why


def test_absent_limit_is_not_judged() -> None:
    case = check_input(seen(asked(1, 0.0, 30.0), limits={}))
    assert goodput(case) is None
    assert goodput_of_possible(case) is None
    assert steady_before(case) is None


def test_goodput_without_requests_is_unknown() -> None:
    told = found(goodput, seen([], limits={"goodputPercent": 85}))
    assert told.answer is CheckResult.UNKNOWN


@pytest.mark.parametrize(("until_s", "answer"), [(12.0, CheckResult.UNKNOWN), (29.0, CheckResult.NO)])
def test_truncated_history_fails_only_if_limit_is_unreachable(until_s: float, answer: CheckResult) -> None:
    requests = [*asked(10, 0.0, 10.0), *asked(5, 10.0, until_s, first=1000)]
    told = found(goodput, seen(requests, limits={"goodputPercent": 85}, ended_s=None))
    assert told.answer is answer
