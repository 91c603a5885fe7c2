"""``switchgear-chaos simulate``: run scenarios in simulated time, in seconds and without processes."""

from pathlib import Path

import click
from rich.text import Text

from chaos.checks.experiment_verdict import verdict
from chaos.cli.error_output import print_errors
from chaos.cli.rehearsal_options import RehearsalOptions, rehearsal_options
from chaos.cli.verdict_outputs import VerdictOutputs, prepare_outputs, write_verdicts
from chaos.history.event_codec import HistoryError
from chaos.history.history_events import HistoryEvent
from chaos.history.history_writer import HistoryFile
from chaos.simulator.simulated_injector import NotSimulatedError
from chaos.simulator.simulation import Simulation
from chaos.testbed.policy_fit import PolicyFitError
from chaos.testbed.request_shape import RequestShapeError
from policies.findings import PolicyErrors


@click.command(name="simulate")
@rehearsal_options
def command(*, rehearsal: RehearsalOptions, outputs: VerdictOutputs) -> int:
    """Run each SCENARIO in simulated time, with the control plane's own decisions, and print the verdict.

    Takes the arguments of `run`, and fleets of any size. Refuses a scenario with a fault that cannot be simulated.
    docs/simulator.md states the accuracy.

    Exit code: 0 every promise held, 1 one was broken, 2 usage error or cannot run, 3 unknown. Subjects of
    --against do not count.
    """
    verdicts = []
    try:
        tasks, baselines = rehearsal.experiment_tasks(), rehearsal.baseline_names
        simulations = [(one, Simulation(one.experiment, one.subject)) for one in tasks]
        prepare_outputs(rehearsal.out, outputs)
        for task, simulation in simulations:
            with outputs.console.status(f"{task.name} | {task.subject.name}"):
                events = simulation.events()
                if task.history_path is not None:
                    _write(task.history_path, events)
                verdicts.append(verdict(simulation.history()))
            outputs.console.print(Text(f"{task.name} | {task.subject.name}: {verdicts[-1].answer.value}"))
    except PolicyErrors as errors:
        return print_errors(errors)
    except (PolicyFitError, HistoryError, NotSimulatedError, RequestShapeError) as problem:
        raise click.ClickException(str(problem)) from problem
    return write_verdicts(verdicts, outputs, baselines)


def _write(path: Path, events: tuple[HistoryEvent, ...]) -> None:
    with HistoryFile(path) as file:
        for event in events:
            file.write(event)
