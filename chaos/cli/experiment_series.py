"""Run experiments one after another, each scenario with each subject, and report progress."""

import asyncio
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.text import Text

from chaos.checks.check_finding import CheckResult
from chaos.checks.experiment_verdict import ExperimentVerdict, verdict
from chaos.cli.error_output import print_errors
from chaos.cli.interruption import run_until_signal
from chaos.cli.verdict_outputs import VerdictOutputs, prepare_outputs, write_verdicts
from chaos.faults.actions import SetGpuState, ShapeLink
from chaos.gpu_double.nvml_double import CompilerError, needed_compiler
from chaos.history.event_codec import HistoryError
from chaos.history.recorded_history import History
from chaos.lab.engine_processes import EngineStartError
from chaos.lab.envoy_processes import NotReadyError
from chaos.lab.experiment import run_experiment
from chaos.lab.lab_handles import InjectionError
from chaos.lab.lab_requirements import outage_actions
from chaos.netem.packet_filter import unavailable_reason
from chaos.processes import ProcessError
from chaos.report.report_rows import objections
from chaos.scenario.experiment_plan import Experiment
from chaos.scenario.scenario_reader import LoadedScenario
from chaos.testbed.blueprint import shared_experiment
from chaos.testbed.policy_fit import PolicyFitError
from chaos.testbed.request_shape import RequestShapeError
from chaos.testbed.subjects import PolicySubject, Subject
from command_line.interrupts import INTERRUPTED
from policies.findings import PolicyErrors

NOT_RUN: Final = (
    CompilerError,
    EngineStartError,
    PolicyFitError,
    HistoryError,
    InjectionError,
    NotReadyError,
    ProcessError,
    RequestShapeError,
)
"""Errors that prevent an experiment; the message names the fix."""

_STYLE: Final = {CheckResult.YES: "green", CheckResult.NO: "bold red", CheckResult.UNKNOWN: "yellow"}
_WORD: Final = {CheckResult.YES: "passed", CheckResult.NO: "FAILED", CheckResult.UNKNOWN: "unknown"}


class InterruptedRunError(Exception):
    """Ctrl-C or SIGTERM; faults are healed and processes stopped."""

    exit_code: Final = INTERRUPTED


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentTask:
    """One experiment, and the file for its history."""

    name: str
    experiment: Experiment
    subject: Subject
    history_path: Path | None


def experiment_tasks(
    scenarios: Sequence[LoadedScenario], subjects: Sequence[Subject], *, seed: int | None, folder: Path | None
) -> tuple[ExperimentTask, ...]:
    """Pair every scenario with every subject; subjects of a scenario share engines and arrivals.

    Raises PolicyFitError or RequestShapeError for policies that cannot be rehearsed.
    """
    found = []
    for place, scenario in enumerate(scenarios):
        experiment = scenario.experiment(seed)
        if len(subjects) > 1:
            experiment = shared_experiment(experiment, subjects)
        for number, subject in enumerate(subjects):
            file = f"{place:02}-{number}-{scenario.name}-{_file_part(subject.name)}.jsonl"
            found.append(
                ExperimentTask(
                    name=scenario.name,
                    experiment=experiment,
                    subject=subject,
                    history_path=None if folder is None else folder / file,
                )
            )
    return tuple(found)


def run_rehearsal(
    tasks: Callable[[], Sequence[ExperimentTask]],
    folder: Path | None,
    outputs: VerdictOutputs,
    baselines: Callable[[], Collection[str]] = tuple,
) -> int:
    """Run all tasks and return the exit code; report invalid input before anything runs.

    Verdicts on ``baselines`` are shown and do not count.
    """
    try:
        experiments, uncounted = tasks(), baselines()
        prepare_outputs(folder, outputs)
        verdicts = run_tasks(experiments, outputs.console)
    except PolicyErrors as errors:
        return print_errors(errors)
    except (PolicyFitError, RequestShapeError) as problem:
        raise click.ClickException(str(problem)) from problem
    except InterruptedRunError as interrupted:
        return interrupted.exit_code
    return write_verdicts(verdicts, outputs, uncounted)


def run_tasks(tasks: Sequence[ExperimentTask], console: Console) -> tuple[ExperimentVerdict, ...]:
    """Run the tasks in order, with a line on each; ClickException if one cannot run."""
    _refuse_impossible(tasks)
    found = []
    for number, task in enumerate(tasks, start=1):
        seconds = task.experiment.seconds
        title = f"[{number}/{len(tasks)}] {task.name} | {task.subject.name} ({seconds:g} s)"
        with console.status(title):
            history = _history(task)
        judged = verdict(history)
        console.print(Text.assemble(f"{title} ", (_WORD[judged.answer], _STYLE[judged.answer])))
        for line in _first_reasons(judged):
            console.print(Text(f"      {line}"))
        found.append(judged)
    return tuple(found)


def _refuse_impossible(tasks: Sequence[ExperimentTask]) -> None:
    """Raise ClickException for experiments that this machine cannot run, before minutes go into the others."""
    reasons = {task.name: why for task in tasks if (why := _obstacle(task))}
    if reasons:
        raise click.ClickException("; ".join(f"{name}: {why}" for name, why in reasons.items()))


def _obstacle(task: ExperimentTask) -> str:
    """What this machine lacks for the experiment; empty if nothing."""
    has_control_plane = isinstance(task.subject, PolicySubject)
    actions = [action for outage in task.experiment.outages for action in outage_actions(outage)]
    if any(isinstance(one, ShapeLink) and (one.black_hole or one.loss_percent) for one in actions) and (
        why := unavailable_reason()
    ):
        return why
    gpu_faults = any(isinstance(one, SetGpuState) for one in actions)
    if has_control_plane and task.experiment.spec.topology.agents and gpu_faults:
        try:
            needed_compiler()
        except CompilerError as problem:
            return str(problem)
    return ""


async def _run_with_retry(task: ExperimentTask) -> History:
    """Run the experiment; once more if the lab did not start, because a suite is too long to lose."""
    try:
        return await run_experiment(task.experiment, task.subject, task.history_path)
    except (NotReadyError, ProcessError):
        return await run_experiment(task.experiment, task.subject, task.history_path)


def _history(task: ExperimentTask) -> History:
    try:
        return asyncio.run(run_until_signal(_run_with_retry(task)))
    except asyncio.CancelledError:
        raise InterruptedRunError from None
    except NOT_RUN as problem:
        raise click.ClickException(f"{task.name} with {task.subject.name}: {problem}") from problem


def _first_reasons(one: ExperimentVerdict) -> Iterator[str]:
    for finding in itertools.islice(objections(one), 3):
        yield f"{finding.check}: {finding.why.partition('; ')[0]}"


def _file_part(name: str) -> str:
    """A name valid on any file system."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[-80:] or "subject"
