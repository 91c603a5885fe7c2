"""The harness of the short benchmarks: options, child processes, trials, tables, the JSON file, the exit code."""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from rich.console import Console, RenderableType
from rich.table import Table

RESULTS: Final = Path("benchmarks/results")
_CHILD_LIMIT_S: Final = 600.0

Row = TypeVar("Row")


def option_parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """The options of benchmark ``name``; the caller adds its own. ``doc`` is the docstring of its module."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}", description=(doc or "").partition("\n")[0]
    )
    parser.add_argument(
        "--json", type=Path, default=RESULTS / f"{name}.json", metavar="PATH", help="where the results go"
    )
    return parser


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultColumn(Generic[Row]):
    """One column of a table: its heading, and the text of a row in it."""

    heading: str
    cell: Callable[[Row], str]
    left: bool = False


def result_table(
    title: str, columns: Sequence[ResultColumn[Row]], rows: Iterable[Row], *, caption: str | None = None
) -> Table:
    """Rows of results as a table."""
    table = Table(title=title, caption=caption)
    for column in columns:
        table.add_column(column.heading, justify="left" if column.left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(column.cell(row) for column in columns))
    return table


def publish(shown: Sequence[RenderableType], path: Path, answer: Mapping[str, Any], *, met: bool = True) -> int:
    """Print, write the answer as JSON, and return the exit code: 1 when a target was missed."""
    console = Console(width=130)
    for one in shown:
        console.print(one)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(answer, indent=2) + "\n")
    return 0 if met else 1


def measured_in_child(module: str, *arguments: str) -> dict[str, Any]:
    """What ``python -m MODULE --measure ...`` prints as JSON on its last line; log lines may come before."""
    command = [sys.executable, "-m", module, "--measure", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=_CHILD_LIMIT_S)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One repetition of an experiment: what was done (``labels``) and what was measured (``values``)."""

    labels: Mapping[str, str]
    values: Mapping[str, float]

    def record(self) -> dict[str, Any]:
        """The trial in the JSON file."""
        return {**self.labels, **self.values}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialGroup:
    """All trials of the same labels."""

    labels: Mapping[str, str]
    trials: Sequence[Trial]

    def values(self, name: str) -> list[float]:
        """One measured value of every trial."""
        return [one.values[name] for one in self.trials]

    def percentile(self, name: str, percent: float) -> float:
        """The smallest value that ``percent`` of the trials do not exceed."""
        return percentile(self.values(name), percent)


def trial_groups(trials: Iterable[Trial]) -> list[TrialGroup]:
    """The trials by their labels, in order of appearance."""
    found: dict[tuple[tuple[str, str], ...], list[Trial]] = {}
    for trial in trials:
        found.setdefault(tuple(trial.labels.items()), []).append(trial)
    return [TrialGroup(labels=dict(labels), trials=some) for labels, some in found.items()]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that ``percent`` of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]
