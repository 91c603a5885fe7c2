"""``switchgear-chaos lab``: a lab that stays until it is told to end, for `inject` and people's own harnesses."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import click

from chaos.cli.complaining import refused
from chaos.cli.options import POOL, SUBJECT
from chaos.cli.series import NOT_RUN
from chaos.cli.signals import ended_by_signals
from chaos.fitting.subjects import Subject, subjects
from chaos.lab.control import controlled, described_lab
from chaos.lab.lab import Lab
from chaos.lab.recording import recorded
from chaos.scenario.library import chosen
from chaos.scenario.plan import Experiment
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
        (read, *_) = chosen([scenario])
    except PolicyErrors as errors:
        return refused(errors)
    if more:
        raise click.ClickException(f"{policies} holds {1 + len(more)} policy sets; name the file of one")
    holding = _held(read.experiment(), subject, load=load, port=port, history=history, folder=folder)
    try:
        asyncio.run(ended_by_signals(holding))
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
        recording = await stack.enter_async_context(recorded(lab, history))
        if load:
            await stack.enter_async_context(recording.asking())
        address = await stack.enter_async_context(controlled(lab, port))
        click.echo(json.dumps({"lab": address, **described_lab(lab, {})}))
        await _until_told_to_end()


async def _until_told_to_end() -> None:
    """Return at the first signal, so that what was seen is kept whole; a second one cuts that short."""
    task = asyncio.current_task()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if task is not None:
            task.uncancel()
