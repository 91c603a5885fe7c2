"""The ``switchgear-chaos`` command.

Exit codes: 0 the promise was kept, 1 it was not, 2 asked wrongly or could not run.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from chaos.demo import screen, story
from chaos.demo.plan import plan
from chaos.demo.stage import StageError
from chaos.demo.story import Result
from chaos.processes import ProcessError

_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Break things on purpose, and judge how well they were kept going."""


@group.command
@click.option("--fast", is_flag=True, help="Half the length, for CI.")
@click.option("--seed", default=7, show_default=True, help="Decides the arrivals.")
@click.option(
    "--no-live", is_flag=True, help="Plain lines instead of the live view; the default without a terminal."
)
@click.option(
    "--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw the result into this SVG file."
)
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object on stdout.")
def demo(*, fast: bool, seed: int, no_live: bool, picture: Path | None, as_json: bool) -> int:
    """Nine engines, three Envoys, four kinds of trouble: Switchgear beside plain Envoy.

    The engines are simulated (there is no GPU here); the Envoys, the control plane and every request are real.
    """
    console = Console(stderr=as_json)
    telling = story.tell(plan(fast=fast, seed=seed), console, live=console.is_terminal and not no_live)
    try:
        result = asyncio.run(_ended_by_signals(telling))
    except (StageError, ProcessError) as problem:
        raise click.ClickException(str(problem)) from problem
    except asyncio.CancelledError:
        return _INTERRUPTED
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


async def _ended_by_signals(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of ``work``; SIGINT and SIGTERM cancel it, also where a shell had them ignored."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    return await task


def main(argv: Sequence[str]) -> int:
    """Run one subcommand and return its exit code."""
    try:
        answer = group.main(args=list(argv), prog_name="switchgear-chaos", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.ClickException as error:
        error.show()
        return 2
    except (click.exceptions.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    return answer if isinstance(answer, int) else 0


def entry() -> None:
    """The console script."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    entry()
