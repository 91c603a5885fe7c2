"""Times in which no policy could answer every request, on an even load of 20 a second."""

import pytest

from chaos.history.recorded_history import History, Outage
from chaos.measures.impairments import impairments
from chaos.measures.overload_spans import SERVICES_BEFORE, SETTLE_S, is_within, overload_spans
from chaos.measures.possible_goodput import RECOVERY_LAG_S
from chaos.measures.traffic_shift import capacities_per_s
from tests.chaos import history_builders

ALL = ("e0", "e1", "e2", "e3")
SLOW = {"kind": "slow", "factor": 1.25}


def history(*outages: Outage, max_wait_s: float = 2.0) -> History:
    """30 s of requests to four engines that serve eight a second each."""
    began = history_builders.began(max_wait_s=max_wait_s)
    requests = [history_builders.request(number, number / 20) for number in range(600)]
    return history_builders.history(*outages, began=began, requests=requests)


def spans(seen: History, *, full_speed: bool = False) -> tuple[tuple[float, float], ...]:
    arrivals_s = [one.at_s for one in seen.requests]
    return overload_spans(seen, impairments(seen), arrivals_s, capacities_per_s(seen), full_speed=full_speed)


def test_engines_with_room_are_never_overloaded() -> None:
    assert spans(history()) == ()
    assert spans(history(history_builders.outage("e0"))) == ()  # 24 a second are left


def test_overload_lasts_until_the_queue_is_empty_again() -> None:
    # 16 of 20 a second for 10.5 s: 42 too many; 2 s x 16 may wait. Then 12 a second drain them.
    ((start_s, end_s),) = spans(history(history_builders.outage("e0", "e1")))
    before_s = SERVICES_BEFORE * 0.5
    assert start_s == pytest.approx(10.0 - before_s)
    drained_s = 20.0 + RECOVERY_LAG_S + 32 / 12
    assert end_s - SETTLE_S == pytest.approx(drained_s, abs=0.5)
    assert is_within(15.0, ((start_s, end_s),))
    assert not is_within(end_s, ((start_s, end_s),))


def test_queue_without_a_refusal_is_not_an_overload() -> None:
    short = history_builders.outage("e0", "e1", end_s=15.0)  # 22 too many; 32 may wait
    assert spans(history(short)) == ()
    assert len(spans(history(short, max_wait_s=1.0))) == 1


def test_overload_that_never_ends_lasts_to_the_end() -> None:
    ((_, end_s),) = spans(history(history_builders.outage(*ALL, end_s=None)))
    assert end_s >= 30.0


def test_slow_engines_count_as_lost_for_latency_only() -> None:
    some_slow = history(history_builders.outage(*ALL, fault=SLOW))  # 25.6 a second are left
    assert spans(some_slow) == ()
    assert len(spans(some_slow, full_speed=True)) == 1
    one_slow = history(history_builders.outage("e0", fault=SLOW))
    assert spans(one_slow, full_speed=True) == ()
