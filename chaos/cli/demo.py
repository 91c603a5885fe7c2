"""``switchgear-chaos demo``: a comparison with plain Envoy in 90 s, with a verdict."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from chaos.cli.interruption import run_until_signal
from chaos.demo import demo_run, tenant_demo, terminal_view
from chaos.demo.demo_plan import demo_plan
from chaos.lab.envoy_processes import NotReadyError
from chaos.processes import ProcessError
from command_line.interrupts import INTERRUPTED
from command_line.output_format import DATA, OutputForm, as_data, output_option


@click.command("demo")
@click.option("--fast", is_flag=True, help="Halve the duration, for CI.")
@click.option("--seed", default=7, show_default=True, help="Seed of the arrivals.")
@click.option(
    "--no-live", is_flag=True, help="Print lines instead of the live view; the default without a terminal."
)
@click.option(
    "--svg", type=click.Path(dir_okay=False, path_type=Path), help="Also draw the result into this SVG file."
)
@click.option(
    "--tenants",
    is_flag=True,
    help="Show three tenants instead, whose quotas and fair shares are 15 lines of policy; about a minute.",
)
@output_option()
def command(*, fast: bool, seed: int, no_live: bool, svg: Path | None, tenants: bool, output: OutputForm) -> int:
    """Compare Switchgear with plain Envoy: nine engines, three Envoys, four kinds of faults.

    The engines are simulated and need no GPU. The Envoys, the control plane and all requests are real.

    Exit code: 0 if Switchgear keeps its promises, 1 if not, 2 if the lab does not start.
    """
    console = Console(stderr=output in DATA)
    if tenants and (fast or svg is not None):
        raise click.UsageError("--fast and --svg do not apply to --tenants")
    try:
        if tenants:
            return _tenants(console, seed, output)
        demo = demo_run.run_demo(
            demo_plan(fast=fast, seed=seed), console, live=console.is_terminal and not no_live
        )
        result = asyncio.run(run_until_signal(demo))
    except (NotReadyError, ProcessError) as problem:
        raise click.ClickException(str(problem)) from problem
    except asyncio.CancelledError:
        return INTERRUPTED
    console.print(terminal_view.result_table(result.scores))
    console.print(terminal_view.agent_reports_text(result.spoken))
    console.print(terminal_view.degradation_text(result.ladder))
    console.print(terminal_view.verdict_text(result.verdict))
    if svg is not None:
        svg.write_text(
            terminal_view.svg(result.scores, result.ladder, result.answers, result.verdict), encoding="utf-8"
        )
    if output in DATA:
        click.echo(as_data(json.loads(json.dumps(asdict(result))), output), nl=False)
    return 0 if result.verdict.passed else 1


def _tenants(console: Console, seed: int, output: OutputForm) -> int:
    """Run the demo of tenants; 0 if Switchgear keeps its promises."""
    result = asyncio.run(run_until_signal(tenant_demo.run_tenant_demo(console, seed=seed)))
    console.print(tenant_demo.tenant_table(result.scores))
    console.print(tenant_demo.tenant_verdict(result))
    if output in DATA:
        click.echo(as_data(asdict(result), output), nl=False)
    return 1 if result.objections else 0
