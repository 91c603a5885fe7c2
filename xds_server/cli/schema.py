"""``switchgear schema``: the JSON Schema of policy files, and their definitions for a cluster."""

import json

import click
import yaml

from policies.crd import crd
from policies.model import KINDS
from policies.schema import json_schema

HEADING = "# Made by `switchgear schema --crd`; change the models instead.\n"


@click.command(name="schema")
@click.option(
    "--kind", type=click.Choice(list(KINDS)), help="Only this kind of document; all of them when absent."
)
@click.option("--crd", "definitions", is_flag=True, help="CustomResourceDefinitions for Kubernetes, as YAML.")
def command(kind: str | None, *, definitions: bool) -> int:
    """Print the JSON Schema (draft 2020-12) of policy documents, for editors, or their definitions for a cluster.

    With the YAML language server: a first line `# yaml-language-server: $schema=switchgear.schema.json`.
    """
    if definitions:
        click.echo("---\n".join(definition(one) for one in ([kind] if kind else KINDS)), nl=False)
    else:
        click.echo(json.dumps(json_schema(kind), indent=2))
    return 0


def definition(kind: str) -> str:
    """The CustomResourceDefinition of a kind of document, as YAML."""
    return HEADING + yaml.safe_dump(crd(kind), sort_keys=False, width=115, allow_unicode=True)
