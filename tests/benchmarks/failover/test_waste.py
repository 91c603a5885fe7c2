"""What counts as wasted GPU time, on histories made by hand."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.failover.waste import waste
from chaos.fake_engine import Crash, ErrorAfterWork, Hang
from chaos.fake_engine.book import Outcome as Fate
from chaos.outcomes import Reason

SLOTS = {0: 2, 1: 2}


def test_an_answer_that_was_received_is_no_waste(story) -> None:
    found = waste(story.history(outcomes=[story.outcome(1, 112.0)], attempts=[story.attempt(1, 0, 112.0)]), SLOTS)
    assert (found.wasted_s, found.any_s, found.crash_s) == (0.0, 0.0, 0.0)


def test_work_that_ended_in_an_error_is_and_its_retry_is_not(story) -> None:
    found = waste(
        story.history(
            story.outage(0, ErrorAfterWork()),
            outcomes=[story.outcome(1, 112.0, latency_s=1.0)],
            attempts=[
                story.attempt(1, 0, 112.0, fate=Fate.FAILED, slot_s=0.4),
                story.attempt(1, 1, 112.4, slot_s=0.5),
            ],
        ),
        SLOTS,
    )
    assert found.wasted_s == pytest.approx(0.4)


def test_an_answer_that_came_too_late_for_its_caller_is_wasted(story) -> None:
    found = waste(
        story.history(
            outcomes=[story.outcome(1, 112.0, reason=Reason.TIMEOUT, latency_s=10.0)],
            attempts=[story.attempt(1, 0, 112.0, slot_s=0.5)],
        ),
        SLOTS,
    )
    assert found.wasted_s == pytest.approx(0.5)


def test_the_loser_of_a_hedge_is_wasted_even_when_it_finished(story) -> None:
    found = waste(
        story.history(
            outcomes=[story.outcome(1, 112.0)],
            attempts=[story.attempt(1, 0, 112.0, slot_s=0.3), story.attempt(1, 1, 112.2, slot_s=0.7)],
        ),
        SLOTS,
    )
    assert found.wasted_s == pytest.approx(0.3)


def test_what_was_running_when_the_fault_began_is_counted_apart(story) -> None:
    found = waste(
        story.history(
            outcomes=[story.outcome(1, 109.0, reason=Reason.TIMEOUT)],
            attempts=[story.attempt(1, 0, 109.0, fate=Fate.ABORTED, slot_s=4.0)],
        ),
        SLOTS,
    )
    assert found.wasted_s == 0.0
    assert found.any_s == pytest.approx(3.0)


def test_what_a_crash_destroys_is_the_crash_s(story) -> None:
    found = waste(
        story.history(
            story.outage(0, Crash(), start_s=115.0),
            attempts=[story.attempt(1, 0, 114.8, fate=Fate.FAILED, slot_s=0.2, reason="crash")],
        ),
        SLOTS,
    )
    assert found.wasted_s == 0.0
    assert found.crash_s == pytest.approx(0.2)


def test_a_call_holds_a_free_slot_of_a_wedged_gpu_until_its_caller_leaves(story) -> None:
    attempts = [
        story.attempt(number, 0, 112.0 + number, fate=Fate.ABORTED, wait_s=None, closed_s=115.0)
        for number in (1, 2)
    ]
    found = waste(story.history(story.outage(0, Hang()), attempts=attempts), SLOTS)
    assert found.wasted_s == pytest.approx(2.0 + 1.0)


def test_those_that_find_no_slot_free_there_cost_nothing_until_one_is(story) -> None:
    running = [
        story.attempt(number, 0, 109.9, fate=Fate.ABORTED, slot_s=closed_s - 109.9, closed_s=closed_s)
        for number, closed_s in ((1, 113.0), (2, 119.9))
    ]
    late = story.attempt(3, 0, 111.0, fate=Fate.ABORTED, wait_s=None, closed_s=116.0)
    found = waste(story.history(story.outage(0, Hang()), attempts=[*running, late]), SLOTS)
    assert found.wasted_s == pytest.approx(116.0 - 113.0)


def test_a_call_that_outlasts_the_hang_and_is_answered_wastes_nothing(story) -> None:
    found = waste(
        story.history(
            story.outage(0, Hang()),
            outcomes=[story.outcome(1, 119.0, latency_s=1.5)],
            attempts=[story.attempt(1, 0, 119.0, wait_s=1.0)],
        ),
        SLOTS,
    )
    assert found.wasted_s == 0.0


@given(
    calls=st.lists(st.tuples(st.floats(105.0, 119.9), st.floats(0.01, 12.0)), max_size=40),
    slots=st.integers(1, 4),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_wedged_gpu_never_wastes_more_than_it_has(story, calls, slots) -> None:
    attempts = [
        story.attempt(number, 0, at_s, fate=Fate.ABORTED, wait_s=None, closed_s=at_s + long_s)
        for number, (at_s, long_s) in enumerate(calls)
    ]
    found = waste(story.history(story.outage(0, Hang()), attempts=attempts), {0: slots})
    patience = sum(max(0.0, min(one.closed_at_s, 120.0) - max(one.arrived_at_s, 110.0)) for one in attempts)
    assert 0.0 <= found.wasted_s <= found.any_s + 1e-9
    assert found.any_s <= min(10.0 * slots, patience) + 1e-6
