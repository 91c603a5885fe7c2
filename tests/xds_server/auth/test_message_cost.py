"""CPU time of short work, by two clocks that a test moves."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.auth.message_cost import SHORT_S, MessageCost


class Thread:
    """A thread that works and waits; both clocks stand still otherwise."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 100.0
        self.asked = 0

    def work(self, seconds: float) -> None:
        self.wall_s += seconds
        self.cpu_s += seconds

    def wait(self, seconds: float) -> None:
        self.wall_s += seconds

    def cpu(self) -> float:
        self.asked += 1
        return self.cpu_s


durations = st.floats(0.0, 3 * SHORT_S) | st.floats(0.0, 0.1)


@given(st.lists(st.tuples(durations, durations, durations), min_size=1, max_size=30))
def test_charge_is_never_below_the_cpu_time_and_hardly_above(work: list[tuple[float, float, float]]) -> None:
    thread = Thread()
    meter = MessageCost(wall=lambda: thread.wall_s, cpu=thread.cpu)
    for works_s, waits_s, pauses_s in work:
        began_s = meter.begin()
        thread.work(works_s / 2)
        thread.wait(waits_s)
        thread.work(works_s / 2)
        charged_s = meter.since(began_s)
        assert works_s - 1e-9 <= charged_s <= min(works_s + waits_s, works_s + SHORT_S) + 1e-9
        assert meter.exceeds(began_s, 0.05) == (charged_s >= 0.05)
        thread.wait(pauses_s)


def test_kernel_is_asked_once_a_millisecond_of_short_work() -> None:
    thread = Thread()
    meter = MessageCost(wall=lambda: thread.wall_s, cpu=thread.cpu)
    for _ in range(1_000):
        began_s = meter.begin()
        thread.work(20e-6)
        assert meter.since(began_s) == pytest.approx(20e-6)
    assert 15 <= thread.asked <= 21


def test_sleep_costs_nothing_and_work_counts_on_real_clocks() -> None:
    meter = MessageCost()
    began_s = meter.begin()
    time.sleep(0.05)
    assert meter.since(began_s) < 0.03
    began_s, until_s = meter.begin(), time.thread_time() + 0.01
    while time.thread_time() < until_s:
        pass
    assert meter.since(began_s) >= 0.01
