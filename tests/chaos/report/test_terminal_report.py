"""Terminal report: verdicts, promises, measures and timelines, subjects side by side."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from chaos.checks.check_finding import CheckResult
from chaos.checks.experiment_verdict import ExperimentVerdict, verdict
from chaos.report.report_rows import measure_rows, objections, promise_rows, timeline_rows
from chaos.report.terminal_report import overview, print_report, terminal_report
from tests.chaos.simulated_history import Play, played

GOOD = Play(
    seconds=16.0,
    start_s=5.0,
    end_s=10.0,
    hypothesis={"goodputPercent": 80, "leftAloneWithin": "1s"},
    bad=("e0", "e1"),
)
BAD = replace(GOOD, subject="policies/bad", left_after_s=None, retries=5, try_timeout_s=0.4)


def both() -> list[ExperimentVerdict]:
    return [verdict(played(GOOD)), verdict(played(BAD))]


def shown(verdicts: list[ExperimentVerdict], width: int = 200) -> str:
    text = io.StringIO()
    print_report(verdicts, Console(file=text, width=width))
    return text.getvalue()


def test_each_row_has_a_cell_per_subject() -> None:
    some = both()
    rows = [*promise_rows(some), *measure_rows(some), *(row for _, found in timeline_rows(some) for row in found)]
    assert {len(row.cells) for row in rows} == {2}
    (left_alone,) = [row for row in rows if row.title == "leftAloneWithin (<= 1.00 s)"]
    assert left_alone.answers == (CheckResult.YES, CheckResult.NO)
    assert left_alone.cells[0] == "held: 0 requests late"


def test_timeline_counts_from_break_and_healing() -> None:
    ((title, rows),) = timeline_rows(both())
    assert title == "fault-0: hang of e0 and e1"
    cells = {row.title: row.cells for row in rows}
    assert cells["broke"] == ("at 5.0 s", "at 5.0 s")
    assert cells["decided"] == ("+800 ms", "-")
    assert cells["ACKed by all"] == ("+812 ms", "-")
    assert cells["readmitted"] == ("+500 ms", "-")
    assert cells["last request"][1] == "-"


def test_broken_promises_come_before_unknown_ones() -> None:
    answers = [one.answer for one in objections(both()[1])]
    assert answers == sorted(answers, key=[CheckResult.NO, CheckResult.UNKNOWN].index)
    assert CheckResult.YES not in answers


def test_report_names_failures_and_escapes_markup() -> None:
    some = both()
    text = shown([some[0], replace(some[1], findings=(*some[1].findings[:-1],))])
    assert "PASSED" in text
    assert "FAILED" in text
    assert "policies/bad: goodputPercent BROKEN at 5.0 s" in text
    assert "faults: hang of e0 and e1 (5.0 s to 10.0 s)" in text
    odd = ExperimentVerdict(
        history=replace(some[0].history, began=replace(some[0].history.began, subject="[red]x")),
        findings=some[0].findings,
        answer=some[0].answer,
    )
    assert "[red]x" in shown([odd])
    assert "[red]x" in "\n".join(line.plain for line in overview([odd], None))


@pytest.mark.parametrize("width", [40, 80])
def test_report_fits_a_narrow_terminal(width: int) -> None:
    lines = [line.plain for line in terminal_report(both(), width)]
    tables = [line for line in lines if "  " in line.strip()]
    assert len(tables) > 20
    assert all(len(line) <= width for line in tables)


def test_report_keeps_rows_whole_on_a_pipe() -> None:
    lines = shown(both(), width=40).splitlines()
    (header,) = [line for line in lines if line.startswith("SCENARIO")]
    assert header.split() == ["SCENARIO", "VERDICT", "SUBJECT", "BROKEN", "UNKNOWN"]
    assert not [line for line in lines if "…" in line]
