"""``switchgear-chaos scenarios``: the library, or files of one's own, validated."""

import json
from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table

from chaos.cli.error_output import print_errors
from chaos.scenario.scenario_library import chosen_scenarios, scenario_library, scenarios_labelled
from chaos.scenario.scenario_reader import LoadedScenario
from policies.findings import PolicyErrors


@click.command(name="scenarios")
@click.argument("words", nargs=-1, metavar="[SCENARIO]...")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with everything that each says.")
def command(words: tuple[str, ...], as_json: bool) -> int:
    """List the scenarios of the library, or judge those in the files, folders and names SCENARIO.

    Exits 0 when all of them can be run, 2 when one is wrong: every problem is named with its place.
    """
    try:
        found = chosen_scenarios(words) if words else tuple(scenario_library().values())
    except PolicyErrors as errors:
        return print_errors(errors)
    if as_json:
        click.echo(json.dumps([one.scenario.model_dump(mode="json", by_alias=True) for one in found], indent=2))
    else:
        Console().print(_table(found, full=bool(words)))
    return 0


def _table(found: Sequence[LoadedScenario], *, full: bool) -> Table:
    table = Table(show_lines=full)
    for name in ("scenario", "what happens", "lasts"):
        table.add_column(name, no_wrap=name == "scenario")
    if full:
        table.add_column("the incident it rehearses")
    for one in found:
        spec = one.scenario.spec
        suite = f" [dim]({scenarios_labelled(one)})[/dim]" if scenarios_labelled(one) else ""
        row = [f"{one.name}{suite}", spec.title, f"{spec.lasts:g} s"]
        table.add_row(*row, *([spec.incident.strip()] if full else []))
    return table
