"""The story of an outage: what was seen when, and what was not."""

from typing import Any

import pytest

from chaos.history.events import Detected
from chaos.history.history import History
from chaos.measures.timeline import Moments, by_outage, moments
from tests.chaos import histories
from tests.chaos.played import Play, played


def story(*, engines: tuple[str, ...] = ("e0",), **more: Any) -> Moments:
    history: History = histories.history(histories.outage(*engines), began=histories.began(), **more)
    return by_outage(moments(history))[0]


def test_a_whole_story_is_in_order() -> None:
    (one,) = by_outage(moments(played(Play(bad=("e0", "e1")))))
    assert one.engine == "e0, e1"
    times = [one.broke_s, one.detected_s, one.decided_s, one.pushed_s, one.acked_s, one.healed_s]
    times += [one.readmitted_s, one.back_s]
    known = [at_s for at_s in times if at_s is not None]
    assert len(known) == len(times)
    assert known == sorted(known)
    assert one.last_request_s is not None
    assert one.last_request_s <= known[4]


def test_nothing_seen_is_none() -> None:
    one = story()
    assert (one.detected_s, one.decided_s, one.pushed_s, one.acked_s, one.back_s) == (None,) * 5


def test_only_what_is_said_of_this_engine_while_it_is_bad_counts() -> None:
    detected = [
        Detected(at_s=9.0, engine="e0", verdict="hung"),
        Detected(at_s=11.0, engine="e1", verdict="hung"),
        Detected(at_s=11.5, engine="e0", verdict="busy"),
        Detected(at_s=12.0, engine="e0", verdict="hung"),
    ]
    assert story(detected=detected).detected_s == 12.0
    lines = [histories.decided(9.0, "e0", out=True), histories.decided(10.5, "e1", out=True)]
    assert story(decided=lines).decided_s is None


def test_all_proxies_must_accept_and_a_rejection_is_no_acceptance() -> None:
    out = [histories.decided(11.0, "e0", out=True)]
    pushes = [histories.pushed(9.0, "p0", "0"), histories.pushed(11.01, "p0"), histories.pushed(11.02, "p1")]
    acks = [histories.answered(11.1, "p0"), histories.answered(11.3, "p1")]
    one = story(decided=out, pushed=pushes, answered=acks)
    assert (one.pushed_s, one.acked_s) == (11.01, 11.3)
    assert story(decided=out, pushed=pushes, answered=acks[:1]).acked_s is None
    refused = [acks[0], histories.answered(11.3, "p1", error="no")]
    assert story(decided=out, pushed=pushes, answered=refused).acked_s is None
    # p1 is told of nothing after the decision.
    unheard = [*pushes[:2], histories.pushed(5.0, "p1", "0")]
    assert story(decided=out, pushed=unheard, answered=acks).acked_s is None


def test_of_an_outage_the_last_engine_counts_and_one_that_was_never_left_makes_none() -> None:
    lines = [histories.decided(11.0, "e0", out=True), histories.decided(12.0, "e1", out=True)]
    assert story(engines=("e0", "e1"), decided=lines).decided_s == 12.0
    assert story(engines=("e0", "e1"), decided=lines[:1]).decided_s is None


@pytest.mark.parametrize("fault", [{"kind": "slow"}, {"kind": "control_plane_killed"}, {"kind": "alien"}])
def test_outages_that_break_no_engine_have_no_story(fault: dict[str, str]) -> None:
    history = histories.history(histories.outage("e0", fault=fault), began=histories.began())
    assert moments(history) == ()
