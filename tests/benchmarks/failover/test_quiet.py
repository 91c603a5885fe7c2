"""When a bad engine was left alone and a good one had its traffic back, on histories made by hand."""

import pytest

from benchmarks.failover.quiet import recoveries, silences
from benchmarks.failover.setting import Setting
from chaos.fake_engine import Crash, ErrorAfterWork, Flap, Hang

# Two engines, ten requests a second: five for each, so that ten are two seconds' worth.
SETTING = Setting(engines=2, engine_processes=1, load_percent=100 * 10 / 32)


def every(story, engine: int, from_s: float, to_s: float, step_s: float = 0.2, first: int = 0) -> list:
    count = round((to_s - from_s) / step_s)
    return [story.attempt(first + place, engine, from_s + place * step_s) for place in range(count)]


def test_the_last_request_before_a_pause_is_when_it_is_left_alone(story) -> None:
    calls = [*every(story, 0, 110.0, 111.2), *every(story, 1, 110.0, 120.0, first=100)]
    (found,) = silences(story.history(story.outage(0, Hang()), attempts=calls), SETTING)
    assert found.quiet_s == pytest.approx(1.0)
    assert (found.sent, found.strays) == (6, 0)


def test_what_comes_after_the_pause_is_counted_apart(story) -> None:
    calls = [*every(story, 0, 110.0, 111.2), story.attempt(90, 0, 115.0), story.attempt(91, 0, 118.5)]
    (found,) = silences(story.history(story.outage(0, ErrorAfterWork()), attempts=calls), SETTING)
    assert found.quiet_s == pytest.approx(1.0)
    assert found.strays == 2


def test_an_engine_that_is_asked_all_along_was_never_left_alone(story) -> None:
    (found,) = silences(story.history(story.outage(0, Hang()), attempts=every(story, 0, 110.0, 120.0)), SETTING)
    assert found.quiet_s is None
    assert found.sent == 50


def test_one_that_is_not_asked_at_all_was_left_alone_at_once(story) -> None:
    (found,) = silences(story.history(story.outage(0, Hang())), SETTING)
    assert (found.quiet_s, found.sent) == (0.0, 0)


def test_what_a_crashed_engine_refused_is_read_off_the_proxies(story) -> None:
    samples = [story.sample(110.0 + 0.1 * place, {0: 100 + min(place, 4), 1: 100 + place}) for place in range(100)]
    (found,) = silences(story.history(story.outage(0, Crash()), samples=samples), SETTING)
    assert found.quiet_s == pytest.approx(0.4)
    assert found.sent == 4


def test_the_counters_of_each_proxy_are_its_own(story) -> None:
    samples = [
        story.sample(110.0 + 0.1 * place, {0: (1000, 10)[proxy]}, proxy=proxy)
        for place in range(100)
        for proxy in (0, 1)
    ]
    (found,) = silences(story.history(story.outage(0, Crash()), samples=samples), SETTING)
    assert found.sent == 0


def test_a_flapping_engine_has_no_moment_of_silence(story) -> None:
    assert not silences(story.history(story.outage(0, Flap(fault=Crash()))), SETTING)


def test_back_is_when_it_has_most_of_its_share_again(story) -> None:
    calls = [*every(story, 1, 110.0, 130.0, first=1000), *every(story, 0, 122.0, 130.0)]
    (found,) = recoveries(story.history(story.outage(0, Hang()), attempts=calls), SETTING)
    assert found.engines == (0,)
    assert found.back_s is not None
    assert 1.5 <= found.back_s <= 2.1


def test_back_at_once_is_zero_and_never_is_none(story) -> None:
    both = [*every(story, 1, 110.0, 130.0, first=1000), *every(story, 0, 120.0, 130.0)]
    (at_once,) = recoveries(story.history(story.outage(0, Hang()), attempts=both), SETTING)
    assert at_once.back_s == pytest.approx(0.0, abs=0.01)
    (never,) = recoveries(story.history(story.outage(0, Hang()), attempts=every(story, 1, 110.0, 130.0)), SETTING)
    assert never.back_s is None


def test_a_trickle_is_not_being_back(story) -> None:
    trickle = every(story, 0, 120.0, 130.0, step_s=1.0)
    calls = [*every(story, 1, 110.0, 130.0, step_s=0.1, first=1000), *trickle]
    (found,) = recoveries(story.history(story.outage(0, Hang()), attempts=calls), SETTING)
    assert found.back_s is None


def test_engines_healed_together_are_judged_together(story) -> None:
    found = recoveries(
        story.history(
            story.outage(0, Hang(), end_s=120.0),
            story.outage(1, Hang(), end_s=120.02),
            attempts=every(story, 0, 120, 130),
        ),
        SETTING,
    )
    assert [one.engines for one in found] == [(0, 1)]
