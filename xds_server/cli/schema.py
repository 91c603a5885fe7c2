"""``switchgear schema``: the JSON Schema of policy files."""

import json

import click

from policies.model import KINDS
from policies.schema import json_schema


@click.command(name="schema")
@click.option(
    "--kind", type=click.Choice(list(KINDS)), help="Only this kind of document; all of them when absent."
)
def command(kind: str | None) -> int:
    """Print the JSON Schema (draft 2020-12) of policy documents, for editors.

    With the YAML language server: a first line `# yaml-language-server: $schema=switchgear.schema.json`.
    """
    click.echo(json.dumps(json_schema(kind), indent=2))
    return 0
