"""Tokens per second of an engine follow its speed within a second, and not the number of its requests."""

import pytest

from engine.agent.counter_window import CounterWindow
from engine.vllm_metrics import VllmCounters


def window(*readings: tuple[float, float, int]) -> CounterWindow:
    """Readings of time, tokens and running requests."""
    found = CounterWindow()
    for at_s, tokens, running in readings:
        counters = VllmCounters(generation_tokens=tokens, prompt_tokens=0.0, running=running, waiting=0)
        found = found.after(at_s, counters)
    return found


def test_token_rate_follows_a_slowdown_within_a_second() -> None:
    full = [(place / 4, 200.0 * place, 8) for place in range(41)]
    slow = [(10.0 + place / 4, 8000.0 + 20.0 * place, 8) for place in range(1, 5)]
    assert window(*full).tokens_per_s == pytest.approx(800.0)
    assert window(*full, *slow).tokens_per_s == pytest.approx(80.0)


def test_filling_engine_does_not_look_slow() -> None:
    # 100 tokens per second of each request, and requests double.
    rate = window((0.0, 0.0, 2), (0.25, 75.0, 4), (0.5, 225.0, 8)).tokens_per_s
    assert rate == pytest.approx(800.0)


def test_token_rate_needs_two_readings_of_one_process() -> None:
    assert window((0.0, 50.0, 8)).tokens_per_s is None
    assert window((0.0, 50.0, 8), (0.25, 10.0, 8)).tokens_per_s is None
    assert window((0.0, 50.0, 0), (5.0, 60.0, 0)).tokens_per_s == pytest.approx(2.0)
