"""Bad engines are left alone, healed ones come back and stay, and enough are left in."""

from typing import Any

import pytest

from chaos.checks.case import case_of
from chaos.checks.ejection import back_within, floor, left_alone_within, no_stuck_ejection
from chaos.checks.finding import Answer
from chaos.history.events import Attempt
from chaos.history.history import History
from tests.chaos import histories

LIMITS = {"leftAloneWithin": "1s", "backWithin": "2s", "floorEnginesPercent": 50}


def every(engine: str, from_s: float, to_s: float, first: int) -> list[Attempt]:
    """Five calls a second."""
    return [
        histories.attempt(first + place, engine, from_s + place / 5) for place in range(round(5 * (to_s - from_s)))
    ]


def seen(*until: tuple[float, float], fault: dict[str, Any] | None = None, **more: Any) -> History:
    """Two engines with five calls a second; e0 hangs from 10 s to 20 s, and gets its calls in these times only."""
    began = histories.began(hypothesis=LIMITS, engines=histories.engines(2), rate_per_s=10.0)
    calls = [call for place, span in enumerate(until) for call in every("e0", *span, first=10_000 * (place + 1))]
    return histories.history(
        histories.outage("e0", fault=fault),
        began=began,
        requests=[histories.request(1, 12.0)],
        attempts=[*every("e1", 0.0, 30.0, first=0), *calls],
        **more,
    )


def test_a_bad_engine_that_is_left_soon_and_comes_back_soon_is_well_treated() -> None:
    case = case_of(seen((0.0, 10.6), (20.4, 30.0)))
    for check in (left_alone_within, back_within, no_stuck_ejection):
        found = check(case)
        assert found is not None
        assert found.answer is Answer.YES, found.why


def test_requests_that_go_on_to_a_bad_engine_are_named_with_their_last() -> None:
    found = left_alone_within(case_of(seen((0.0, 14.0), (20.4, 30.0))))
    assert found is not None
    assert found.answer is Answer.NO
    assert found.at_s == pytest.approx(11.2)
    assert "14 requests went to e0" in found.why
    assert "at 13.8 s" in found.why


def test_single_requests_on_trial_are_forgiven_and_a_trickle_is_not() -> None:
    trial = seen((0.0, 10.6), (15.0, 15.4), (20.4, 30.0))
    trickle = seen((0.0, 10.6), (15.0, 16.0), (20.4, 30.0))
    found = [left_alone_within(case_of(one)) for one in (trial, trickle)]
    assert [one.answer for one in found if one] == [Answer.YES, Answer.NO]


def test_an_engine_that_the_floor_keeps_in_is_not_held_against_anybody() -> None:
    kept = histories.decided(10.5, "e0", out=None, kind="kept", before="free to leave", after="kept in")
    found = left_alone_within(case_of(seen((0.0, 30.0), decided=[kept])))
    assert found is not None
    assert found.answer is Answer.YES
    assert "kept in by the floor" in found.why


def test_an_engine_that_is_only_slow_need_not_be_left() -> None:
    assert left_alone_within(case_of(seen((0.0, 30.0), fault={"kind": "slow"}))) is None


@pytest.mark.parametrize(("back_s", "said"), [(21.5, Answer.YES), (23.0, Answer.NO), (30.0, Answer.NO)])
def test_traffic_is_back_soon(back_s: float, said: Answer) -> None:
    found = back_within(case_of(seen((0.0, 10.6), (back_s, 30.0))))
    assert found is not None
    assert found.answer is said
    assert found.at_s == (22.0 if said is Answer.NO else None)


@pytest.mark.parametrize("check", [left_alone_within, back_within])
def test_without_books_nobody_knows_where_requests_went(check: Any) -> None:
    history = histories.history(
        histories.outage("e0"),
        began=histories.began(hypothesis=LIMITS),
        requests=[histories.request(1, 12.0)],
    )
    assert check(case_of(history)).answer is Answer.UNKNOWN


