"""Streams that were cut, and by whom."""

from collections.abc import Mapping
from typing import Any

import pytest

from chaos.checks.case import case_of
from chaos.checks.finding import Answer, Finding
from chaos.checks.streams import cut_streams
from chaos.history.outcomes import Reason
from tests.chaos import histories

DRAINED = {"kind": "rolling_restart", "drain": True}
UNDRAINED = {"kind": "rolling_restart", "drain": False}
CUT: Mapping[str, Any] = {"streaming": True, "first_token_s": 0.2, "reason": Reason.TRUNCATED}


def answer(fault: Mapping[str, Any], *, at_s: float = 9.8, booked: bool = True, **more: Any) -> Finding:
    """A stream on e0 that was cut at 10.5 s, half a second after the fault began."""
    found = cut_streams(
        case_of(
            histories.history(
                histories.outage("e0", fault=fault),
                began=histories.began(hypothesis={"cutStreams": 0}),
                requests=[
                    histories.request(1, at_s, latency_s=0.7, **{**CUT, **more}),
                    histories.request(2, 12.0, streaming=True, first_token_s=0.1),
                ],
                attempts=[histories.attempt(1, "e0", at_s, slot_s=0.7)] if booked else [],
            )
        )
    )
    assert found is not None
    return found


def test_a_stream_that_a_drain_cuts_is_a_no_with_its_name() -> None:
    found = answer(DRAINED)
    assert (found.answer, found.numbers["cut"]) == (Answer.NO, 1)
    assert "load-1-1 on e0" in found.why
    assert "10.5 s (truncated)" in found.why


@pytest.mark.parametrize("fault", [UNDRAINED, histories.CRASH, histories.HANG, {"kind": "oom_kill"}])
def test_a_stream_that_the_fault_took_is_not_counted(fault: Mapping[str, Any]) -> None:
    found = answer(fault)
    assert (found.answer, found.numbers["taken"]) == (Answer.YES, 1)


def test_a_crash_elsewhere_or_earlier_excuses_nobody() -> None:
    assert answer(histories.CRASH, at_s=25.0).answer is Answer.NO
    assert answer(histories.CRASH, at_s=5.0).answer is Answer.NO


def test_a_proxy_that_stood_still_took_its_streams() -> None:
    history = histories.history(
        histories.outage("p0", fault={"kind": "proxy_frozen"}),
        began=histories.began(hypothesis={"cutStreams": 0}),
        requests=[histories.request(1, 12.0, **CUT), histories.request(2, 12.0, proxy="p1", **CUT)],
        attempts=[histories.attempt(1, "e0", 12.0), histories.attempt(2, "e0", 12.0)],
    )
    found = cut_streams(case_of(history))
    assert found is not None
    assert (found.numbers["cut"], found.numbers["taken"]) == (1, 1)


def test_what_never_began_was_refused_and_not_cut() -> None:
    assert answer(DRAINED, first_token_s=None, reason=Reason.SHED).answer is Answer.YES


def test_without_books_nobody_knows_who_cut_it() -> None:
    assert answer(DRAINED, booked=False).answer is Answer.UNKNOWN
