"""Objectives of the policies under test, judged on the requests of a scenario."""

from collections.abc import Sequence
from typing import Any

import pytest

from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import check_input
from chaos.checks.experiment_verdict import verdict
from chaos.checks.objective_checks import objectives
from chaos.history.history_events import RequestRecord
from chaos.history.request_outcomes import OutcomeReason
from tests.chaos import history_builders

YES, NO, UNKNOWN = CheckResult.YES, CheckResult.NO, CheckResult.UNKNOWN
POOL = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: llama}
spec: {model: m, endpoints: [{name: e0, address: 127.0.0.1, port: 8000}]}
"""


def route(name: str, objectives: str, more: str = "") -> str:
    return f"""---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {{name: {name}}}
spec: {{listener: {{port: 8080}}, pools: [{{pool: llama}}], objectives: {objectives}{more}}}
"""


def judged(policies: str, requests: Sequence[RequestRecord], **more: Any) -> CheckFinding | None:
    began = history_builders.began(policies=policies)
    history = history_builders.history(history_builders.outage("e0"), began=began, requests=list(requests), **more)
    return objectives(check_input(history))


def calls(slow: int, failed: int = 0) -> list[RequestRecord]:
    """100 requests after the fault, these of them slow or refused; one slow request before it."""
    made = [history_builders.request(0, 1.0, latency_s=9.0)]
    for number in range(1, 101):
        if number <= slow:
            made.append(history_builders.request(number, 12.0 + number / 100, latency_s=3.0))
        elif number <= slow + failed:
            made.append(history_builders.request(number, 12.0 + number / 100, reason=OutcomeReason.SHED))
        else:
            made.append(history_builders.request(number, 12.0 + number / 100))
    return made


@pytest.mark.parametrize(
    ("said", "requests", "expected"),
    [
        ("{total: {p95: 2s}}", calls(slow=5), YES),
        ("{total: {p95: 2s}}", calls(slow=6), NO),
        ("{total: {p99: 2s}}", calls(slow=5), NO),
        ("{goodPercent: 95}", calls(slow=0, failed=5), YES),
        ("{goodPercent: 95}", calls(slow=0, failed=6), NO),
        ("{total: {p95: 2s}}", calls(slow=5, failed=0)[:1], UNKNOWN),
        ("{firstToken: {p99: 1s}}", calls(slow=0), UNKNOWN),  # no streams
        ("{goodPercent: 95, total: {p95: 2s}}", calls(slow=6), NO),
    ],
)
def test_objective_is_judged_from_the_fault_on(
    said: str, requests: list[RequestRecord], expected: CheckResult
) -> None:
    found = judged(POOL + route("chat", said), requests)
    assert found is not None
    assert found.answer is expected


def test_missed_objective_names_share_limit_and_time() -> None:
    found = judged(POOL + route("chat", "{total: {p95: 2s}, goodPercent: 90}"), calls(slow=6))
    assert found is not None
    assert found.why == "chat/total-p95: 94.0 % of 100 calls good within 2.00 s, below the target of 95 %"
    assert (found.measured, found.limit, found.at_s) == ("1 of 2 objectives", "all", 12.01)


def test_first_token_counts_streams_only() -> None:
    streams = [
        history_builders.request(number, 13.0, streaming=True, first_token_s=0.2 if number else 5.0)
        for number in range(20)
    ]
    found = judged(POOL + route("chat", "{firstToken: {p95: 1s}}"), [*calls(slow=9), *streams])
    assert found is not None
    assert (found.answer, found.numbers) == (YES, {"chat/first-token-p95": 95.0})


def test_route_is_judged_by_its_own_requests() -> None:
    streams = [
        history_builders.request(n, 13.0, streaming=True, first_token_s=0.1, latency_s=9) for n in range(20)
    ]
    policies = POOL + route("all", "{total: {p95: 2s}}") + route("streams", "{}", ", match: {stream: true}")
    found = judged(policies, [*calls(slow=0), *streams])
    assert found is not None
    assert (found.answer, found.measured) == (YES, "1 of 1 objective")


@pytest.mark.parametrize("policies", ["", "objectives: nonsense", POOL + route("chat", "{}")])
def test_without_objectives_there_is_no_check(policies: str) -> None:
    assert judged(policies, calls(slow=50)) is None


def test_missed_objective_fails_the_verdict_although_the_scenario_passes() -> None:
    def answer(said: str) -> CheckResult:
        began = history_builders.began(hypothesis={"goodputPercent": 90}, policies=POOL + route("chat", said))
        history = history_builders.history(history_builders.outage("e0"), began=began, requests=calls(slow=50))
        found = {one.check: one.answer for one in verdict(history).findings}
        assert found["goodputPercent"] is YES
        return found["objectives"]

    assert answer("{total: {p95: 5s}}") is YES
    assert answer("{total: {p95: 2s}}") is NO


def test_truncated_history_cannot_miss_what_missing_requests_could_have_kept() -> None:
    found = judged(POOL + route("chat", "{goodPercent: 95}"), calls(slow=0, failed=6), ended_s=None)
    assert found is not None
    assert found.answer is UNKNOWN
