"""Validity of an experiment."""

from typing import Any

import pytest

from chaos.checks.check_finding import CheckResult
from chaos.checks.check_input import check_input
from chaos.checks.validity_checks import (
    bench_validity,
    blast_radius,
    history_complete,
    processes_alive,
    ran_to_the_end,
)
from chaos.history.history_events import CpuUsage, ExperimentAborted, ProcessExit
from chaos.history.recorded_history import History
from tests.chaos import history_builders

FAULTS = {"faults": [{"fault": {"kind": "hang"}, "at": "10s", "lasts": "10s"}]}


def seen(*outages: Any, spec: dict[str, Any] | None = None, **more: Any) -> History:
    return history_builders.history(
        *(outages or (history_builders.outage("e0"),)),
        began=history_builders.began(spec=spec or FAULTS),
        requests=more.pop("requests", [history_builders.request(1, 12.0)]),
        **more,
    )


def test_complete_history_has_no_gaps() -> None:
    assert history_complete(check_input(seen())).answer is CheckResult.YES


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"ended_s": None}, "truncated at 20.0 s of 30.0 s"),
        ({"unread": ("line 7: no JSON",)}, "line 7: no JSON"),
        ({"aborted": ExperimentAborted(at_s=12.0, why="goodput")}, "stopped at 12.0 s"),
        (
            {"gone": (ProcessExit(at_s=11.0, process="engine-e3", status=-9),)},
            "engine-e3 exited unexpectedly at 11.0 s",
        ),
    ],
)
def test_gaps_of_a_history_are_reported(change: dict[str, Any], expected: str) -> None:
    found = history_complete(check_input(seen(**change)))
    assert found.answer is CheckResult.UNKNOWN
    assert expected in found.why


def test_missing_unhealed_and_unknown_faults_are_gaps() -> None:
    never = history_builders.history(began=history_builders.began(spec=FAULTS))
    assert "planned faults that never started: 1" in history_complete(check_input(never)).why
    assert "never healed" in history_complete(check_input(seen(history_builders.outage("e0", end_s=None)))).why
    strange = history_builders.outage("e0", fault={"kind": "alien"})
    assert "unknown fault kind 'alien'" in history_complete(check_input(seen(strange))).why


def test_unreadable_scenario_is_a_gap() -> None:
    began = history_builders.began(spec={"newField": 1})
    found = history_complete(check_input(history_builders.history(began=began)))
    assert found.answer is CheckResult.UNKNOWN


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"requests": [history_builders.request(1, 12.0, lag_s=1.5)]}, "sent late"),
        ({"requests": []}, "no request was sent"),
        ({"used": CpuUsage(at_s=30.0, processes={}, machine=99.0, ours=9.0)}, "other programs used 90 %"),
        ({"attempts": [history_builders.attempt(1, "e0", 5.0, closed_s=6.0)]}, "engine answers sent late"),
    ],
)
def test_overloaded_load_generator_makes_every_check_inconclusive(more: dict[str, Any], expected: str) -> None:
    found = bench_validity(check_input(seen(**more)))
    assert found.answer is CheckResult.UNKNOWN
    assert expected in found.why


def test_engine_faults_do_not_invalidate_the_bench() -> None:
    late = history_builders.attempt(1, "e0", 12.0, closed_s=19.0)
    assert bench_validity(check_input(seen(attempts=[late]))).answer is CheckResult.YES


@pytest.mark.parametrize(
    ("process", "expected"),
    [
        ("control-plane", CheckResult.NO),
        ("proxy-p0", CheckResult.NO),
        ("agent-e1", CheckResult.NO),
        ("wiretap", CheckResult.UNKNOWN),
    ],
)
def test_unexpected_exit_is_reported(process: str, expected: CheckResult) -> None:
    found = processes_alive(check_input(seen(gone=[ProcessExit(at_s=13.0, process=process, status=-11)])))
    assert found.answer is expected
    assert f"{process} exited unexpectedly at 13.0 s (signal 11)" in found.why
    assert processes_alive(check_input(seen())).answer is CheckResult.YES


def test_abort_by_condition_fails_the_run() -> None:
    spec = {**FAULTS, "abort": {"goodputBelowPercent": 20}}
    aborted = ExperimentAborted(at_s=14.0, why="goodput was 3 % over the last 5 s")
    found = ran_to_the_end(check_input(seen(spec=spec, aborted=aborted)))
    assert found is not None
    assert (found.answer, found.at_s) == (CheckResult.NO, 14.0)
    interrupted = ran_to_the_end(check_input(seen(aborted=aborted)))
    assert interrupted is not None
    assert interrupted.answer is CheckResult.UNKNOWN
    assert ran_to_the_end(check_input(seen())) is None


def test_blast_radius_counts_simultaneous_targets() -> None:
    spec = {**FAULTS, "blastRadius": {"enginesPercent": 25, "controlPlane": False}}
    both = (history_builders.outage("e0"), history_builders.outage("e1", start_s=15.0, name="second"))
    found = blast_radius(check_input(seen(*both, spec=spec)))
    assert found.answer is CheckResult.NO
    assert "at 15.0 s 2 of 4 engines were hit at once: 50.0 % (limit 25.0 %)" in found.why
    in_turn = (
        history_builders.outage("e0"),
        history_builders.outage("e1", start_s=19.9, end_s=25.0, name="second"),
    )
    assert blast_radius(check_input(seen(*in_turn, spec=spec))).answer is CheckResult.YES
    dead = history_builders.outage("control-plane", fault={"kind": "control_plane_killed"})
    assert "control plane was hit at 10.0 s" in blast_radius(check_input(seen(dead, spec=spec))).why
