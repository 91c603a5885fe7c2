"""What findings come to, and what a pipeline is told."""

from dataclasses import replace

import pytest

from chaos.checks.finding import Answer, Finding
from chaos.checks.verdict import EXIT_STATUS, Verdict, answer_of, overall, under_test, verdict
from chaos.history.events import Used
from tests.chaos import histories

YES, NO, UNKNOWN = Answer.YES, Answer.NO, Answer.UNKNOWN


def finding(check: str, answer: Answer) -> Finding:
    return Finding(check=check, answer=answer, why="")


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([YES, YES], YES),
        ([YES, UNKNOWN], UNKNOWN),
        ([YES, NO], NO),
        ([NO, UNKNOWN], NO),
        ([], UNKNOWN),
    ],
)
def test_one_no_is_enough_and_one_doubt_too(answers: list[Answer], said: Answer) -> None:
    assert answer_of([finding(f"check{place}", one) for place, one in enumerate(answers)]) is said


@pytest.mark.parametrize(("check", "said"), [("goodputPercent", UNKNOWN), ("amplification", NO)])
def test_on_a_bench_that_did_not_keep_up_only_what_does_not_depend_on_it_is_a_no(check: str, said: Answer) -> None:
    assert answer_of([finding(check, NO), finding("bench", UNKNOWN)]) is said


@pytest.mark.parametrize(
    ("answers", "said"), [([YES, YES], YES), ([YES, UNKNOWN], UNKNOWN), ([UNKNOWN, NO], NO), ([], UNKNOWN)]
)
def test_of_several_experiments_the_worst_counts(answers: list[Answer], said: Answer) -> None:
    assert overall(answers) is said


def test_only_a_yes_is_zero_and_two_is_left_to_who_asked_wrongly() -> None:
    assert EXIT_STATUS == {YES: 0, NO: 1, UNKNOWN: 3}


def test_a_busy_machine_never_passes() -> None:
    quiet = histories.history(
        began=histories.began(hypothesis={"goodputPercent": 90}, policies=""),
        requests=[histories.request(number, number / 10) for number in range(300)],
        attempts=[histories.attempt(number, f"e{number % 4}", number / 10) for number in range(300)],
    )
    assert verdict(quiet).answer is YES
    busy = histories.history(
        began=quiet.began,
        requests=quiet.requests,
        attempts=quiet.attempts,
        used=Used(at_s=30.0, processes={}, machine=100.0, ours=10.0),
    )
    assert verdict(busy).answer is UNKNOWN


def test_who_only_stands_beside_does_not_count() -> None:
    def judged(subject: str, answer: Answer) -> Verdict:
        seen = histories.history(began=replace(histories.began(), subject=subject))
        return Verdict(history=seen, findings=(), answer=answer)

    mine, naive = judged("mine", YES), judged("naive", NO)
    assert under_test([mine, naive]) is NO
    assert under_test([mine, naive], beside={"naive"}) is YES
    assert under_test([naive, naive], beside={"naive"}) is NO
