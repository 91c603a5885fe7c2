"""Cut streams and their causes."""

from collections.abc import Mapping
from typing import Any

import pytest

from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import check_input
from chaos.checks.stream_checks import cut_streams
from chaos.history.request_outcomes import OutcomeReason
from tests.chaos import history_builders

DRAINED = {"kind": "rolling_restart", "drain": True}
UNDRAINED = {"kind": "rolling_restart", "drain": False}
CUT: Mapping[str, Any] = {"streaming": True, "first_token_s": 0.2, "reason": OutcomeReason.TRUNCATED}


def answer(fault: Mapping[str, Any], *, at_s: float = 9.8, booked: bool = True, **more: Any) -> CheckFinding:
    """A stream on e0 that was cut at 10.5 s, half a second after the fault began."""
    found = cut_streams(
        check_input(
            history_builders.history(
                history_builders.outage("e0", fault=fault),
                began=history_builders.began(hypothesis={"cutStreams": 0}),
                requests=[
                    history_builders.request(1, at_s, latency_s=0.7, **{**CUT, **more}),
                    history_builders.request(2, 12.0, streaming=True, first_token_s=0.1),
                ],
                attempts=[history_builders.attempt(1, "e0", at_s, slot_s=0.7)] if booked else [],
            )
        )
    )
    assert found is not None
    return found


def test_stream_cut_by_a_drain_fails_and_is_named() -> None:
    found = answer(DRAINED)
    assert (found.answer, found.numbers["cut"]) == (CheckResult.NO, 1)
    assert "load-1-1 on e0" in found.why
    assert "10.5 s (truncated)" in found.why


@pytest.mark.parametrize("fault", [UNDRAINED, history_builders.CRASH, history_builders.HANG, {"kind": "oom_kill"}])
def test_stream_cut_by_the_fault_is_not_counted(fault: Mapping[str, Any]) -> None:
    found = answer(fault)
    assert (found.answer, found.numbers["taken"]) == (CheckResult.YES, 1)


def test_unrelated_crash_does_not_excuse_a_cut_stream() -> None:
    assert answer(history_builders.CRASH, at_s=25.0).answer is CheckResult.NO
    assert answer(history_builders.CRASH, at_s=5.0).answer is CheckResult.NO


def test_stopped_proxy_excuses_its_cut_streams() -> None:
    history = history_builders.history(
        history_builders.outage("p0", fault={"kind": "proxy_frozen"}),
        began=history_builders.began(hypothesis={"cutStreams": 0}),
        requests=[history_builders.request(1, 12.0, **CUT), history_builders.request(2, 12.0, proxy="p1", **CUT)],
        attempts=[history_builders.attempt(1, "e0", 12.0), history_builders.attempt(2, "e0", 12.0)],
    )
    found = cut_streams(check_input(history))
    assert found is not None
    assert (found.numbers["cut"], found.numbers["taken"]) == (1, 1)


def test_stream_without_tokens_is_not_cut() -> None:
    assert answer(DRAINED, first_token_s=None, reason=OutcomeReason.SHED).answer is CheckResult.YES


def test_cut_stream_is_unknown_without_engine_logs() -> None:
    assert answer(DRAINED, booked=False).answer is CheckResult.UNKNOWN
