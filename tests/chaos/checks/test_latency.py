"""Latency limits: of good answers, first tokens, silences inside streams, and refusals."""

from typing import Any

import pytest

from chaos.checks.case import case_of
from chaos.checks.finding import Answer
from chaos.checks.latency import answer_p99, first_token_p99, refused_within, token_gap_p99
from chaos.history.events import Request
from chaos.history.outcomes import Reason
from tests.chaos import histories

LIMITS = {"answerP99": "2s", "firstTokenP99": "1s", "tokenGapP99": "300ms", "refusedWithin": "200ms"}
STREAM: dict[str, Any] = {"streaming": True, "first_token_s": 0.2, "longest_gap_s": 0.1}


def answer(check: Any, *requests: Request) -> Any:
    history = histories.history(
        histories.outage("e0"), began=histories.began(hypothesis=LIMITS), requests=list(requests)
    )
    return check(case_of(history))


@pytest.mark.parametrize(("slow_s", "said"), [(1.9, Answer.YES), (2.1, Answer.NO)])
def test_good_answers_have_a_limit(slow_s: float, said: Answer) -> None:
    found = answer(answer_p99, histories.request(1, 12.0), histories.request(2, 13.0, latency_s=slow_s))
    assert found.answer is said
    assert "load-1-2 at 13.0 s by way of p0" in found.why
    assert found.at_s == (13.0 if said is Answer.NO else None)


def test_one_slow_answer_in_two_hundred_is_within_the_99th_percentile() -> None:
    quick = [histories.request(number, 11.0 + number / 20) for number in range(199)]
    assert answer(answer_p99, *quick, histories.request(999, 13.0, latency_s=9.0)).answer is Answer.YES


def test_what_came_before_the_fault_and_what_failed_is_not_judged() -> None:
    before = histories.request(1, 9.0, latency_s=8.0)
    failed = histories.request(2, 12.0, reason=Reason.TIMEOUT, latency_s=10.0)
    assert answer(answer_p99, before, failed, histories.request(3, 13.0)).answer is Answer.YES


@pytest.mark.parametrize(
    ("check", "field"), [(first_token_p99, "first_token_s"), (token_gap_p99, "longest_gap_s")]
)
def test_streams_have_limits_of_their_own(check: Any, field: str) -> None:
    assert answer(check, histories.request(1, 12.0, **STREAM)).answer is Answer.YES
    assert answer(check, histories.request(1, 12.0, **{**STREAM, field: 1.5})).answer is Answer.NO


@pytest.mark.parametrize("check", [answer_p99, first_token_p99, token_gap_p99])
def test_without_a_good_answer_nothing_is_known(check: Any) -> None:
    assert answer(check, histories.request(1, 12.0, reason=Reason.TIMEOUT)).answer is Answer.UNKNOWN


def test_who_is_turned_away_is_told_soon() -> None:
    soon = histories.request(1, 12.0, reason=Reason.SHED, latency_s=0.02)
    late = histories.request(2, 13.0, reason=Reason.SHED, latency_s=3.0)
    assert answer(refused_within, soon).answer is Answer.YES
    found = answer(refused_within, soon, late)
    assert (found.answer, found.at_s) == (Answer.NO, 13.0)
    assert answer(refused_within, histories.request(3, 12.0)).answer is Answer.YES
    assert answer(refused_within).answer is Answer.UNKNOWN
