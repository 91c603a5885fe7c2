"""What was possible: the formula where it holds, and arrivals, proxies and engines as they were."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.history.recorded_history import History, Outage
from chaos.measures.impairments import impairments
from chaos.measures.possible_goodput import CapacityStretch, admitted_requests, possible_goodput_percent
from tests.chaos import history_builders


def seen(*outages: Outage, per_s: int = 20, max_wait_s: float = 2.0, proxy: str = "p0") -> History:
    """An even load on four engines that serve eight a second each."""
    requests = [history_builders.request(number, number / per_s, proxy=proxy) for number in range(30 * per_s)]
    return history_builders.history(
        *outages, began=history_builders.began(max_wait_s=max_wait_s), requests=requests
    )


def possible(history: History, from_s: float = 10.0, to_s: float = 30.0) -> float:
    found = possible_goodput_percent(history, impairments(history), from_s, to_s)
    assert found is not None
    return found


def test_full_goodput_is_possible_with_spare_capacity() -> None:
    assert possible(seen()) == pytest.approx(100.0)
    assert possible(seen(history_builders.outage("e0"))) == pytest.approx(100.0)


def test_short_capacity_matches_the_formula() -> None:
    # Two of four are left for 10.5 s: mu 16, lambda 20, W 2.
    found = possible(seen(history_builders.outage("e0", "e1")))
    lost = 20 * 10.5 - 16 * (10.5 + 2.0)
    assert found == pytest.approx(100 * (1 - max(0.0, lost) / (20 * 20)), abs=0.5)
    none = possible(seen(history_builders.outage("e0", "e1", "e2", "e3")))
    assert none == pytest.approx(100 * (1 - 20 * 10.5 / (20 * 20)), abs=0.5)


def test_slow_engines_count_with_their_remaining_capacity() -> None:
    slow = seen(history_builders.outage("e0", "e1", fault={"kind": "slow", "factor": 2}))
    assert possible(slow) == pytest.approx(100.0)


def test_requests_to_a_frozen_proxy_are_not_possible() -> None:
    frozen = history_builders.outage("p0", fault={"kind": "proxy_frozen"})
    assert possible(seen(frozen)) == pytest.approx(50.0, abs=0.5)
    assert possible(seen(frozen, proxy="p1")) == pytest.approx(100.0)
    rejected = history_builders.outage("p0", fault={"kind": "config_rejected"})
    assert possible(seen(rejected)) == pytest.approx(100.0)


def test_possible_goodput_without_requests_is_none() -> None:
    history = history_builders.history(began=history_builders.began())
    assert possible_goodput_percent(history, (), 0.0, 30.0) is None


@given(
    offered=st.lists(st.floats(0, 50), min_size=1, max_size=20),
    capacity=st.lists(st.floats(0, 50), min_size=20, max_size=20),
    wait_s=st.floats(0, 5),
)
def test_admission_never_exceeds_arrivals(offered: list[float], capacity: list[float], wait_s: float) -> None:
    stretches = [
        CapacityStretch(start_s=place, end_s=place + 1, offered_per_s=one, capacity_per_s=capacity[place])
        for place, one in enumerate(offered)
    ]
    found = admitted_requests(stretches, wait_s)
    assert all(-1e-9 <= count <= one + 1e-9 for count, one in zip(found, offered, strict=True))
    assert sum(admitted_requests(stretches, wait_s + 1)) >= sum(found) - 1e-6
