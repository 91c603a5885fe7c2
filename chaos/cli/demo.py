"""``switchgear-chaos demo``: the whole product in a minute and a half, judged at the end."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from chaos.cli.interruption import run_until_signal
from chaos.demo import demo_run, terminal_view
from chaos.demo.demo_plan import demo_plan
from chaos.lab.envoy_processes import NotReadyError
from chaos.processes import ProcessError
from command_line.interrupts import INTERRUPTED


@click.command("demo")
@click.option("--fast", is_flag=True, help="Half the length, for CI.")
@click.option("--seed", default=7, show_default=True, help="Decides the arrivals.")
@click.option(
    "--no-live", is_flag=True, help="Plain lines instead of the live view; the default without a terminal."
)
@click.option(
    "--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw the result into this SVG file."
)
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object on stdout.")
def command(*, fast: bool, seed: int, no_live: bool, picture: Path | None, as_json: bool) -> int:
    """Nine engines, three Envoys, four kinds of trouble: Switchgear beside plain Envoy.

    The engines are simulated (there is no GPU here); the Envoys, the control plane and every request are real.
    """
    console = Console(stderr=as_json)
    telling = demo_run.run_demo(demo_plan(fast=fast, seed=seed), console, live=console.is_terminal and not no_live)
    try:
        result = asyncio.run(run_until_signal(telling))
    except (NotReadyError, ProcessError) as problem:
        raise click.ClickException(str(problem)) from problem
    except asyncio.CancelledError:
        return INTERRUPTED
    console.print(terminal_view.result_table(result.scores))
    console.print(terminal_view.agent_reports_text(result.spoken))
    console.print(terminal_view.degradation_text(result.ladder))
    console.print(terminal_view.verdict_text(result.verdict))
    if picture is not None:
        picture.write_text(
            terminal_view.svg(result.scores, result.ladder, result.answers, result.verdict), encoding="utf-8"
        )
    if as_json:
        click.echo(json.dumps(asdict(result), indent=2))
    return 0 if result.verdict.passed else 1
