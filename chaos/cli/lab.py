"""``switchgear-chaos lab``: a lab that runs until it is stopped, for `inject` and external test harnesses."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import click

from chaos.cli.error_output import print_errors
from chaos.cli.experiment_series import NOT_RUN
from chaos.cli.interruption import run_until_signal
from chaos.cli.rehearsal_options import POOL, SUBJECT
from chaos.cli.resource_names import complete_scenarios
from chaos.lab.control_port import control_port, lab_description
from chaos.lab.history_recorder import record_history
from chaos.lab.lab_session import Lab
from chaos.scenario.experiment_plan import Experiment
from chaos.scenario.scenario_library import chosen_scenarios
from chaos.testbed.subjects import Subject, combined_subjects
from policies.findings import PolicyErrors


@click.command(name="lab")
@SUBJECT
@click.option(
    "--scenario",
    default="quick",
    show_default=True,
    shell_complete=complete_scenarios,
    help="Take topology and load from this scenario; its faults are ignored.",
)
@POOL
@click.option("--load/--no-load", default=False, help="Send the scenario's requests. [default: no-load]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Control port; 0 for any free port.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the history to this file.",
)
@click.option(
    "--work-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep configurations and logs in this folder.",
)
def command(
    *,
    filename: tuple[str, ...],
    scenario: str,
    pool: str | None,
    load: bool,
    port: int,
    out: Path | None,
    work_dir: Path | None,
) -> int:
    """Start engines, agents, Envoys and a control plane, and keep them running until Ctrl-C.

    The first line on stdout is JSON: the control port (`lab`, for `switchgear-chaos inject --lab`), the Envoys to
    send requests to, the engines, and the shape of a request (path, model, headers). Everything is healed and
    stopped at the end.
    """
    try:
        (subject, *more) = combined_subjects(filename, pool)
        (read, *_) = chosen_scenarios([scenario])
    except PolicyErrors as errors:
        return print_errors(errors)
    if more:
        raise click.UsageError(f"-f holds {1 + len(more)} policy sets; name the file of one")
    lab = _run_lab(read.experiment(), subject, load=load, port=port, history=out, folder=work_dir)
    try:
        asyncio.run(run_until_signal(lab))
    except NOT_RUN as problem:
        raise click.ClickException(str(problem)) from problem
    except asyncio.CancelledError:
        return 0  # stopped as intended
    return 0


async def _run_lab(
    experiment: Experiment, subject: Subject, *, load: bool, port: int, history: Path | None, folder: Path | None
) -> None:
    async with AsyncExitStack() as stack:
        lab = await stack.enter_async_context(Lab.open(experiment, subject, folder, by_hand=True))
        recording = await stack.enter_async_context(record_history(lab, history))
        if load:
            await stack.enter_async_context(recording.sending())
        address = await stack.enter_async_context(control_port(lab, port))
        click.echo(json.dumps({"lab": address, **lab_description(lab, {})}))
        await _until_cancelled()


async def _until_cancelled() -> None:
    """Return at the first signal, so that the history is written completely; a second one interrupts that."""
    task = asyncio.current_task()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if task is not None:
            task.uncancel()
