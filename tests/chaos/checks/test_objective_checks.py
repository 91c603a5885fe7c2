"""Objectives of the policies under test, judged on the requests of a scenario."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import check_input
from chaos.checks.experiment_verdict import verdict
from chaos.checks.objective_checks import PREFIX, objectives
from chaos.history.history_events import RequestRecord
from chaos.history.recorded_history import Outage
from chaos.history.request_outcomes import OutcomeReason
from chaos.report.report_rows import promise_rows
from tests.chaos import history_builders

YES, NO, UNKNOWN = CheckResult.YES, CheckResult.NO, CheckResult.UNKNOWN
TOTAL = "{total: {p95: 2s}}"
WITH_SPARE = (
    *history_builders.engines(),
    *(replace(one, name=f"s{place}") for place, one in enumerate(history_builders.engines(pool="spare"))),
)


def pool(name: str, objectives: str) -> str:
    return f"""---
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {{name: {name}}}
spec:
  {{model: m, serviceTime: 500ms, endpoints: [{{address: 127.0.0.1, port: 8000}}], objectives: {objectives}}}
"""


POOL = pool("llama", "{}")


def route(name: str, objectives: str, more: str = "") -> str:
    return f"""---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {{name: {name}}}
spec: {{listener: {{port: 8080}}, pools: [{{pool: llama}}], objectives: {objectives}{more}}}
"""


def streams(number: int, *, start: int = 0, **more: Any) -> list[RequestRecord]:
    """Streams at 13 s: 20 wait less than the 2 s allowed. Only the first has the given first token."""
    first_s = more.pop("first_token_s", None)
    return [
        history_builders.request(
            1000 + place,
            13.0,
            streaming=True,
            first_token_s=first_s if first_s is not None and place == 0 else 0.1,
            **more,
        )
        for place in range(start, start + number)
    ]


def findings(
    policies: str, requests: Sequence[RequestRecord], *outages: Outage, **more: Any
) -> dict[str, CheckFinding]:
    """Findings by name of the objective; one engine of four hangs unless other faults are given."""
    began = history_builders.began(policies=policies, **more.pop("began", {}))
    history = history_builders.history(
        *(outages or (history_builders.outage("e0"),)), began=began, requests=list(requests), **more
    )
    return {one.check.removeprefix(PREFIX): one for one in objectives(check_input(history))}


def calls(slow: int, failed: int = 0) -> list[RequestRecord]:
    """100 requests after the fault, these of them slow or refused; one slow request before it.

    10 requests a second: three engines serve 24.
    """
    made = [history_builders.request(0, 1.0, latency_s=9.0)]
    for number in range(1, 101):
        if number <= slow:
            made.append(history_builders.request(number, 12.0 + number / 10, latency_s=3.0))
        elif number <= slow + failed:
            made.append(history_builders.request(number, 12.0 + number / 10, reason=OutcomeReason.SHED))
        else:
            made.append(history_builders.request(number, 12.0 + number / 10))
    return made


@pytest.mark.parametrize(
    ("said", "requests", "expected"),
    [
        ("{total: {p95: 2s}}", calls(slow=5), YES),
        ("{total: {p95: 2s}}", calls(slow=6), NO),
        ("{total: {p99: 2s}}", calls(slow=5), NO),
        ("{goodPercent: 95}", calls(slow=0, failed=5), YES),
        ("{goodPercent: 95}", calls(slow=0, failed=6), NO),
        ("{total: {p95: 2s}}", calls(slow=0, failed=100), UNKNOWN),  # no answer to measure
        ("{total: {p95: 2s}}", calls(slow=0)[:1], UNKNOWN),  # requests before the fault only
    ],
)
def test_objective_is_judged_from_the_fault_on(
    said: str, requests: list[RequestRecord], expected: CheckResult
) -> None:
    (found,) = findings(POOL + route("chat", said), requests).values()
    assert found.answer is expected


def test_each_objective_is_a_check_with_promise_value_and_time() -> None:
    found = findings(POOL + route("chat", "{total: {p95: 2s}, goodPercent: 90}"), calls(slow=6))
    assert set(found) == {"chat/good", "chat/total-p95"}
    missed = found["chat/total-p95"]
    assert missed.why == "94.0 % of 100 calls good within 2.00 s, below the target of 95 %"
    assert (missed.measured, missed.limit, missed.at_s) == ("3.00 s", "<= 2.00 s", 12.1)
    assert missed.numbers == {"good_percent": 94.0, "calls": 100.0, "not_judged": 0.0, "measured_s": 3.0}
    kept = found["chat/good"]
    assert (kept.answer, kept.measured, kept.limit, kept.at_s) == (YES, "100.0 %", ">= 90 %", None)


def test_reason_states_that_lab_times_are_divided() -> None:
    (found,) = findings(POOL + route("chat", TOTAL), calls(slow=6), began={"time_scale": 4.0}).values()
    assert found.why.endswith("; times are divided by 4 in the lab")


def test_first_token_counts_streams_only() -> None:
    found = findings(
        POOL + route("chat", "{firstToken: {p95: 1s}}"), [*calls(slow=9), *streams(20, first_token_s=5.0)]
    )
    assert (found["chat/first-token-p95"].answer, found["chat/first-token-p95"].numbers["calls"]) == (YES, 20.0)


def test_route_is_judged_by_its_own_requests() -> None:
    policies = POOL + route("all", TOTAL) + route("streams", "{}", ", match: {stream: true}")
    found = findings(policies, [*calls(slow=0), *streams(20, latency_s=9.0)])
    assert found["all/total-p95"].numbers["calls"] == 100
    assert found["all/total-p95"].answer is YES


def test_pool_is_judged_by_the_requests_that_it_answered() -> None:
    policies = pool("llama", TOTAL) + pool("spare", TOTAL) + route("chat", "{}", ", fallbacks: [spare]")
    fallen = [replace(one, fallback="spare") for one in calls(slow=20)[1:21]]
    found = findings(policies, [*calls(slow=20)[21:], *fallen], began={"engines": WITH_SPARE})
    assert {name: (one.answer, one.numbers["calls"]) for name, one in found.items()} == {
        "pool/llama/total-p95": (YES, 80),
        "pool/spare/total-p95": (NO, 20),
    }


def test_engine_logs_name_the_pool_of_a_request() -> None:
    policies = pool("llama", TOTAL) + pool("spare", TOTAL) + route("chat", "{}")
    attempts = [history_builders.attempt(number, "s0", 12.0 + number / 10) for number in range(1, 21)]
    found = findings(policies, calls(slow=20), began={"engines": WITH_SPARE}, attempts=attempts)
    assert found["pool/spare/total-p95"].numbers["calls"] == 20
    assert found["pool/llama/total-p95"].numbers["calls"] == 80


@pytest.mark.parametrize(("slow_gaps", "expected"), [(0, YES), (2, NO)])
def test_gaps_between_tokens_are_judged_for_streams(slow_gaps: int, expected: CheckResult) -> None:
    # 33 tokens: one, then four times eight together.
    gaps_s = (0.8,) * slow_gaps + (0.08,) * (4 - slow_gaps)
    some = [*streams(19, gaps_s=(0.08,) * 4, tokens=33), *streams(1, gaps_s=gaps_s, tokens=33, start=19)]
    (found,) = findings(pool("llama", "{betweenTokens: {p99: 20ms}}") + route("chat", "{}"), some).values()
    assert (found.check, found.answer) == ("objective:pool/llama/between-tokens-p99", expected)
    assert found.numbers["gaps"] == 640
    assert found.measured == ("100 ms" if slow_gaps else "10 ms")


def test_gaps_of_a_truncated_history_are_never_a_no() -> None:
    some = streams(20, gaps_s=(0.8,), tokens=9)
    policies = pool("llama", "{betweenTokens: {p99: 20ms}}") + route("chat", "{}")
    assert [one.answer for one in findings(policies, some, ended_s=None).values()] == [UNKNOWN]


@pytest.mark.parametrize("said", ["{firstToken: {p99: 1s}}", "{betweenTokens: {p99: 1s}}"])
def test_load_without_streams_judges_no_objective_of_streams(said: str) -> None:
    assert findings(pool("llama", said) + route("chat", "{}"), calls(slow=5)) == {}


def test_objective_without_requests_is_listed_as_not_judged() -> None:
    policies = pool("llama", "{betweenTokens: {p99: 1s}}") + route(
        "chat", "{total: {p95: 5s}, firstToken: {p99: 1s}}"
    )
    began = history_builders.began(policies=policies)
    found = verdict(history_builders.history(history_builders.outage("e0"), began=began, requests=calls(slow=5)))
    assert found.not_judged == ("objective:chat/first-token-p99", "objective:pool/llama/between-tokens-p99")
    cells = {row.title: row.cells for row in promise_rows([found])}
    assert cells["objective:chat/first-token-p99"] == ("not judged",)
    assert cells["objective:chat/total-p95 (<= 5.00 s)"] == ("held: 500 ms",)


def test_overload_is_not_judged() -> None:
    """Half of the engines serve 16 of 25 requests a second from 10 s to 20 s; nothing is lost otherwise."""
    requests = [
        history_builders.request(
            number, number / 25, reason=OutcomeReason.SHED if 10 <= number / 25 < 20 else OutcomeReason.OK
        )
        for number in range(750)
    ]
    policies = POOL + route("chat", "{goodPercent: 99}")
    half = history_builders.outage("e0", "e1", fault=history_builders.CRASH)
    (found,) = findings(policies, requests, half).values()
    assert (found.answer, found.measured) == (YES, "100.0 %")
    assert 0 < found.numbers["calls"] < 250
    assert found.numbers["calls"] + found.numbers["not_judged"] == 500
    assert f"not judged: {found.numbers['not_judged']:.0f} requests for which no policy could keep it" in found.why
    # One engine is spare: now all of them count.
    (one,) = findings(policies, requests, history_builders.outage("e0", fault=history_builders.CRASH)).values()
    assert (one.answer, one.numbers["not_judged"]) == (NO, 0)


def test_fallback_pool_with_room_makes_an_objective_of_the_route_possible() -> None:
    failed = history_builders.outage("e0", "e1", "e2", "e3", fault=history_builders.CRASH)
    requests = calls(slow=0, failed=50)
    lone = POOL + route("chat", "{goodPercent: 95}")
    found = findings(lone, requests, failed, began={"engines": WITH_SPARE})
    assert [one.answer for one in found.values()] == [
        UNKNOWN if not one.numbers else YES for one in found.values()
    ]
    helped = POOL + pool("spare", "{}") + route("chat", "{goodPercent: 95}", ", fallbacks: [spare]")
    (missed,) = findings(helped, requests, failed, began={"engines": WITH_SPARE}).values()
    assert (missed.answer, missed.numbers["calls"]) == (NO, 100)
    of_spare = history_builders.outage("s0", "s1", "s2", "s3", fault=history_builders.CRASH, name="spare")
    assert findings(helped, requests, failed, of_spare, began={"engines": WITH_SPARE}) == {}


def test_latency_is_judged_only_while_unimpaired_engines_suffice() -> None:
    policies = POOL + route("chat", "{total: {p95: 2s}, goodPercent: 95}")
    all_slow = history_builders.outage("e0", "e1", "e2", "e3", fault={"kind": "slow", "factor": 2}, end_s=25.0)
    assert set(findings(policies, calls(slow=60), all_slow)) == {"chat/good"}
    one_slow = history_builders.outage("e0", fault={"kind": "slow", "factor": 2}, end_s=25.0)
    assert findings(policies, calls(slow=60), one_slow)["chat/total-p95"].answer is NO


@pytest.mark.parametrize("fault", [{"kind": "proxy_frozen"}, {"kind": "slow_proxy"}])
def test_requests_through_a_stopped_proxy_are_not_judged(fault: dict[str, str]) -> None:
    policies = POOL + route("chat", "{goodPercent: 95}")
    stopped = history_builders.outage("p0", fault=fault)
    through = [replace(one, proxy="p1") if number % 2 else one for number, one in enumerate(calls(0, failed=90))]
    (found,) = findings(policies, through, stopped).values()
    assert found.answer is NO
    others = [one for one in through if one.proxy == "p1" or one.at_s >= 20.0]
    assert found.numbers["calls"] == len(others)


def test_stream_that_the_fault_cut_is_not_judged() -> None:
    """Nine streams of twenty began on e0 just before it crashed; after the first token no policy can save them."""
    policies = POOL + route("chat", "{goodPercent: 95}")
    crash = history_builders.outage("e0", fault=history_builders.CRASH, start_s=14.0, end_s=20.0)
    first = history_builders.outage("e1", fault=history_builders.CRASH, start_s=10.0, end_s=11.0, name="first")
    cut = [
        replace(one, reason=OutcomeReason.TRUNCATED) if number < 9 else one
        for number, one in enumerate(streams(20, first_token_s=0.1))
    ]
    attempts = [history_builders.attempt(1000 + number, "e0", 13.0, closed_s=14.0) for number in range(9)]
    (found,) = findings(policies, cut, first, crash, attempts=attempts).values()
    assert (found.answer, found.numbers["calls"], found.numbers["not_judged"]) == (YES, 11, 9)
    elsewhere = [replace(one, engine="e2") for one in attempts]
    (found,) = findings(policies, cut, first, crash, attempts=elsewhere).values()
    assert found.answer is NO


@pytest.mark.parametrize("policies", ["", "objectives: nonsense", POOL + route("chat", "{}")])
def test_without_objectives_there_is_no_check(policies: str) -> None:
    assert findings(policies, calls(slow=50)) == {}


def test_missed_objective_fails_the_verdict_although_the_scenario_passes() -> None:
    def answers(said: str) -> dict[str, CheckResult]:
        began = history_builders.began(
            hypothesis={"goodputPercent": 90, "answerP99": "9s"}, policies=POOL + route("chat", said)
        )
        history = history_builders.history(history_builders.outage("e0"), began=began, requests=calls(slow=50))
        return {one.check: one.answer for one in verdict(history).findings}

    kept, missed = answers("{total: {p95: 5s}}"), answers(TOTAL)
    assert (kept.pop("objective:chat/total-p95"), missed.pop("objective:chat/total-p95")) == (YES, NO)
    assert kept == missed  # the scenario's own promises do not change
    assert (kept["goodputPercent"], kept["answerP99"]) == (YES, YES)


def test_truncated_history_cannot_miss_what_missing_requests_could_have_kept() -> None:
    (found,) = findings(POOL + route("chat", "{goodPercent: 95}"), calls(slow=0, failed=6), ended_s=None).values()
    assert found.answer is UNKNOWN
