"""Queues: compared with fractions, with the sum over states, and with each other."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.planning.error import PlanError
from chaos.planning.queueing import (
    SlotQueue,
    erlang_b,
    erlang_c,
    fewest_servers,
    most_arrivals,
    queue_stats,
    wait_quantile,
)


def blocked(servers: int, load: Fraction) -> Fraction:
    """Erlang B by its recursion, exactly."""
    found = Fraction(1)
    for number in range(1, servers + 1):
        found = load * found / (number + load * found)
    return found


@given(st.integers(1, 80), st.integers(1, 400).map(lambda one: Fraction(one, 4)))
@settings(max_examples=60)
def test_erlang_b_equals_its_recursion(servers: int, load: Fraction) -> None:
    assert erlang_b(servers, float(load)) == pytest.approx(float(blocked(servers, load)), rel=1e-9)


def by_states(queue: SlotQueue) -> tuple[float, float, float]:
    """Share refused, mean wait and mean number, summed over the states."""
    assert queue.room is not None
    weights = [1.0]
    for number in range(1, queue.room + 1):
        weights.append(weights[-1] * queue.load / min(number, queue.servers))
    whole = sum(weights)
    lining_up = sum(max(0, number - queue.servers) * one for number, one in enumerate(weights)) / whole
    return weights[-1] / whole, lining_up, sum(number * one for number, one in enumerate(weights)) / whole


@given(st.integers(1, 12), st.integers(0, 15), st.floats(0.1, 3.0), st.floats(0.1, 5.0))
@settings(max_examples=80)
def test_bounded_queue_equals_the_sum_over_states(
    servers: int, more: int, pressure: float, service_s: float
) -> None:
    queue = SlotQueue(
        servers=servers, service_s=service_s, arrivals_per_s=pressure * servers / service_s, room=servers + more
    )
    refused, lining_up, inside = by_states(queue)
    found = queue_stats(queue)
    assert found.refused == pytest.approx(refused, rel=1e-9)
    assert found.in_flight == pytest.approx(inside, rel=1e-9)
    # Little's law for the line.
    admitted_per_s = queue.arrivals_per_s * (1 - refused)
    assert found.wait_mean_s * admitted_per_s == pytest.approx(lining_up, rel=1e-7, abs=1e-12)


@given(st.integers(1, 100), st.floats(0.1, 0.95), st.floats(0.0, 3.0))
@settings(max_examples=60)
def test_large_room_equals_no_limit(servers: int, pressure: float, patience_s: float) -> None:
    queue = SlotQueue(servers=servers, service_s=2.0, arrivals_per_s=pressure * servers / 2.0)
    open_ended = queue_stats(queue, patience_s=patience_s)
    roomy = queue_stats(replace(queue, room=servers + 2000), patience_s=patience_s)
    assert roomy.waits == pytest.approx(open_ended.waits, rel=1e-6, abs=1e-12)
    assert roomy.late == pytest.approx(open_ended.late, rel=1e-5, abs=1e-12)
    assert roomy.wait_mean_s == pytest.approx(open_ended.wait_mean_s, rel=1e-5, abs=1e-12)


def test_queue_without_room_is_erlang_b() -> None:
    queue = SlotQueue(servers=10, service_s=1.0, arrivals_per_s=8.0, room=10)
    assert queue_stats(queue).refused == pytest.approx(erlang_b(10, 8.0))


@given(st.integers(1, 200), st.floats(0.05, 0.99))
@settings(max_examples=60)
def test_wait_falls_with_servers_and_rises_with_load(servers: int, pressure: float) -> None:
    load = pressure * servers
    assert erlang_c(servers + 1, load) <= erlang_c(servers, load) + 1e-12
    assert erlang_c(servers, load * 0.9) <= erlang_c(servers, load) + 1e-12


def test_hundred_thousand_slots_are_computed() -> None:
    most = most_arrivals(100_000, 4.0, patience_s=2.0, late=0.01)
    assert 0.99 * 25_000 < most < 25_000
    over = queue_stats(SlotQueue(servers=100_000, service_s=4.0, arrivals_per_s=2 * 25_000, room=150_000))
    assert over.refused == pytest.approx(0.5, abs=1e-6)
    assert math.isfinite(over.wait_mean_s)


@given(st.floats(0.5, 200), st.floats(0.1, 10), st.integers(1, 16), st.floats(0.001, 0.3))
@settings(max_examples=40)
def test_fewest_servers_is_enough_and_minimal(arrivals: float, service_s: float, each: int, late: float) -> None:
    engines = fewest_servers(arrivals, service_s, patience_s=1.0, late=late, each=each)

    def of(number: int) -> float:
        return queue_stats(
            SlotQueue(servers=number * each, service_s=service_s, arrivals_per_s=arrivals), patience_s=1.0
        ).late

    assert of(engines) <= late
    assert engines == 1 or of(engines - 1) > late


def test_most_arrivals_meets_the_target_tightly() -> None:
    most = most_arrivals(32, 2.0, patience_s=0.5, late=0.02)
    assert queue_stats(SlotQueue(servers=32, service_s=2.0, arrivals_per_s=most), patience_s=0.5).late <= 0.02
    assert (
        queue_stats(SlotQueue(servers=32, service_s=2.0, arrivals_per_s=1.001 * most), patience_s=0.5).late > 0.02
    )


@given(st.integers(1, 60), st.floats(0.05, 1.5), st.sampled_from([0.5, 0.95, 0.99]), st.integers(0, 40))
@settings(max_examples=40)
def test_wait_quantile_is_the_shortest_wait_that_the_share_does_not_exceed(
    servers: int, pressure: float, share: float, more: int
) -> None:
    queue = SlotQueue(servers=servers, service_s=2.0, arrivals_per_s=pressure * servers / 2, room=servers + more)
    found_s = wait_quantile(queue, share)
    assert queue_stats(queue, patience_s=found_s).late <= 1 - share
    assert found_s == 0 or queue_stats(queue, patience_s=0.999 * found_s).late > 1 - share


def test_wait_quantile_of_an_endless_queue() -> None:
    queue = SlotQueue(servers=10, service_s=2.0, arrivals_per_s=4.8)
    waits = erlang_c(10, 9.6)
    assert wait_quantile(queue, 0.99) == pytest.approx(math.log(waits / 0.01) / ((10 - 9.6) / 2), rel=1e-6)
    assert wait_quantile(replace(queue, arrivals_per_s=5.0), 0.99) == math.inf
    assert wait_quantile(replace(queue, arrivals_per_s=0.0), 0.99) == 0


def test_overload_without_limit_never_settles() -> None:
    found = queue_stats(SlotQueue(servers=4, service_s=1.0, arrivals_per_s=5.0))
    assert math.isinf(found.wait_mean_s)
    assert (found.waits, found.late) == (1, 1)


@pytest.mark.parametrize(
    "wrong", [{"servers": 0}, {"service_s": 0.0}, {"arrivals_per_s": -1.0}, {"room": 2}, {"servers": 3_000_000}]
)
def test_invalid_queue_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(PlanError):
        queue_stats(replace(SlotQueue(servers=4, service_s=1.0, arrivals_per_s=2.0), **wrong))  # type: ignore[arg-type]
