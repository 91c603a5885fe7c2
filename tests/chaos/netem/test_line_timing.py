"""When bytes come out of a line."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.netem.link_rules import UNIMPAIRED, LinkConditions
from chaos.netem.shaped_flow import BandwidthCap, DelayLine


def test_line_without_rules_adds_no_delay() -> None:
    line = DelayLine(random.Random(1), open_at_s=0.0)

    assert line.due_s(5.0, 1000, UNIMPAIRED, ()) == 5.0


def test_first_bytes_wait_for_the_delayed_handshake() -> None:
    line = DelayLine(random.Random(1), open_at_s=10.4)

    assert line.due_s(10.0, 1, LinkConditions(latency_s=0.2), ()) == pytest.approx(10.6)
    assert line.due_s(10.5, 1, LinkConditions(latency_s=0.2), ()) == pytest.approx(10.7)


def test_lines_with_a_shared_bandwidth_limit_queue() -> None:
    cap = BandwidthCap(1000.0)
    one, other = (DelayLine(random.Random(1), open_at_s=0.0) for _ in range(2))

    assert one.due_s(0.0, 500, UNIMPAIRED, (cap,)) == pytest.approx(0.5)
    assert other.due_s(0.1, 500, UNIMPAIRED, (cap,)) == pytest.approx(1.0)
    assert one.due_s(3.0, 100, UNIMPAIRED, (cap,)) == pytest.approx(3.1)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(1, 10_000), st.booleans()), max_size=30), st.integers(0, 2**32)
)
def test_bytes_stay_in_order_and_are_never_early(entries: list[tuple[float, int, bool]], seed: int) -> None:
    line, cap = DelayLine(random.Random(seed), open_at_s=0.0), BandwidthCap(50_000.0)
    now_s, last_s = 0.0, 0.0
    for wait_s, size, shaky in entries:
        now_s += wait_s
        weather = LinkConditions(latency_s=0.1, jitter_s=0.5) if shaky else UNIMPAIRED
        due_s = line.due_s(now_s, size, weather, (cap,))
        assert due_s >= max(last_s, now_s + weather.latency_s + size / 50_000.0 - 1e-9)
        last_s = due_s
