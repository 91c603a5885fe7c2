"""``switchgear-chaos schema``: JSON Schema of scenario files."""

import json
from pathlib import Path

import click

from chaos.scenario.scenario_schema import scenario_schema
from command_line.out_option import out_option, write_out


@click.command(name="schema")
@out_option("Write the schema to this file instead of stdout.")
def command(out: Path | None) -> int:
    """Print the JSON Schema (draft 2020-12) of scenario files."""
    write_out(out, json.dumps(scenario_schema(), indent=2) + "\n")
    return 0
