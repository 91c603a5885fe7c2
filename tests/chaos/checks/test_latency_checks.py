"""Latency limits of good answers, first tokens, token gaps and refusals."""

from typing import Any

import pytest

from chaos.checks.check_finding import CheckResult
from chaos.checks.check_input import check_input
from chaos.checks.latency_checks import answer_p99, first_token_p99, refused_within, token_gap_p99
from chaos.history.history_events import RequestRecord
from chaos.history.request_outcomes import OutcomeReason
from tests.chaos import history_builders

LIMITS = {"answerP99": "2s", "firstTokenP99": "1s", "tokenGapP99": "300ms", "refusedWithin": "200ms"}
STREAM: dict[str, Any] = {"streaming": True, "first_token_s": 0.2, "longest_gap_s": 0.1}


def answer(check: Any, *requests: RequestRecord) -> Any:
    history = history_builders.history(
        history_builders.outage("e0"), began=history_builders.began(hypothesis=LIMITS), requests=list(requests)
    )
    return check(check_input(history))


@pytest.mark.parametrize(("slow_s", "expected"), [(1.9, CheckResult.YES), (2.1, CheckResult.NO)])
def test_p99_of_good_answers_has_a_limit(slow_s: float, expected: CheckResult) -> None:
    found = answer(
        answer_p99, history_builders.request(1, 12.0), history_builders.request(2, 13.0, latency_s=slow_s)
    )
    assert found.answer is expected
    assert "load-1-2 at 13.0 s through p0" in found.why
    assert found.at_s == (13.0 if expected is CheckResult.NO else None)


def test_one_slow_answer_in_200_is_within_p99() -> None:
    quick = [history_builders.request(number, 11.0 + number / 20) for number in range(199)]
    assert answer(answer_p99, *quick, history_builders.request(999, 13.0, latency_s=9.0)).answer is CheckResult.YES


def test_latency_ignores_failures_and_requests_before_the_fault() -> None:
    before = history_builders.request(1, 9.0, latency_s=8.0)
    failed = history_builders.request(2, 12.0, reason=OutcomeReason.TIMEOUT, latency_s=10.0)
    assert answer(answer_p99, before, failed, history_builders.request(3, 13.0)).answer is CheckResult.YES


@pytest.mark.parametrize(
    ("check", "field"), [(first_token_p99, "first_token_s"), (token_gap_p99, "longest_gap_s")]
)
def test_streams_have_time_to_first_token_and_inter_token_limits(check: Any, field: str) -> None:
    assert answer(check, history_builders.request(1, 12.0, **STREAM)).answer is CheckResult.YES
    assert answer(check, history_builders.request(1, 12.0, **{**STREAM, field: 1.5})).answer is CheckResult.NO


@pytest.mark.parametrize("check", [answer_p99, first_token_p99, token_gap_p99])
def test_latency_without_good_answers_is_unknown(check: Any) -> None:
    assert (
        answer(check, history_builders.request(1, 12.0, reason=OutcomeReason.TIMEOUT)).answer
        is CheckResult.UNKNOWN
    )


def test_rejected_requests_have_a_latency_limit() -> None:
    soon = history_builders.request(1, 12.0, reason=OutcomeReason.SHED, latency_s=0.02)
    late = history_builders.request(2, 13.0, reason=OutcomeReason.SHED, latency_s=3.0)
    assert answer(refused_within, soon).answer is CheckResult.YES
    found = answer(refused_within, soon, late)
    assert (found.answer, found.at_s) == (CheckResult.NO, 13.0)
    assert answer(refused_within, history_builders.request(3, 12.0)).answer is CheckResult.YES
    assert answer(refused_within).answer is CheckResult.UNKNOWN