def test_an_engine_out_by_the_ledger_long_after_it_is_well_is_stuck() -> None:
    out = histories.decided(10.8, "e0", out=True)
    found = no_stuck_ejection(case_of(seen((0.0, 10.6), decided=[out])))
    assert found is not None
    assert found.answer is Answer.NO
    assert "e0 from 20.0 s to 30.0 s: the control plane took it out at 10.8 s: 4 calls hang" in found.why


def test_an_engine_out_at_one_proxy_is_stuck_whatever_the_control_plane_says() -> None:
    samples = [
        histories.sample(at_s / 2, {}, proxy=proxy, ejected=("e0",) if proxy == "p1" and at_s > 22 else ())
        for at_s in range(60)
        for proxy in ("p0", "p1")
    ]
    found = no_stuck_ejection(case_of(seen((0.0, 10.6), (20.4, 30.0), samples=samples)))
    assert found is not None
    assert found.answer is Answer.NO
    assert "p1 ejects it by its own outlier detection since 11.5 s" in found.why


def test_an_engine_that_gets_nothing_although_nobody_says_why_is_stuck() -> None:
    found = no_stuck_ejection(case_of(seen((0.0, 10.6))))
    assert found is not None
    assert found.answer is Answer.NO
    assert "it got no request after 20.0 s, while the others got 50" in found.why


def test_an_engine_that_was_well_all_along_may_not_be_out_for_long() -> None:
    lines = [histories.decided(5.0, "e1", out=True), histories.decided(15.0, "e1", out=False)]
    found = no_stuck_ejection(case_of(seen((0.0, 10.6), (20.4, 30.0), decided=lines)))
    assert found is not None
    assert (found.answer, found.at_s) == (Answer.NO, 13.0)


def test_an_engine_that_is_out_shortly_before_the_end_is_not_known_to_be_stuck() -> None:
    late = histories.decided(27.0, "e0", out=True)
    found = no_stuck_ejection(case_of(seen((0.0, 10.6), (20.4, 27.0), decided=[late])))
    assert found is not None
    assert found.answer is Answer.UNKNOWN


def test_nobody_is_stuck_while_the_control_plane_is_gone_or_the_engine_never_comes_back() -> None:
    out = histories.decided(10.8, "e0", out=True)
    dead = histories.outage(
        "control-plane",
        fault={"kind": "control_plane_killed", "staysDead": True},
        start_s=10.9,
        end_s=25.0,
        name="x",
    )
    history = seen((0.0, 10.6), decided=[out])
    gone = histories.history(
        histories.outage("e0"), dead, began=history.began, decided=[out], attempts=history.attempts
    )
    killed = seen((0.0, 10.6), decided=[out], fault={"kind": "oom_kill", "staysDead": True})
    for one in (gone, killed):
        found = no_stuck_ejection(case_of(one))
        assert found is not None
        assert found.answer is Answer.YES, found.why


def test_the_floor_is_read_off_the_ledger() -> None:
    lines = [histories.decided(11.0, "e0", out=True), histories.decided(12.0, "e1", out=True)]
    found = floor(case_of(seen((0.0, 10.6), decided=lines)))
    assert found is not None
    assert (found.answer, found.at_s, found.numbers["fewest"]) == (Answer.NO, 12.0, 0)
    found = floor(case_of(seen((0.0, 10.6), decided=lines[:1])))
    assert found is not None
    assert found.answer is Answer.YES


def test_without_a_control_plane_the_floor_is_each_proxy_s() -> None:
    history = seen((0.0, 10.6), samples=[histories.sample(12.0, {}, ejected=("e0",), unhealthy=("e1",))])
    static = histories.began(hypothesis=LIMITS, engines=histories.engines(2), policies="")
    found = floor(case_of(histories.history(began=static, samples=history.samples)))
    assert found is not None
    assert found.answer is Answer.NO
    assert found.why.startswith("p0 left 0 of 2 engines")
