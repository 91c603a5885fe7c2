"""Scenarios played and judged for a command: what it exits with, whatever comes in between."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import click

from chaos.cli.complaining import refused
from chaos.cli.destinations import prepare
from chaos.cli.outputs import Outputs, told
from chaos.cli.series import InterruptedRunError, Task, done
from chaos.fitting.fit import FittingError
from chaos.fitting.shaping import ShapeError
from policies.findings import PolicyErrors


def rehearsed(
    tasks: Callable[[], Sequence[Task]],
    folder: Path | None,
    outputs: Outputs,
    beside: Callable[[], Collection[str]] = tuple,
) -> int:
    """The exit code after all tasks; what cannot be read or does not fit is said before anything is run.

    Verdicts on the subjects ``beside`` are shown and do not count.
    """
    try:
        some, uncounted = tasks(), beside()
        prepare(folder, outputs)
        verdicts = done(some, outputs.console)
    except PolicyErrors as errors:
        return refused(errors)
    except (FittingError, ShapeError) as problem:
        raise click.ClickException(str(problem)) from problem
    except InterruptedRunError as interrupted:
        return interrupted.exit_code
    return told(verdicts, outputs, uncounted)
