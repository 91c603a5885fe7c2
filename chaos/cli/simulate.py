"""``switchgear-chaos simulate``: scenarios in simulated time, in seconds and without processes."""

from pathlib import Path

import click
from rich.text import Text

from chaos.checks.verdict import verdict
from chaos.cli.complaining import refused
from chaos.cli.destinations import prepare
from chaos.cli.options import Rehearsal, rehearsal_options
from chaos.cli.outputs import Outputs, told
from chaos.fitting.fit import FittingError
from chaos.fitting.shaping import ShapeError
from chaos.history.events import Event
from chaos.history.lines import HistoryError
from chaos.history.writing import HistoryFile
from chaos.simulator.pulling import NotSimulatedError
from chaos.simulator.simulate import Simulation
from policies.findings import PolicyErrors


@click.command(name="simulate")
@rehearsal_options
def command(*, rehearsal: Rehearsal, outputs: Outputs) -> int:
    """Play each SCENARIO in simulated time, with the control plane's own decisions, and judge what came of it.

    Arguments and report are those of `run`; the fleet may be one that no laptop holds. A scenario with a fault
    that the simulator cannot express is refused. How far to believe it: docs/simulator.md.

    Exits 0 when --policies kept every promise, 1 when they broke one, 2 when asked wrongly, 3 when that is not
    known; those --against do not count.
    """
    verdicts = []
    try:
        some, beside = rehearsal.tasks(), rehearsal.beside
        simulations = [(one, Simulation(one.experiment, one.subject)) for one in some]
        prepare(rehearsal.out, outputs)
        for task, simulation in simulations:
            with outputs.console.status(f"{task.name} | {task.subject.name}"):
                events = simulation.events()
                if task.history_path is not None:
                    _write(task.history_path, events)
                verdicts.append(verdict(simulation.history()))
            outputs.console.print(Text(f"{task.name} | {task.subject.name}: {verdicts[-1].answer.value}"))
    except PolicyErrors as errors:
        return refused(errors)
    except (FittingError, HistoryError, NotSimulatedError, ShapeError) as problem:
        raise click.ClickException(str(problem)) from problem
    return told(verdicts, outputs, beside)


def _write(path: Path, events: tuple[Event, ...]) -> None:
    with HistoryFile(path) as file:
        for event in events:
            file.write(event)
