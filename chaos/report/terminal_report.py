"""Verdict report for a terminal: promises, measures, timelines, reasons, overview."""

from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
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

_STYLE: Final = {CheckResult.YES: "green", CheckResult.NO: "bold red", CheckResult.UNKNOWN: "yellow"}


def terminal_report(verdicts: Sequence[ExperimentVerdict]) -> RenderableType:
    """All scenarios in order; the overview comes last, where a terminal shows it."""
    parts: list[RenderableType] = []
    for name, some in by_scenario(verdicts).items():
        parts += [Text(f"\n{name}", style="bold"), *_outages(some), *scenario(some)]
    return Group(*parts, Text(), overview(verdicts))


def scenario(side_by_side: Sequence[ExperimentVerdict]) -> Iterable[RenderableType]:
    """One scenario: promises, measures and timelines with a column per subject, then the reasons."""
    subjects = [one.subject for one in side_by_side]
    yield _table("promises", subjects, promise_rows(side_by_side))
    yield _table("measures", subjects, measure_rows(side_by_side))
    for title, rows in timeline_rows(side_by_side):
        yield _table(title, subjects, rows)
    for one in side_by_side:
        yield from reasons(one)


def reasons(verdict: ExperimentVerdict) -> Iterable[RenderableType]:
    """Reasons for a verdict other than passed."""
    for finding in objections(verdict):
        when = "" if finding.at_s is None else f" at {text_format.moment(finding.at_s)}"
        head = Text.assemble(
            f"{verdict.subject}: ",
            (f"{finding.check} {RESULT_LABELS[finding.answer]}{when}", _STYLE[finding.answer]),
        )
        yield head
        yield Padding(Text(finding.why), (0, 0, 0, 4))


def overview(verdicts: Sequence[ExperimentVerdict]) -> Table:
    """One row per experiment."""
    table = Table("scenario", "subject", "verdict", "broken", "unknown", title="verdicts", title_justify="left")
    for one in verdicts:
        counts = [
            ", ".join(finding.check for finding in one.findings if finding.answer is answer)
            for answer in (CheckResult.NO, CheckResult.UNKNOWN)
        ]
        table.add_row(
            Text(one.name), Text(one.subject), Text(VERDICTS[one.answer], style=_STYLE[one.answer]), *counts
        )
    return table


def print_report(verdicts: Sequence[ExperimentVerdict], console: Console) -> None:
    """Print the report."""
    console.print(terminal_report(verdicts))


def _outages(side_by_side: Sequence[ExperimentVerdict]) -> Iterable[RenderableType]:
    longest = max(side_by_side, key=lambda one: len(one.history.outages))
    yield Text(f"faults: {text_format.faults(longest.history.outages)}")


def _table(title: str, subjects: Sequence[str], rows: Sequence[ReportRow]) -> Table:
    table = Table(title=title, title_justify="left", show_lines=False)
    table.add_column("")
    for subject in subjects:
        table.add_column(Text(subject))
    for row in rows:
        answers = row.answers or (None,) * len(row.cells)
        cells = [
            Text(cell, style="" if answer is None else _STYLE[answer])
            for cell, answer in zip(row.cells, answers, strict=True)
        ]
        table.add_row(Text(row.title), *cells)
    return table
