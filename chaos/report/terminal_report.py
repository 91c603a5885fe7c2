"""Verdict report for a terminal: promises, measures, timelines, reasons, overview."""

import os
from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from chaos.checks import text_format
from chaos.checks.check_finding import CheckResult
from chaos.checks.experiment_verdict import ExperimentVerdict
from chaos.report.report_rows import (
    RESULT_LABELS,
    VERDICTS,
    ReportRow,
    by_scenario,
    measure_rows,
    objections,
    promise_rows,
    timeline_rows,
)
from command_line.table import Cell, Role, StyledText, TableColumn, table_lines

_STYLE: Final = {CheckResult.YES: "green", CheckResult.NO: "bold red", CheckResult.UNKNOWN: "yellow"}


def terminal_report(verdicts: Sequence[ExperimentVerdict], width: int | None = None) -> list[Text]:
    """Lines of the report: all scenarios in order; the overview comes last, where a terminal shows it.

    Tables are at most ``width`` columns wide; None: rows are whole.
    """
    lines: list[Text] = []
    for name, some in by_scenario(verdicts).items():
        lines += [Text(), Text(name, style="bold"), _outages(some), *scenario(some, width)]
    return [*lines, Text(), *overview(verdicts, width)]


def scenario(side_by_side: Sequence[ExperimentVerdict], width: int | None) -> Iterable[Text]:
    """One scenario: promises, measures and timelines with a column per subject, then the reasons."""
    subjects = [one.subject for one in side_by_side]
    yield from _table("promise", subjects, promise_rows(side_by_side), width)
    yield from _table("measure", subjects, measure_rows(side_by_side), width)
    for title, rows in timeline_rows(side_by_side):
        yield from (Text(), Text(title))
        yield from _table("step", subjects, rows, width)
    for one in side_by_side:
        yield from reasons(one)


def reasons(verdict: ExperimentVerdict) -> Iterable[Text]:
    """Reasons for a verdict other than passed."""
    for finding in objections(verdict):
        when = "" if finding.at_s is None else f" at {text_format.moment(finding.at_s)}"
        yield Text()
        yield Text.assemble(
            f"{verdict.subject}: ",
            (f"{finding.check} {RESULT_LABELS[finding.answer]}{when}", _STYLE[finding.answer]),
        )
        yield Text(f"  {finding.why}")


def overview(verdicts: Sequence[ExperimentVerdict], width: int | None) -> Iterable[Text]:
    """One row per experiment."""
    columns = (
        TableColumn(title="scenario", role=Role.IDENTITY),
        TableColumn(title="verdict"),
        TableColumn(title="subject", role=Role.IDENTITY),
        TableColumn(title="broken", role=Role.FREE),
        TableColumn(title="unknown", role=Role.FREE),
    )
    rows: list[tuple[Cell, ...]] = [
        (
            one.name,
            StyledText(VERDICTS[one.answer], _STYLE[one.answer]),
            one.subject,
            *(
                ",".join(finding.check for finding in one.findings if finding.answer is answer) or "-"
                for answer in (CheckResult.NO, CheckResult.UNKNOWN)
            ),
        )
        for one in verdicts
    ]
    return _lines(columns, rows, width)


def print_report(verdicts: Sequence[ExperimentVerdict], console: Console) -> None:
    """Print the report; on a pipe every row is whole, unless ``COLUMNS`` is set."""
    width = console.width if console.is_terminal or os.environ.get("COLUMNS") else None
    for line in terminal_report(verdicts, width):
        console.print(line, soft_wrap=True)


def _outages(side_by_side: Sequence[ExperimentVerdict]) -> Text:
    longest = max(side_by_side, key=lambda one: len(one.history.outages))
    return Text(f"faults: {text_format.faults(longest.history.outages)}")


def _table(title: str, subjects: Sequence[str], rows: Sequence[ReportRow], width: int | None) -> Iterable[Text]:
    columns = (
        TableColumn(title=title, role=Role.FREE),
        *(TableColumn(title=one, role=Role.FREE, verbatim=True) for one in subjects),
    )
    cells: list[list[Cell]] = []
    for row in rows:
        answers = row.answers or (None,) * len(row.cells)
        styled = [
            StyledText(cell, "" if answer is None else _STYLE[answer])
            for cell, answer in zip(row.cells, answers, strict=True)
        ]
        cells.append([row.title, *styled])
    return (Text(), *_lines(columns, cells, width))


def _lines(columns: Sequence[TableColumn], rows: Sequence[Sequence[Cell]], width: int | None) -> list[Text]:
    return [Text.from_ansi(line) for line in table_lines(columns, rows, width=width)]
