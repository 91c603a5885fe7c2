"""``switchgear-chaos demo``: the whole product in a minute and a half, judged at the end."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from chaos.cli.signals import ended_by_signals
from chaos.demo import screen, story
from chaos.demo.plan import plan
from chaos.lab.proxies import NotReadyError
from chaos.processes import ProcessError
from xds_server.cli.answering import INTERRUPTED


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
    telling = story.tell(plan(fast=fast, seed=seed), console, live=console.is_terminal and not no_live)
    try:
        result = asyncio.run(ended_by_signals(telling))
    except (NotReadyError, ProcessError) as problem:
        raise click.ClickException(str(problem)) from problem
    except asyncio.CancelledError:
        return INTERRUPTED
    console.print(screen.final(result.scores))
    console.print(screen.told(result.spoken))
    console.print(screen.climbed(result.ladder))
    console.print(screen.judgement(result.verdict))
    if picture is not None:
        picture.write_text(
            screen.svg(result.scores, result.ladder, result.answers, result.verdict), encoding="utf-8"
        )
    if as_json:
        click.echo(json.dumps(asdict(result), indent=2))
    return 0 if result.verdict.passed else 1
