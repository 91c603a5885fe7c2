"""``switchgear-chaos lab``: a lab that runs until it is stopped, with a page, for `inject` and test harnesses."""

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import click

from chaos import lab_page
from chaos.cli.error_output import print_errors
from chaos.cli.experiment_series import NOT_RUN
from chaos.cli.interruption import run_until_signal
from chaos.cli.rehearsal_options import OPTIONAL_SUBJECT, POOL
from chaos.cli.resource_names import complete_scenarios
from chaos.lab.control_port import control_port, lab_description
from chaos.lab.history_recorder import record_history
from chaos.lab.lab_load import send_until_stopped
from chaos.lab.lab_session import Lab
from chaos.lab_page.lab_page import LabPage
from chaos.scenario.experiment_plan import Experiment
from chaos.scenario.scenario_library import chosen_scenarios
from chaos.testbed.subjects import Subject, combined_subjects
from policies.findings import PolicyErrors

_OWN_POLICIES = Path(lab_page.__file__).with_name("policies.yaml")
_OWN_SCENARIO = Path(lab_page.__file__).with_name("scenario.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class _LabOptions:
    load: bool
    port: int
    out: Path | None
    work_dir: Path | None


@click.command(name="lab")
@OPTIONAL_SUBJECT
@click.option(
    "--scenario",
    shell_complete=complete_scenarios,
    help="Take topology and load from this scenario; its faults are ignored. "
    "[default: three engines, 6 requests/s]",
)
@POOL
@click.option(
    "--load/--no-load",
    default=None,
    help="Send the scenario's requests; the page can change the rate. [default: load, with -f no-load]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Port of the page and of `inject`, on loopback; 0 for any free port.",
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
    scenario: str | None,
    pool: str | None,
    load: bool | None,
    port: int,
    out: Path | None,
    work_dir: Path | None,
) -> int:
    """Start engines, agents, an Envoy and a control plane, with a page to break and heal them, until Ctrl-C.

    The page shows engines and answers, has buttons for faults and the rate, and guides through an incident.
    Engines are simulated and need no GPU; Envoy, agents, control plane and requests are real.

    Unless stdout is a terminal, its first line is JSON: the address of the page (`lab`, also for `switchgear-chaos
    inject --lab`), the Envoys to send requests to, the engines, and the shape of a request (path, model, headers).
    Everything is healed and stopped at the end.
    """
    try:
        (subject, *more) = combined_subjects(filename or (str(_OWN_POLICIES),), pool)
        (read, *_) = chosen_scenarios([scenario or str(_OWN_SCENARIO)])
    except PolicyErrors as errors:
        return print_errors(errors)
    if more:
        raise click.UsageError(f"-f holds {1 + len(more)} policy sets; name the file of one")
    if not filename:
        subject = replace(subject, name="the lab's own")
    options = _LabOptions(
        load=not filename if load is None else load,
        port=port,
        out=out,
        work_dir=work_dir,
    )
    try:
        asyncio.run(run_until_signal(_run_lab(read.experiment(), subject, options)))
    except NOT_RUN as problem:
        raise click.ClickException(str(problem)) from problem
    except asyncio.CancelledError:
        return 0  # stopped as intended
    return 0


async def _run_lab(experiment: Experiment, subject: Subject, options: _LabOptions) -> None:
    async with AsyncExitStack() as stack:
        click.echo("starting engines, agents, Envoys and the control plane ...", err=True)
        lab = await stack.enter_async_context(Lab.open(experiment, subject, options.work_dir, by_hand=True))
        page = LabPage(lab, load=options.load)
        if options.out is None:
            await stack.enter_async_context(send_until_stopped(lab, page.on_request))
        else:
            recording = await stack.enter_async_context(record_history(lab, options.out))
            await stack.enter_async_context(recording.sending(page.on_request))
        await stack.enter_async_context(page.watching())
        address = await stack.enter_async_context(control_port(lab, options.port, extend=page.routes))
        if sys.stdout.isatty():
            click.echo(f"Open {address}/ in a browser. Ctrl-C ends the lab.")
        else:
            click.echo(json.dumps({"lab": address, **lab_description(lab)}))
        await _until_cancelled()


async def _until_cancelled() -> None:
    """Return at the first signal, so that the history is written completely; a second one interrupts that."""
    task = asyncio.current_task()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if task is not None:
            task.uncancel()
