"""Experiments one after another, told as they go: each scenario with each subject, and what each came to."""

import asyncio
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.text import Text

from chaos.checks.finding import Answer
from chaos.checks.verdict import Verdict, verdict
from chaos.cli.signals import ended_by_signals
from chaos.faults.pulls import Gpu, Wire
from chaos.fitting.blueprint import common_experiment
from chaos.fitting.fit import FittingError
from chaos.fitting.shaping import ShapeError
from chaos.fitting.subjects import PolicySubject, Subject
from chaos.gpu_double.double import CompilerError, needed_compiler
from chaos.history.history import History
from chaos.history.lines import HistoryError
from chaos.lab.engines import EngineError
from chaos.lab.experiment import run
from chaos.lab.needs import pulls_of
from chaos.lab.proxies import NotReadyError
from chaos.lab.site import LeverError
from chaos.processes import ProcessError
from chaos.report.rows import objections
from chaos.scenario.plan import Experiment
from chaos.scenario.reading import ScenarioRead
from chaos.wire.packet_filter import why_not
from xds_server.cli.answering import INTERRUPTED

NOT_RUN: Final = (
    CompilerError,
    EngineError,
    FittingError,
    HistoryError,
    LeverError,
    NotReadyError,
    ProcessError,
    ShapeError,
)
"""Why an experiment cannot be done, or not here; the message says what to change."""

_STYLE: Final = {Answer.YES: "green", Answer.NO: "bold red", Answer.UNKNOWN: "yellow"}
_WORD: Final = {Answer.YES: "passed", Answer.NO: "FAILED", Answer.UNKNOWN: "not known"}


class InterruptedRunError(Exception):
    """Ctrl-C or SIGTERM; everything is healed and gone."""

    exit_code: Final = INTERRUPTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One experiment to do, and the file that keeps its history."""

    name: str
    experiment: Experiment
    subject: Subject
    history_path: Path | None


def tasks(
    scenarios: Sequence[ScenarioRead], subjects: Sequence[Subject], *, seed: int | None, folder: Path | None
) -> tuple[Task, ...]:
    """Every scenario with every subject; subjects of one scenario meet the same engines and the same arrivals.

    Raises FittingError or ShapeError for policies that cannot be rehearsed.
    """
    found = []
    for place, scenario in enumerate(scenarios):
        experiment = scenario.experiment(seed)
        if len(subjects) > 1:
            experiment = common_experiment(experiment, subjects)
        for number, subject in enumerate(subjects):
            file = f"{place:02}-{number}-{scenario.name}-{_file_part(subject.name)}.jsonl"
            found.append(
                Task(
                    name=scenario.name,
                    experiment=experiment,
                    subject=subject,
                    history_path=None if folder is None else folder / file,
                )
            )
    return tuple(found)


def done(some: Sequence[Task], console: Console) -> tuple[Verdict, ...]:
    """Do them in order, with a line on each; raises ClickException when one cannot be done."""
    _refuse_what_cannot_be(some)
    found = []
    for number, task in enumerate(some, start=1):
        seconds = task.experiment.seconds
        said = f"[{number}/{len(some)}] {task.name} | {task.subject.name} ({seconds:g} s)"
        with console.status(said):
            history = _history(task)
        judged = verdict(history)
        console.print(Text.assemble(f"{said} ", (_WORD[judged.answer], _STYLE[judged.answer])))
        for line in _first_reasons(judged):
            console.print(Text(f"      {line}"))
        found.append(judged)
    return tuple(found)


def _refuse_what_cannot_be(some: Sequence[Task]) -> None:
    """Before minutes have gone into the experiments that can be done on this machine."""
    reasons = {task.name: why for task in some if (why := _obstacle(task))}
    if reasons:
        raise click.ClickException("; ".join(f"{name}: {why}" for name, why in reasons.items()))


def _obstacle(task: Task) -> str:
    """What this machine lacks for the experiment; empty where it has everything."""
    steered = isinstance(task.subject, PolicySubject)
    pulls = [pull for outage in task.experiment.outages for pull in pulls_of(outage)]
    if any(isinstance(one, Wire) and (one.black_hole or one.loss_percent) for one in pulls) and (why := why_not()):
        return why
    if steered and task.experiment.spec.topology.agents and any(isinstance(one, Gpu) for one in pulls):
        try:
            needed_compiler()
        except CompilerError as problem:
            return str(problem)
    return ""


async def _tried_again(task: Task) -> History:
    """The experiment, begun once more where something of the lab did not start: a suite is too long to lose it."""
    try:
        return await run(task.experiment, task.subject, task.history_path)
    except (NotReadyError, ProcessError):
        return await run(task.experiment, task.subject, task.history_path)


def _history(task: Task) -> History:
    try:
        return asyncio.run(ended_by_signals(_tried_again(task)))
    except asyncio.CancelledError:
        raise InterruptedRunError from None
    except NOT_RUN as problem:
        raise click.ClickException(f"{task.name} with {task.subject.name}: {problem}") from problem


def _first_reasons(one: Verdict) -> Iterator[str]:
    for finding in itertools.islice(objections(one), 3):
        yield f"{finding.check}: {finding.why.partition('; ')[0]}"


def _file_part(name: str) -> str:
    """A name that any file system takes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[-80:] or "subject"
