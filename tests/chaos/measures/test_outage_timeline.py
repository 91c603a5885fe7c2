"""Outage timelines: observed and unobserved moments."""

from typing import Any

import pytest

from chaos.history.history_events import EngineDetection
from chaos.history.recorded_history import History
from chaos.measures.outage_timeline import OutageMoments, by_outage, outage_moments
from tests.chaos import history_builders
from tests.chaos.simulated_history import Play, played


def story(*, engines: tuple[str, ...] = ("e0",), **more: Any) -> OutageMoments:
    history: History = history_builders.history(
        history_builders.outage(*engines), began=history_builders.began(), **more
    )
    return by_outage(outage_moments(history))[0]


def test_complete_timeline_is_in_order() -> None:
    (one,) = by_outage(outage_moments(played(Play(bad=("e0", "e1")))))
    assert one.engine == "e0, e1"
    times = [one.broke_s, one.detected_s, one.decided_s, one.pushed_s, one.acked_s, one.healed_s]
    times += [one.readmitted_s, one.back_s]
    known = [at_s for at_s in times if at_s is not None]
    assert len(known) == len(times)
    assert known == sorted(known)
    assert one.last_request_s is not None
    assert one.last_request_s <= known[4]


def test_unobserved_moments_are_none() -> None:
    one = story()
    assert (one.detected_s, one.decided_s, one.pushed_s, one.acked_s, one.back_s) == (None,) * 5


def test_timeline_uses_events_of_this_engine_only() -> None:
    detected = [
        EngineDetection(at_s=9.0, engine="e0", verdict="hung"),
        EngineDetection(at_s=11.0, engine="e1", verdict="hung"),
        EngineDetection(at_s=11.5, engine="e0", verdict="busy"),
        EngineDetection(at_s=12.0, engine="e0", verdict="hung"),
    ]
    assert story(detected=detected).detected_s == 12.0
    lines = [history_builders.decided(9.0, "e0", out=True), history_builders.decided(10.5, "e1", out=True)]
    assert story(decided=lines).decided_s is None


def test_acked_moment_needs_all_proxies() -> None:
    out = [history_builders.decided(11.0, "e0", out=True)]
    pushes = [
        history_builders.pushed(9.0, "p0", "0"),
        history_builders.pushed(11.01, "p0"),
        history_builders.pushed(11.02, "p1"),
    ]
    acks = [history_builders.answered(11.1, "p0"), history_builders.answered(11.3, "p1")]
    one = story(decided=out, pushed=pushes, answered=acks)
    assert (one.pushed_s, one.acked_s) == (11.01, 11.3)
    assert story(decided=out, pushed=pushes, answered=acks[:1]).acked_s is None
    refused = [acks[0], history_builders.answered(11.3, "p1", error="no")]
    assert story(decided=out, pushed=pushes, answered=refused).acked_s is None
    # p1 gets no push after the decision.
    unheard = [*pushes[:2], history_builders.pushed(5.0, "p1", "0")]
    assert story(decided=out, pushed=unheard, answered=acks).acked_s is None


def test_outage_timeline_uses_the_last_engine() -> None:
    lines = [history_builders.decided(11.0, "e0", out=True), history_builders.decided(12.0, "e1", out=True)]
    assert story(engines=("e0", "e1"), decided=lines).decided_s == 12.0
    assert story(engines=("e0", "e1"), decided=lines[:1]).decided_s is None


@pytest.mark.parametrize("fault", [{"kind": "slow"}, {"kind": "control_plane_killed"}, {"kind": "alien"}])
def test_outage_without_broken_engines_has_no_timeline(fault: dict[str, str]) -> None:
    history = history_builders.history(history_builders.outage("e0", fault=fault), began=history_builders.began())
    assert outage_moments(history) == ()
