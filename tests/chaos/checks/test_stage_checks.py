"""Prompts that the prefill pool computed, against good answers."""

import pytest

from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import check_input
from chaos.checks.stage_checks import prefilled_remotely
from chaos.fake_engine.call_log import CallOutcome as Fate
from chaos.history.history_reader import history_of
from chaos.history.recorded_history import History
from chaos.history.request_outcomes import OutcomeReason
from tests.chaos.history_builders import attempt, began, request

LIMIT = {"prefilledRemotelyPercent": 80}


def judged(good: int, remote: int, *, failed: int = 0, fate: Fate = Fate.FINISHED) -> tuple[History, CheckFinding]:
    """A history read from its events; the first ``remote`` requests were prefilled remotely."""
    requests = [request(number, 12.0) for number in range(good)]
    requests += [request(good + number, 12.0, reason=OutcomeReason.SHED) for number in range(failed)]
    answers = [attempt(number, "e0", 12.1) for number in range(good)]
    prefills = [attempt(number, "prefill-e0", 12.0, fate=fate, prefill=True) for number in range(remote)]
    history = history_of([began(hypothesis=LIMIT), *requests, *answers, *prefills])
    found = prefilled_remotely(check_input(history))
    assert found is not None
    return history, found


@pytest.mark.parametrize(
    ("good", "remote", "failed", "expected"),
    [
        (10, 8, 0, CheckResult.YES),
        (10, 7, 0, CheckResult.NO),
        (10, 8, 30, CheckResult.YES),
        (0, 0, 5, CheckResult.UNKNOWN),
    ],
)
def test_prompts_of_good_answers_are_counted(good: int, remote: int, failed: int, expected: CheckResult) -> None:
    assert judged(good, remote, failed=failed)[1].answer is expected


def test_prefill_that_failed_does_not_count() -> None:
    assert judged(10, 10, fate=Fate.ABORTED)[1].answer is CheckResult.NO


def test_prefills_do_not_count_as_attempts() -> None:
    history, _ = judged(10, 8)
    assert (len(history.attempts), len(history.prefills)) == (10, 8)


def test_scenario_without_the_promise_has_no_finding() -> None:
    assert prefilled_remotely(check_input(history_of([began(), request(1, 12.0)]))) is None
