"""``switchgear-chaos schema``: what editors check scenario files against."""

import json

import click

from chaos.scenario.scenario_schema import scenario_schema


@click.command(name="schema")
def command() -> int:
    """Print the JSON Schema (draft 2020-12) of scenario files."""
    click.echo(json.dumps(scenario_schema(), indent=2))
    return 0
