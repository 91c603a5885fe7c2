"""``switchgear-chaos lab``: a lab that stays until it is told to end, for `inject` and people's own harnesses."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import click

from chaos.cli.error_output import print_errors
from chaos.cli.experiment_series import NOT_RUN
from chaos.cli.interruption import run_until_signal
from chaos.cli.rehearsal_options import POOL, SUBJECT
from chaos.lab.control_port import control_port, lab_description
from chaos.lab.history_recorder import record_history
from chaos.lab.lab_session import Lab
from chaos.scenario.experiment_plan import Experiment
from chaos.scenario.scenario_library import chosen_scenarios
from chaos.testbed.subjects import Subject, subjects
from policies.findings import PolicyErrors


@click.command(name="lab")
@SUBJECT
@click.option(
    "--scenario",
    default="quick",
    show_default=True,
    help="Whose topology and load it has; its faults are left out.",
)
@POOL
@click.option("--load/--no-load", default=False, help="Whether the scenario's requests are sent all the while.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Of the control port; 0 is any free one.",
)
@click.option("--history", type=click.Path(dir_okay=False, path_type=Path), help="Keep what is seen in this file.")
@click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path), help="Keep configurations and logs here."
)
def command(
    *,
    policies: str,
    scenario: str,
    pool: str | None,
    load: bool,
    port: int,
    history: Path | None,
    folder: Path | None,
) -> int:
    """Start engines, agents, Envoys and a control plane, and hold them until Ctrl-C.

    The first line on stdout is JSON: the control port (`lab`, for `switchgear-chaos inject --lab`), the Envoys to
    send requests to, the engines, and how to ask (path, model, headers). Everything is healed and gone at the end.
    """
    try:
        (subject, *more) = subjects([policies], pool)
        (read, *_) = chosen_scenarios([scenario])
    except PolicyErrors as errors:
        return print_errors(errors)
    if more:
        raise click.ClickException(f"{policies} holds {1 + len(more)} policy sets; name the file of one")
    holding = _held(read.experiment(), subject, load=load, port=port, history=history, folder=folder)
    try:
        asyncio.run(run_until_signal(holding))
    except NOT_RUN as problem:
        raise click.ClickException(str(problem)) from problem
    except asyncio.CancelledError:
        return 0  # that is how it ends
    return 0


async def _held(
    experiment: Experiment, subject: Subject, *, load: bool, port: int, history: Path | None, folder: Path | None
) -> None:
    async with AsyncExitStack() as stack:
        lab = await stack.enter_async_context(Lab.open(experiment, subject, folder, by_hand=True))
        recording = await stack.enter_async_context(record_history(lab, history))
        if load:
            await stack.enter_async_context(recording.sending())
        address = await stack.enter_async_context(control_port(lab, port))
        click.echo(json.dumps({"lab": address, **lab_description(lab, {})}))
        await _until_told_to_end()


async def _until_told_to_end() -> None:
    """Return at the first signal, so that what was seen is kept whole; a second one cuts that short."""
    task = asyncio.current_task()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if task is not None:
            task.uncancel()
