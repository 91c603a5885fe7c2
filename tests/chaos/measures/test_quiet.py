"""When a bad engine was left alone and a good one had its traffic back, on histories made by hand."""

from typing import Any

import pytest

from chaos.history.events import Attempt
from chaos.history.history import History, Outage
from chaos.measures.quiet import Recovery, Silence, recoveries, silences
from chaos.measures.trouble import troubles
from tests.chaos import histories

ERROR = {"kind": "engine_error"}
FLAP = {"kind": "flap", "fault": {"kind": "crash"}}


def seen(*outages: Outage, **more: Any) -> History:
    """Two engines, ten requests a second: five for each, so that ten are two seconds' worth."""
    return histories.history(
        *outages, began=histories.began(engines=histories.engines(2), rate_per_s=10.0), **more
    )


def quiet(*outages: Outage, **more: Any) -> list[Silence]:
    history = seen(*outages, **more)
    return silences(history, troubles(history))


def back(*outages: Outage, **more: Any) -> list[Recovery]:
    history = seen(*outages, **more)
    return recoveries(history, troubles(history))


def every(engine: str, from_s: float, to_s: float, step_s: float = 0.2, first: int = 0) -> list[Attempt]:
    count = round((to_s - from_s) / step_s)
    return [histories.attempt(first + place, engine, from_s + place * step_s) for place in range(count)]


def test_the_last_request_before_a_pause_is_when_it_is_left_alone() -> None:
    calls = [*every("e0", 10.0, 11.2), *every("e1", 10.0, 20.0, first=100)]
    (found,) = quiet(histories.outage("e0", fault=histories.HANG), attempts=calls)
    assert found.quiet_s == pytest.approx(1.0)
    assert (found.sent, found.strays) == (6, 0)


def test_what_comes_after_the_pause_is_counted_apart() -> None:
    calls = [*every("e0", 10.0, 11.2), histories.attempt(90, "e0", 15.0), histories.attempt(91, "e0", 18.5)]
    (found,) = quiet(histories.outage("e0", fault=ERROR), attempts=calls)
    assert found.quiet_s == pytest.approx(1.0)
    assert found.strays == 2


def test_an_engine_that_is_asked_all_along_was_never_left_alone() -> None:
    (found,) = quiet(histories.outage("e0", fault=histories.HANG), attempts=every("e0", 10.0, 20.0))
    assert found.quiet_s is None
    assert found.sent == 50


def test_one_that_is_not_asked_at_all_was_left_alone_at_once() -> None:
    (found,) = quiet(histories.outage("e0", fault=histories.HANG))
    assert (found.quiet_s, found.sent) == (0.0, 0)


def test_what_a_crashed_engine_refused_is_read_off_the_proxies() -> None:
    samples = [
        histories.sample(10.0 + 0.1 * place, {"e0": 100 + min(place, 4), "e1": 100 + place})
        for place in range(100)
    ]
    (found,) = quiet(histories.outage("e0", fault=histories.CRASH), samples=samples)
    assert found.quiet_s == pytest.approx(0.4)
    assert found.sent == 4


def test_the_counters_of_each_proxy_are_its_own() -> None:
    samples = [
        histories.sample(10.0 + 0.1 * place, {"e0": (1000, 10)[proxy]}, proxy=f"p{proxy}")
        for place in range(100)
        for proxy in (0, 1)
    ]
    (found,) = quiet(histories.outage("e0", fault=histories.CRASH), samples=samples)
    assert found.sent == 0


def test_a_flapping_engine_has_no_moment_of_silence() -> None:
    assert not quiet(histories.outage("e0", fault=FLAP))


def test_back_is_when_it_has_most_of_its_share_again() -> None:
    calls = [*every("e1", 10.0, 30.0, first=1000), *every("e0", 22.0, 30.0)]
    (found,) = back(histories.outage("e0", fault=histories.HANG), attempts=calls)
    assert found.engines == ("e0",)
    assert found.back_s is not None
    assert 1.5 <= found.back_s <= 2.1


def test_back_at_once_is_zero_and_never_is_none() -> None:
    both = [*every("e1", 10.0, 30.0, first=1000), *every("e0", 20.0, 30.0)]
    (at_once,) = back(histories.outage("e0", fault=histories.HANG), attempts=both)
    assert at_once.back_s == pytest.approx(0.0, abs=0.01)
    (never,) = back(histories.outage("e0", fault=histories.HANG), attempts=every("e1", 10.0, 30.0))
    assert never.back_s is None


def test_a_trickle_is_not_being_back() -> None:
    trickle = every("e0", 20.0, 30.0, step_s=1.0)
    calls = [*every("e1", 10.0, 30.0, step_s=0.1, first=1000), *trickle]
    (found,) = back(histories.outage("e0", fault=histories.HANG), attempts=calls)
    assert found.back_s is None


def test_engines_healed_together_are_judged_together() -> None:
    found = back(
        histories.outage("e0", fault=histories.HANG, end_s=20.0),
        histories.outage("e1", fault=histories.HANG, end_s=20.02),
        attempts=every("e0", 20.0, 30.0),
    )
    assert [one.engines for one in found] == [("e0", "e1")]
