"""Whether an experiment can be believed."""

from typing import Any

import pytest

from chaos.checks.case import case_of
from chaos.checks.finding import Answer
from chaos.checks.trust import bench, blast_radius, history_complete, processes, ran_to_the_end
from chaos.history.events import Aborted, Gone, Used
from chaos.history.history import History
from tests.chaos import histories

FAULTS = {"faults": [{"fault": {"kind": "hang"}, "at": "10s", "lasts": "10s"}]}


def seen(*outages: Any, spec: dict[str, Any] | None = None, **more: Any) -> History:
    return histories.history(
        *(outages or (histories.outage("e0"),)),
        began=histories.began(spec=spec or FAULTS),
        requests=more.pop("requests", [histories.request(1, 12.0)]),
        **more,
    )


def test_a_whole_history_is_complete() -> None:
    assert history_complete(case_of(seen())).answer is Answer.YES


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ended_s": None}, "breaks off at 20.0 s of 30.0 s"),
        ({"unread": ("line 7: no JSON",)}, "line 7: no JSON"),
        ({"aborted": Aborted(at_s=12.0, why="goodput")}, "stopped at 12.0 s"),
        ({"gone": (Gone(at_s=11.0, process="engine-e3", status=-9),)}, "engine-e3 ended by itself at 11.0 s"),
    ],
)
def test_what_is_missing_is_said(change: dict[str, Any], said: str) -> None:
    found = history_complete(case_of(seen(**change)))
    assert found.answer is Answer.UNKNOWN
    assert said in found.why


def test_faults_that_never_began_never_ended_or_are_unknown_are_gaps() -> None:
    never = histories.history(began=histories.began(spec=FAULTS))
    assert "1 of its faults never began" in history_complete(case_of(never)).why
    assert "never healed" in history_complete(case_of(seen(histories.outage("e0", end_s=None)))).why
    strange = histories.outage("e0", fault={"kind": "alien"})
    assert "does not know the fault 'alien'" in history_complete(case_of(seen(strange))).why


def test_a_scenario_of_another_version_is_not_known() -> None:
    began = histories.began(spec={"newField": 1})
    found = history_complete(case_of(histories.history(began=began)))
    assert found.answer is Answer.UNKNOWN


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"requests": [histories.request(1, 12.0, lag_s=1.5)]}, "left late"),
        ({"requests": []}, "no request was sent"),
        ({"used": Used(at_s=30.0, processes={}, machine=99.0, ours=9.0)}, "others used 90 %"),
        ({"attempts": [histories.attempt(1, "e0", 5.0, closed_s=6.0)]}, "engines sent answers late"),
    ],
)
def test_a_bench_that_did_not_keep_up_makes_nothing_known(more: dict[str, Any], said: str) -> None:
    found = bench(case_of(seen(**more)))
    assert found.answer is Answer.UNKNOWN
    assert said in found.why


def test_what_a_fault_does_to_engines_is_not_the_bench_s() -> None:
    late = histories.attempt(1, "e0", 12.0, closed_s=19.0)
    assert bench(case_of(seen(attempts=[late]))).answer is Answer.YES


@pytest.mark.parametrize(
    ("process", "said"),
    [("control-plane", Answer.NO), ("proxy-p0", Answer.NO), ("agent-e1", Answer.NO), ("wiretap", Answer.UNKNOWN)],
)
def test_who_ended_by_itself_is_named(process: str, said: Answer) -> None:
    found = processes(case_of(seen(gone=[Gone(at_s=13.0, process=process, status=-11)])))
    assert found.answer is said
    assert f"{process} ended by itself at 13.0 s (signal 11)" in found.why
    assert processes(case_of(seen())).answer is Answer.YES


def test_an_abort_is_a_no_where_the_scenario_has_a_condition_for_it() -> None:
    spec = {**FAULTS, "abort": {"goodputBelowPercent": 20}}
    aborted = Aborted(at_s=14.0, why="3 % of the last 5 s were good")
    found = ran_to_the_end(case_of(seen(spec=spec, aborted=aborted)))
    assert found is not None
    assert (found.answer, found.at_s) == (Answer.NO, 14.0)
    interrupted = ran_to_the_end(case_of(seen(aborted=aborted)))
    assert interrupted is not None
    assert interrupted.answer is Answer.UNKNOWN
    assert ran_to_the_end(case_of(seen())) is None


def test_more_than_the_blast_radius_at_once_is_a_no_and_one_after_the_other_is_not() -> None:
    spec = {**FAULTS, "blastRadius": {"enginesPercent": 25, "controlPlane": False}}
    both = (histories.outage("e0"), histories.outage("e1", start_s=15.0, name="second"))
    found = blast_radius(case_of(seen(*both, spec=spec)))
    assert found.answer is Answer.NO
    assert "at 15.0 s 2 of 4 engines were hit at once, 50.0 % where 25.0 % are allowed" in found.why
    in_turn = (histories.outage("e0"), histories.outage("e1", start_s=19.9, end_s=25.0, name="second"))
    assert blast_radius(case_of(seen(*in_turn, spec=spec))).answer is Answer.YES
    dead = histories.outage("control-plane", fault={"kind": "control_plane_killed"})
    assert "control plane was hit at 10.0 s" in blast_radius(case_of(seen(dead, spec=spec))).why
