"""The guided incident's progress is a function of what was observed."""

from dataclasses import replace
from typing import Any

from chaos.lab_page.guided_incident import STEPS, Observation, ObservedEngine, Progress, advanced, step_texts
from chaos.lab_page.recent_answers import WINDOW_S, AnswerFigures

WELL = Observation(
    engines=(
        ObservedEngine(name="chat/e0", health="HEALTHY", verdict="ready"),
        ObservedEngine(name="chat/e1", health="HEALTHY", verdict="ready"),
    ),
    answers=AnswerFigures(good=30),
)
PLACES = {"engine": "chat/e1", "url": "http://u", "admin": "http://a", "lab": "http://l"}


def changed(now: Observation, **values: Any) -> Observation:
    """The observation with another state of chat/e1."""
    return replace(now, engines=(now.engines[0], replace(now.engines[1], **values)))


HUNG = changed(WELL, fault="hang")
OUT = changed(HUNG, health="UNHEALTHY", verdict="hung", reason="hung: no token for 1.0 s", since_s=6.0)


def after(*observations: Observation) -> Progress:
    progress = Progress()
    for now in observations:
        progress = advanced(progress, now)
    return progress


def test_each_step_is_seen_by_its_own_evidence() -> None:
    asked = replace(OUT, explanation={"chat/e1": "chat/e1 has been ejected, because it is hung."})
    failing = replace(OUT, answers=AnswerFigures(good=30, failed=1))
    story = [(WELL, 1), (HUNG, 2), (failing, 3), (failing, 3), (replace(asked, answers=failing.answers), 4)]
    story += [(failing, 4), (OUT, 5), (changed(OUT, fault=""), 5), (WELL, 6), (HUNG, 6)]
    progress = Progress()
    for now, seen in story:
        progress = advanced(progress, now)
        assert len(progress.seen) == seen
    assert progress.finished
    assert progress.engine == "chat/e1"
    assert progress.seen[2] == "chat/e1 is out of rotation: hung: no token for 1.0 s"
    assert progress.seen[5] == "chat/e1 is in rotation again"


def test_no_step_is_seen_before_the_one_above_it() -> None:
    assert after(OUT) == Progress()
    assert after(replace(WELL, answers=AnswerFigures(good=4))) == Progress()
    assert after(replace(WELL, answers=AnswerFigures(good=30, failed=1))) == Progress()
    assert after(Observation(answers=WELL.answers)) == Progress(), "without contact no engine is known"
    assert len(after(WELL, OUT).seen) == 3, "one observation may show several steps"


def test_callers_count_as_served_when_the_whole_window_is_after_the_ejection() -> None:
    asked = replace(OUT, explanation={"chat/e1": "it is hung"})
    just_out = changed(asked, since_s=WINDOW_S - 0.1)
    assert len(after(WELL, HUNG, just_out).seen) == 4
    assert len(after(WELL, HUNG, just_out, changed(asked, since_s=WINDOW_S)).seen) == 5


def test_only_a_hang_counts_as_hung() -> None:
    assert len(after(WELL, changed(WELL, fault="crash")).seen) == 1
    dead = changed(HUNG, health="UNHEALTHY", verdict="dead")
    assert len(after(WELL, HUNG, dead).seen) == 2
    assert len(after(WELL, HUNG, changed(OUT, name="chat/e7")).seen) == 2, "another engine"


def test_explanation_is_asked_for_only_at_its_step() -> None:
    assert [after(*seen).asks_why for seen in ((), (WELL,), (WELL, HUNG), (WELL, OUT))] == [
        False,
        False,
        False,
        True,
    ]


def test_texts_name_the_engine_and_the_addresses() -> None:
    shown = step_texts(after(WELL, HUNG), PLACES)
    assert [bool(one["seen"]) for one in shown] == [True, True, False, False, False, False]
    assert [one["current"] for one in shown].index(True) == 2
    assert shown[3]["command"] == "switchgear why chat/e1 --admin http://a"
    assert not any("{" in str(text) for one in shown for text in one.values())
    assert len(shown) == len(STEPS)
