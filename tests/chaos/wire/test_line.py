"""When bytes come out of a line."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.wire.line import Cap, Line
from chaos.wire.rules import CALM, Weather


def test_a_calm_line_takes_no_time() -> None:
    line = Line(random.Random(1), open_at_s=0.0)

    assert line.due_s(5.0, 1000, CALM, ()) == 5.0


def test_the_first_bytes_are_sent_after_a_handshake_that_was_late_too() -> None:
    line = Line(random.Random(1), open_at_s=10.4)

    assert line.due_s(10.0, 1, Weather(latency_s=0.2), ()) == pytest.approx(10.6)
    assert line.due_s(10.5, 1, Weather(latency_s=0.2), ()) == pytest.approx(10.7)


def test_lines_that_share_a_bottleneck_wait_for_each_other() -> None:
    cap = Cap(1000.0)
    one, other = (Line(random.Random(1), open_at_s=0.0) for _ in range(2))

    assert one.due_s(0.0, 500, CALM, (cap,)) == pytest.approx(0.5)
    assert other.due_s(0.1, 500, CALM, (cap,)) == pytest.approx(1.0)
    assert one.due_s(3.0, 100, CALM, (cap,)) == pytest.approx(3.1)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(1, 10_000), st.booleans()), max_size=30), st.integers(0, 2**32)
)
def test_nothing_overtakes_and_nothing_comes_out_before_it_could(
    entries: list[tuple[float, int, bool]], seed: int
) -> None:
    line, cap = Line(random.Random(seed), open_at_s=0.0), Cap(50_000.0)
    now_s, last_s = 0.0, 0.0
    for wait_s, size, shaky in entries:
        now_s += wait_s
        weather = Weather(latency_s=0.1, jitter_s=0.5) if shaky else CALM
        due_s = line.due_s(now_s, size, weather, (cap,))
        assert due_s >= max(last_s, now_s + weather.latency_s + size / 50_000.0 - 1e-9)
        last_s = due_s
