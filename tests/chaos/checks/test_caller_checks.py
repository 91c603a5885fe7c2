"""Groups of callers: quotas kept, hopeless deadlines refused, and nothing lost by the others."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from chaos.checks.caller_checks import (
    caller_first_token_times,
    caller_goodput,
    caller_p99_times,
    hopeless_refused,
    quota_error,
)
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


def answer(
    check: Any,
    *requests: RequestRecord,
    limits: dict[str, float] = LIMITS,
    callers: list[dict[str, Any]] = CALLERS,
) -> CheckFinding:
    began = history_builders.began(
        hypothesis=limits, spec={"load": {"callers": callers}}, rate_per_s=RATE_PER_S, seconds=SECONDS
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


BEGINS_S = 14.0
SHARING = [
    {"name": "noisy", "demand": 10, "timesShare": 10, "begins": f"{BEGINS_S:g}s"},
    {"name": "calm", "demand": 1, "timesShare": 0.5},
]
ABOVE_SHARE: dict[str, Any] = {"reason": OutcomeReason.SHED, "status": 429, "refusal": "above-fair-share"}


def sharing(before_s: float, after_s: float, count: int = 200) -> list[RequestRecord]:
    """Answers of both groups: calm ones that took this long before and after the noisy one began, and refusals."""
    calm = [
        history_builders.request(number, at_s, latency_s=before_s if at_s < BEGINS_S else after_s, group="calm")
        for number in range(count)
        for at_s in (LEARNED_S + JUDGED_S * number / count,)
    ]
    return [*calm, *of_group("noisy", 10, 200, ABOVE_SHARE)]


@pytest.mark.parametrize(
    ("after_s", "count", "expected"),
    [
        (1.15, 400, CheckResult.YES),
        (1.25, 400, CheckResult.NO),
        (1.0, 100, CheckResult.UNKNOWN),
    ],
)
def test_p99_is_compared_with_the_time_before_a_tenant_above_its_share(
    after_s: float, count: int, expected: CheckResult
) -> None:
    found = answer(
        caller_p99_times, *sharing(1.0, after_s, count), limits={"callerP99Times": 1.2}, callers=SHARING
    )
    assert found.answer is expected


LARGE = [{"name": "noisy", "demand": 1, "timesTokens": 15, "begins": f"{BEGINS_S:g}s"}, {"name": "calm"}]


@pytest.mark.parametrize(("first_s", "expected"), [(1.25, CheckResult.YES), (1.35, CheckResult.NO)])
def test_first_tokens_are_compared_with_the_time_before_large_requests(
    first_s: float, expected: CheckResult
) -> None:
    streams = [
        replace(one, first_token_s=1.0 if one.at_s < BEGINS_S else first_s, latency_s=9.0)
        for one in sharing(1.0, 1.0, 400)
    ]
    limits = {"callerFirstTokenTimes": 1.3}
    found = answer(caller_first_token_times, *streams, limits=limits, callers=LARGE)
    assert found.answer is expected
    whole = [replace(one, first_token_s=None) for one in streams]
    unknown = answer(caller_first_token_times, *whole, limits=limits, callers=LARGE)
    assert unknown.answer is CheckResult.UNKNOWN


@pytest.mark.parametrize(
    ("lost_at_s", "expected"),
    [(BEGINS_S + 1.0, CheckResult.YES), (BEGINS_S - 1.0, CheckResult.NO), (BEGINS_S + 5.0, CheckResult.NO)],
)
def test_losses_count_except_while_a_limit_is_not_in_force_yet(lost_at_s: float, expected: CheckResult) -> None:
    lost = [history_builders.request(900 + one, lost_at_s, group="calm", **ABOVE_SHARE) for one in range(5)]
    found = answer(caller_goodput, *sharing(1.0, 1.0), *lost, limits=LIMITS, callers=SHARING)
    assert found.answer is expected
    assert ("5 lost while limits were not in force" in found.why) is (expected is CheckResult.YES)
    assert "noisy" not in found.why
