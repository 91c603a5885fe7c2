"""Configuration that is taken, and what happens while the control plane is away."""

from collections.abc import Sequence
from typing import Any

import pytest

from chaos.checks.case import case_of
from chaos.checks.control_plane import configuration_converged, nothing_lost_without_control_plane
from chaos.checks.finding import Answer, Finding
from chaos.history.events import Answered, Decided, Pushed
from chaos.history.history import Outage
from chaos.history.outcomes import Reason
from tests.chaos import histories

KILLED = {"kind": "control_plane_killed"}


def told(pushed: Sequence[Pushed], answered: Sequence[Answered], *outages: Outage, **more: Any) -> Finding | None:
    history = histories.history(*outages, began=histories.began(**more), pushed=pushed, answered=answered)
    return configuration_converged(case_of(history))


def said(finding: Finding | None) -> Answer:
    assert finding is not None
    return finding.answer


def test_a_rejection_that_a_later_push_makes_good_is_none() -> None:
    pushed = [histories.pushed(11.0, nonce="1"), histories.pushed(12.0, nonce="2")]
    answers = [histories.answered(11.1, nonce="1", error="no such cluster"), histories.answered(12.1, nonce="2")]
    assert said(told(pushed, answers)) is Answer.YES


def test_a_rejection_that_nobody_answers_is_a_no_with_its_reason() -> None:
    pushed = [histories.pushed(11.0, nonce="1"), histories.pushed(12.0, nonce="2", type="rds")]
    answers = [
        histories.answered(11.1, nonce="1"),
        histories.answered(12.1, nonce="2", type="rds", error="bad regex"),
    ]
    found = told(pushed, answers)
    assert said(found) is Answer.NO
    assert found is not None
    assert "p0 rejected the last rds it got, at 12.1 s, and got no better one: bad regex" in found.why


@pytest.mark.parametrize(
    ("unhealthy", "back", "answer"),
    [((), True, Answer.YES), (("e0",), True, Answer.NO), ((), False, Answer.NO), (("e0",), False, Answer.YES)],
)
def test_a_proxy_may_keep_what_was_decided_in_the_end_whatever_it_rejected(
    unhealthy: tuple[str, ...], back: bool, answer: Answer
) -> None:
    lines = [histories.decided(11.0, "e0", out=True)]
    lines += [histories.decided(20.5, "e0", out=False)] if back else []
    known = {f"e{engine}": 1 for engine in range(4)}
    history = histories.history(
        began=histories.began(),
        pushed=[histories.pushed(11.0)],
        answered=[histories.answered(11.1, error="spoilt")],
        decided=lines,
        samples=[histories.sample(29.5, known, unhealthy=unhealthy)],
    )
    assert said(configuration_converged(case_of(history))) is answer


def test_a_push_that_nobody_answers_is_a_no_and_one_just_before_the_end_is_not_known() -> None:
    assert said(told([histories.pushed(11.0)], [])) is Answer.NO
    assert said(told([histories.pushed(33.0)], [])) is Answer.UNKNOWN


def test_an_answer_of_an_earlier_connection_is_not_one_of_this() -> None:
    pushed = [histories.pushed(11.0, nonce="1"), histories.pushed(21.0, nonce="1")]
    assert said(told(pushed, [histories.answered(11.1, nonce="1")])) is Answer.NO


def test_every_proxy_must_have_taken_its_own() -> None:
    pushed = [histories.pushed(11.0, proxy="p0"), histories.pushed(11.0, proxy="p1")]
    assert said(told(pushed, [histories.answered(11.1, proxy="p0")])) is Answer.NO


def test_what_was_cut_off_by_a_fault_is_not_held_against_anybody() -> None:
    dead = histories.outage("control-plane", fault=KILLED, start_s=11.5, end_s=30.0)
    assert said(told([histories.pushed(11.0)], [], dead)) is Answer.UNKNOWN


def test_without_a_control_plane_there_is_nothing_to_take() -> None:
    assert told([], [], policies="") is None
    assert said(told([], [])) is Answer.UNKNOWN


def away(
    *outages: Outage,
    lost: range = range(0),
    forgets_at_s: float | None = None,
    decided: Sequence[Decided] = (),
    **more: Any,
) -> Finding | None:
    """Ten requests a second, of which these fail; the control plane is dead from 10 s to 20 s."""
    dead = histories.outage("control-plane", fault=KILLED, name="dead")
    requests = [
        histories.request(number, number / 10, reason=Reason.RESET if number in lost else Reason.OK)
        for number in range(300)
    ]
    samples = [
        histories.sample(
            at_s / 2, {"e0": 1} if forgets_at_s is not None and at_s / 2 > forgets_at_s else {"e0": 1, "e1": 1}
        )
        for at_s in range(60)
    ]
    history = histories.history(
        dead, *outages, began=histories.began(**more), requests=requests, samples=samples, decided=decided
    )
    return nothing_lost_without_control_plane(case_of(history))


def test_nothing_lost_is_a_yes_and_a_lost_request_or_two_are_noise() -> None:
    assert said(away()) is Answer.YES
    assert said(away(lost=range(120, 122))) is Answer.YES
    assert said(away(lost=range(120, 130))) is Answer.NO


def test_what_is_lost_while_engines_are_broken_too_does_not_count() -> None:
    broken = histories.outage("e0", start_s=10.0, end_s=14.0)
    assert said(away(broken, lost=range(100, 150))) is Answer.YES
    always = histories.outage("e0", start_s=8.0, end_s=22.0)
    found = away(always, lost=range(100, 150))
    assert said(found) is Answer.YES
    assert found is not None
    assert "nothing is said of answers" in found.why
    assert said(away(always, forgets_at_s=15.0)) is Answer.NO


def test_a_proxy_that_forgets_engines_has_lost_configuration() -> None:
    found = away(forgets_at_s=15.0)
    assert said(found) is Answer.NO
    assert found is not None
    assert "p0 no longer knew e1 at 15.5 s" in found.why
    assert said(away(forgets_at_s=25.0)) is Answer.YES


def test_an_engine_that_was_taken_out_is_not_forgotten() -> None:
    out = [histories.decided(15.1, "e1", out=True)]
    assert said(away(forgets_at_s=15.0, decided=out)) is Answer.YES
    early_back = [histories.decided(14.0, "e1", out=True), histories.decided(14.2, "e1", out=False)]
    assert said(away(forgets_at_s=15.0, decided=early_back)) is Answer.NO


@pytest.mark.parametrize("policies", ["", "kind: EnginePool\n"])
def test_it_is_judged_only_where_a_control_plane_was_hit(policies: str) -> None:
    history = histories.history(histories.outage("e0"), began=histories.began(policies=policies))
    assert nothing_lost_without_control_plane(case_of(history)) is None
    assert away(policies="") is None
