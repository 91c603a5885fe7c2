"""Cost of requests: calls per request, wasted slot time, and idle slots while requests are refused."""

from typing import Any

import pytest

from chaos.checks.check_finding import CheckResult
from chaos.checks.check_input import check_input
from chaos.checks.gpu_time_checks import amplification, idle_while_shedding, wasted_gpu_seconds, wasted_percent
from chaos.fake_engine.call_log import CallOutcome as Fate
from chaos.history.request_outcomes import OutcomeReason
from tests.chaos import history_builders

LIMITS = {"amplification": 1.5, "wastedPercent": 10, "wastedGpuSeconds": 1, "idleWhileSheddingPercent": 20}


def answer(check: Any, **more: Any) -> Any:
    began = history_builders.began(hypothesis=LIMITS, engines=history_builders.engines(2, slots=2))
    return check(check_input(history_builders.history(history_builders.outage("e0"), began=began, **more)))


@pytest.mark.parametrize(("calls", "expected"), [(1, CheckResult.YES), (2, CheckResult.NO)])
def test_retry_amplification_is_calls_per_request(calls: int, expected: CheckResult) -> None:
    found = answer(
        amplification,
        requests=[history_builders.request(1, 12.0)],
        attempts=[history_builders.attempt(1, "e1", 12.0 + place) for place in range(calls)],
    )
    assert found.answer is expected
    assert found.numbers["calls_per_request"] == calls


def test_client_retries_are_counted_separately() -> None:
    requests = [
        history_builders.request(1, 12.0, reason=OutcomeReason.SHED, question="same"),
        history_builders.request(2, 13.0, question="same", try_number=2),
    ]
    found = answer(amplification, requests=requests, attempts=[history_builders.attempt(2, "e1", 13.0)])
    assert found.numbers["calls_per_request"] == 0.5
    assert found.numbers["tries_per_question"] == 2.0
    assert "2.00 attempts" in found.why


def test_engine_without_log_is_counted_by_proxies() -> None:
    samples = [
        history_builders.sample(at_s, {"e0": 10, "e1": sent}) for at_s, sent in ((9.9, 10), (12.0, 11), (13.0, 15))
    ]
    found = answer(
        amplification,
        requests=[history_builders.request(1, 12.0)],
        attempts=[history_builders.attempt(1, "e0", 12.0)],
        samples=samples,
    )
    assert found.numbers["calls"] == 1 + 5
    assert found.answer is CheckResult.NO


@pytest.mark.parametrize("check", [amplification, wasted_percent, wasted_gpu_seconds])
def test_cost_checks_are_unknown_without_engine_logs(check: Any) -> None:
    assert answer(check, requests=[history_builders.request(1, 12.0)]).answer is CheckResult.UNKNOWN


def test_waste_is_judged_in_percent_and_seconds() -> None:
    attempts = [
        *[history_builders.attempt(number, "e1", 12.0) for number in range(9)],
        history_builders.attempt(9, "e0", 12.0, fate=Fate.ABORTED, slot_s=0.9),
    ]
    requests = [history_builders.request(number, 12.0) for number in range(9)]
    share = answer(wasted_percent, requests=requests, attempts=attempts)
    assert share.answer is CheckResult.NO
    assert share.numbers["wasted_percent"] == pytest.approx(100 * 0.9 / 5.4)
    assert "e0 (900 ms)" in share.why
    assert answer(wasted_gpu_seconds, requests=requests, attempts=attempts).answer is CheckResult.YES


def test_slots_must_not_idle_while_requests_are_shed() -> None:
    # e0 hangs, e1 has two slots: one busy or both when a request is refused.
    shed = history_builders.request(9, 15.0, reason=OutcomeReason.SHED, latency_s=0.05)
    busy = [history_builders.attempt(place, "e1", 14.5, slot_s=1.0) for place in range(2)]
    requests = [shed, history_builders.request(0, 14.5)]
    found = answer(idle_while_shedding, requests=requests, attempts=busy)
    assert (found.answer, found.numbers["idle_percent"]) == (CheckResult.YES, pytest.approx(0.0))
    found = answer(idle_while_shedding, requests=requests, attempts=busy[:1])
    assert (found.answer, found.numbers["idle_percent"]) == (CheckResult.NO, pytest.approx(50.0))
    assert "most on e1" in found.why
    assert answer(idle_while_shedding, requests=requests).answer is CheckResult.UNKNOWN
    assert answer(idle_while_shedding, requests=[history_builders.request(1, 12.0)]).answer is CheckResult.YES
