"""What counts as wasted GPU time, on histories made by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.fake_engine.call_log import CallOutcome as Fate
from chaos.history.recorded_history import Outage
from chaos.history.request_outcomes import OutcomeReason
from chaos.measures.impairments import impairments
from chaos.measures.wasted_gpu_time import WastedGpuTime, wasted_gpu_time
from tests.chaos import history_builders

ERROR = {"kind": "engine_error"}


def wasted(*outages: Outage, slots: int = 2, **more: Any) -> WastedGpuTime:
    """From 10 s to 20 s, with two engines."""
    began = history_builders.began(engines=history_builders.engines(2, slots=slots))
    history = history_builders.history(*outages, began=began, **more)
    return wasted_gpu_time(history, impairments(history), 10.0, 20.0)


def test_received_answer_is_not_waste() -> None:
    found = wasted(
        requests=[history_builders.request(1, 12.0)], attempts=[history_builders.attempt(1, "e0", 12.0)]
    )
    assert (found.wasted_s, found.any_s, found.crash_s) == (0.0, 0.0, 0.0)


def test_failed_call_is_waste_and_its_retry_is_not() -> None:
    found = wasted(
        history_builders.outage("e0", fault=ERROR),
        requests=[history_builders.request(1, 12.0, latency_s=1.0)],
        attempts=[
            history_builders.attempt(1, "e0", 12.0, fate=Fate.FAILED, slot_s=0.4),
            history_builders.attempt(1, "e1", 12.4, slot_s=0.5),
        ],
    )
    assert found.wasted_s == pytest.approx(0.4)


def test_answer_after_the_deadline_is_waste() -> None:
    found = wasted(
        requests=[history_builders.request(1, 12.0, reason=OutcomeReason.TIMEOUT, latency_s=10.0)],
        attempts=[history_builders.attempt(1, "e0", 12.0, slot_s=0.5)],
    )
    assert found.wasted_s == pytest.approx(0.5)


def test_losing_hedged_attempt_is_wasted_even_if_finished() -> None:
    found = wasted(
        requests=[history_builders.request(1, 12.0)],
        attempts=[
            history_builders.attempt(1, "e0", 12.0, slot_s=0.3),
            history_builders.attempt(1, "e1", 12.2, slot_s=0.7),
        ],
    )
    assert found.wasted_s == pytest.approx(0.3)


def test_calls_running_at_fault_start_are_counted_separately() -> None:
    found = wasted(
        requests=[history_builders.request(1, 9.0, reason=OutcomeReason.TIMEOUT)],
        attempts=[history_builders.attempt(1, "e0", 9.0, fate=Fate.ABORTED, slot_s=4.0)],
    )
    assert found.wasted_s == 0.0
    assert found.any_s == pytest.approx(3.0)


def test_work_destroyed_by_a_crash_is_counted_separately() -> None:
    found = wasted(
        history_builders.outage("e0", fault=history_builders.CRASH, start_s=15.0),
        attempts=[history_builders.attempt(1, "e0", 14.8, fate=Fate.FAILED, slot_s=0.2, reason="crash")],
    )
    assert found.wasted_s == 0.0
    assert found.crash_s == pytest.approx(0.2)


def test_call_on_a_hung_gpu_holds_a_free_slot() -> None:
    attempts = [
        history_builders.attempt(number, "e0", 12.0 + number, fate=Fate.ABORTED, wait_s=None, closed_s=15.0)
        for number in (1, 2)
    ]
    found = wasted(history_builders.outage("e0", fault=history_builders.HANG), attempts=attempts)
    assert found.wasted_s == pytest.approx(2.0 + 1.0)


def test_call_without_free_slot_on_a_hung_gpu_is_free() -> None:
    running = [
        history_builders.attempt(number, "e0", 9.9, fate=Fate.ABORTED, slot_s=closed_s - 9.9, closed_s=closed_s)
        for number, closed_s in ((1, 13.0), (2, 19.9))
    ]
    late = history_builders.attempt(3, "e0", 11.0, fate=Fate.ABORTED, wait_s=None, closed_s=16.0)
    found = wasted(history_builders.outage("e0", fault=history_builders.HANG), attempts=[*running, late])
    assert found.wasted_s == pytest.approx(16.0 - 13.0)


def test_call_answered_after_the_hang_is_not_waste() -> None:
    found = wasted(
        history_builders.outage("e0", fault=history_builders.HANG),
        requests=[history_builders.request(1, 19.0, latency_s=1.5)],
        attempts=[history_builders.attempt(1, "e0", 19.0, wait_s=1.0)],
    )
    assert found.wasted_s == 0.0


@given(
    calls=st.lists(st.tuples(st.floats(5.0, 19.9), st.floats(0.01, 12.0)), max_size=40),
    slots=st.integers(1, 4),
)
def test_hung_gpu_never_wastes_more_than_its_slots(calls: list[tuple[float, float]], slots: int) -> None:
    attempts = [
        history_builders.attempt(number, "e0", at_s, fate=Fate.ABORTED, wait_s=None, closed_s=at_s + long_s)
        for number, (at_s, long_s) in enumerate(calls)
    ]
    found = wasted(history_builders.outage("e0", fault=history_builders.HANG), attempts=attempts, slots=slots)
    patience = sum(max(0.0, min(one.closed_at_s, 20.0) - max(one.at_s, 10.0)) for one in attempts)
    assert 0.0 <= found.wasted_s <= found.any_s + 1e-9
    assert found.any_s <= min(10.0 * slots, patience) + 1e-6
