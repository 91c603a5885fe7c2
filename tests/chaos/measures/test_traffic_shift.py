"""When a bad engine was left alone and a good one had its traffic back, on histories made by hand."""

from typing import Any

import pytest

from chaos.history.history_events import AttemptRecord
from chaos.history.recorded_history import History, Outage
from chaos.measures.impairments import impairments
from chaos.measures.traffic_shift import TrafficRecovery, TrafficStop, traffic_recoveries, traffic_stops
from tests.chaos import history_builders

ERROR = {"kind": "engine_error"}
FLAP = {"kind": "flap", "fault": {"kind": "crash"}}


def seen(*outages: Outage, **more: Any) -> History:
    """Two engines, ten requests a second: five for each, so that ten are two seconds' worth."""
    return history_builders.history(
        *outages, began=history_builders.began(engines=history_builders.engines(2), rate_per_s=10.0), **more
    )


def quiet(*outages: Outage, **more: Any) -> list[TrafficStop]:
    history = seen(*outages, **more)
    return traffic_stops(history, impairments(history))


def back(*outages: Outage, **more: Any) -> list[TrafficRecovery]:
    history = seen(*outages, **more)
    return traffic_recoveries(history, impairments(history))


def every(engine: str, from_s: float, to_s: float, step_s: float = 0.2, first: int = 0) -> list[AttemptRecord]:
    count = round((to_s - from_s) / step_s)
    return [history_builders.attempt(first + place, engine, from_s + place * step_s) for place in range(count)]


def test_ejection_time_is_the_last_request_before_a_pause() -> None:
    calls = [*every("e0", 10.0, 11.2), *every("e1", 10.0, 20.0, first=100)]
    (found,) = quiet(history_builders.outage("e0", fault=history_builders.HANG), attempts=calls)
    assert found.quiet_s == pytest.approx(1.0)
    assert (found.sent, found.strays) == (6, 0)


def test_requests_after_the_pause_are_counted_separately() -> None:
    calls = [
        *every("e0", 10.0, 11.2),
        history_builders.attempt(90, "e0", 15.0),
        history_builders.attempt(91, "e0", 18.5),
    ]
    (found,) = quiet(history_builders.outage("e0", fault=ERROR), attempts=calls)
    assert found.quiet_s == pytest.approx(1.0)
    assert found.strays == 2


def test_engine_with_continuous_requests_was_never_ejected() -> None:
    (found,) = quiet(history_builders.outage("e0", fault=history_builders.HANG), attempts=every("e0", 10.0, 20.0))
    assert found.quiet_s is None
    assert found.sent == 50


def test_engine_without_requests_was_ejected_at_once() -> None:
    (found,) = quiet(history_builders.outage("e0", fault=history_builders.HANG))
    assert (found.quiet_s, found.sent) == (0.0, 0)


def test_calls_to_a_crashed_engine_come_from_proxy_counters() -> None:
    samples = [
        history_builders.sample(10.0 + 0.1 * place, {"e0": 100 + min(place, 4), "e1": 100 + place})
        for place in range(100)
    ]
    (found,) = quiet(history_builders.outage("e0", fault=history_builders.CRASH), samples=samples)
    assert found.quiet_s == pytest.approx(0.4)
    assert found.sent == 4


def test_proxy_counters_are_independent() -> None:
    samples = [
        history_builders.sample(10.0 + 0.1 * place, {"e0": (1000, 10)[proxy]}, proxy=f"p{proxy}")
        for place in range(100)
        for proxy in (0, 1)
    ]
    (found,) = quiet(history_builders.outage("e0", fault=history_builders.CRASH), samples=samples)
    assert found.sent == 0


def test_flapping_engine_has_no_ejection_time() -> None:
    assert not quiet(history_builders.outage("e0", fault=FLAP))


def test_readmission_time_is_when_most_of_its_share_returns() -> None:
    calls = [*every("e1", 10.0, 30.0, first=1000), *every("e0", 22.0, 30.0)]
    (found,) = back(history_builders.outage("e0", fault=history_builders.HANG), attempts=calls)
    assert found.engines == ("e0",)
    assert found.back_s is not None
    assert 1.5 <= found.back_s <= 2.1


def test_immediate_recovery_is_zero_and_none_is_none() -> None:
    both = [*every("e1", 10.0, 30.0, first=1000), *every("e0", 20.0, 30.0)]
    (at_once,) = back(history_builders.outage("e0", fault=history_builders.HANG), attempts=both)
    assert at_once.back_s == pytest.approx(0.0, abs=0.01)
    (never,) = back(history_builders.outage("e0", fault=history_builders.HANG), attempts=every("e1", 10.0, 30.0))
    assert never.back_s is None


def test_trickle_of_requests_is_not_recovery() -> None:
    trickle = every("e0", 20.0, 30.0, step_s=1.0)
    calls = [*every("e1", 10.0, 30.0, step_s=0.1, first=1000), *trickle]
    (found,) = back(history_builders.outage("e0", fault=history_builders.HANG), attempts=calls)
    assert found.back_s is None


def test_engines_healed_together_are_judged_together() -> None:
    found = back(
        history_builders.outage("e0", fault=history_builders.HANG, end_s=20.0),
        history_builders.outage("e1", fault=history_builders.HANG, end_s=20.02),
        attempts=every("e0", 20.0, 30.0),
    )
    assert [one.engines for one in found] == [("e0", "e1")]
