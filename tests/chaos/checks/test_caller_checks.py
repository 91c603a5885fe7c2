"""Groups of callers: quotas kept, hopeless deadlines refused, and nothing lost by the others."""

from collections.abc import Iterator
from typing import Any

import pytest

from chaos.checks.caller_checks import caller_goodput, hopeless_refused, quota_error
from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import check_input
from chaos.history.history_events import RequestRecord
from chaos.history.request_outcomes import OutcomeReason
from tests.chaos import history_builders

RATE_PER_S, SECONDS, LEARNED_S = 16.0, 30.0, 4.0
CALLERS = [
    {"name": "noisy", "demand": 10, "timesQuota": 10},
    {"name": "calm", "demand": 4, "timesQuota": 0.5},
    {"name": "hurried", "demand": 2, "timesService": 0.3},
]
LIMITS = {"quotaErrorPercent": 10, "callerGoodputPercent": 99, "hopelessRefusedPercent": 85}
FOR_QUOTA: dict[str, Any] = {"reason": OutcomeReason.SHED, "status": 429, "refusal": "quota-exceeded"}
FOR_DEADLINE: dict[str, Any] = {"reason": OutcomeReason.SHED, "status": 503, "refusal": "deadline-too-short"}
JUDGED_S = SECONDS - LEARNED_S
"""Quota of noisy: 10 of 16 requests a second, divided by 10: 26 in 26 s."""


def of_group(name: str, good: int, lost: int, lost_as: dict[str, Any]) -> Iterator[RequestRecord]:
    """Requests spread over the judged time."""
    for number in range(good + lost):
        at_s = LEARNED_S + JUDGED_S * number / (good + lost)
        more = {} if number < good else lost_as
        yield history_builders.request(1000 * len(name) + number, at_s, group=name, **more)


def answer(check: Any, *requests: RequestRecord, limits: dict[str, float] = LIMITS) -> CheckFinding:
    began = history_builders.began(
        hypothesis=limits, spec={"load": {"callers": CALLERS}}, rate_per_s=RATE_PER_S, seconds=SECONDS
    )
    history = history_builders.history(began=began, requests=list(requests))
    found = check(check_input(history))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("admitted", "expected"),
    [
        (26, CheckResult.YES),
        (24, CheckResult.YES),
        (28, CheckResult.YES),
        (23, CheckResult.NO),
        (29, CheckResult.NO),
        (260, CheckResult.NO),
    ],
)
def test_admitted_requests_are_compared_with_the_quota(admitted: int, expected: CheckResult) -> None:
    found = answer(quota_error, *of_group("noisy", admitted, 260 - admitted, FOR_QUOTA))
    assert found.answer is expected
    assert f"noisy {admitted} of 260 with a quota of 26.0" in found.why


def test_requests_lost_for_another_reason_were_admitted() -> None:
    shed = {"reason": OutcomeReason.SHED, "status": 503, "refusal": "overloaded"}
    assert answer(quota_error, *of_group("noisy", 26, 234, shed)).answer is CheckResult.NO


def test_burst_at_the_start_does_not_count() -> None:
    burst = [history_builders.request(-number, 0.1, group="noisy") for number in range(1, 50)]
    assert answer(quota_error, *burst, *of_group("noisy", 26, 234, FOR_QUOTA)).answer is CheckResult.YES


@pytest.mark.parametrize(("lost", "expected"), [(1, CheckResult.YES), (2, CheckResult.NO)])
def test_only_groups_that_are_within_their_limits_must_lose_nothing(lost: int, expected: CheckResult) -> None:
    found = answer(
        caller_goodput,
        *of_group("calm", 100 - lost, lost, FOR_QUOTA),
        *of_group("noisy", 26, 234, FOR_QUOTA),
        *of_group("hurried", 2, 50, FOR_DEADLINE),
    )
    assert found.answer is expected
    assert f"calm {100 - lost} of 100 ({lost} refused for its quota)" in found.why
    assert "noisy" not in found.why
    assert "hurried" not in found.why


@pytest.mark.parametrize(("refused", "expected"), [(85, CheckResult.YES), (84, CheckResult.NO)])
def test_hopeless_deadlines_must_be_refused_for_their_deadline(refused: int, expected: CheckResult) -> None:
    found = answer(hopeless_refused, *of_group("hurried", 100 - refused, refused, FOR_DEADLINE))
    assert found.answer is expected
    assert f"hurried {refused} of 100" in found.why


def test_refusals_for_another_reason_do_not_count_for_the_deadline() -> None:
    assert answer(hopeless_refused, *of_group("hurried", 0, 100, FOR_QUOTA)).answer is CheckResult.NO


@pytest.mark.parametrize("check", [quota_error, caller_goodput, hopeless_refused])
def test_group_without_requests_is_unknown(check: Any) -> None:
    assert answer(check, history_builders.request(1, 5.0)).answer is CheckResult.UNKNOWN


@pytest.mark.parametrize("check", [quota_error, caller_goodput, hopeless_refused])
def test_scenario_without_the_promise_has_no_finding(check: Any) -> None:
    began = history_builders.began(spec={"load": {"callers": CALLERS}})
    assert check(check_input(history_builders.history(began=began))) is None
