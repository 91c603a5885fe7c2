"""``switchgear schema``: the JSON Schema of policy files and of the admin API, and definitions for a cluster."""

import json
from pathlib import Path

import click
import yaml

from policies.crd.crd import PLURALS, crd
from policies.model import KINDS
from policies.schema import json_schema
from xds_server.admin_api.api_schema import api_schema

HEADING = "# Made by `switchgear schema --crd`; change the models instead.\n"


@click.command(name="schema")
@click.option(
    "--kind", type=click.Choice(list(KINDS)), help="Only this kind of document; all of them when absent."
)
@click.option("--crd", "definitions", is_flag=True, help="CustomResourceDefinitions for Kubernetes, as YAML.")
@click.option("--api", is_flag=True, help="The admin API of a server, as OpenAPI 3.1 with JSON Schemas.")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="With --crd: write a file for each kind into this folder, in place of stdout.",
)
def command(kind: str | None, output: Path | None, *, definitions: bool, api: bool) -> int:
    """Print the JSON Schema (draft 2020-12) of policy documents, for editors; or of the admin API, for clients.

    With the YAML language server: a first line `# yaml-language-server: $schema=switchgear.schema.json`.
    """
    if api:
        if definitions or kind or output is not None:
            raise click.UsageError("--api stands alone: leave out --kind, --crd and --output")
        click.echo(json.dumps(api_schema(), indent=2))
        return 0
    if not definitions:
        if output is not None:
            raise click.UsageError("--output belongs to --crd")
        click.echo(json.dumps(json_schema(kind), indent=2))
        return 0
    kinds = [kind] if kind else list(KINDS)
    if output is None:
        click.echo("---\n".join(map(definition, kinds)), nl=False)
        return 0
    try:
        output.mkdir(parents=True, exist_ok=True)
        for one in kinds:
            (output / f"{PLURALS[one]}.yaml").write_text(definition(one))
    except OSError as error:
        raise click.UsageError(f"{output} cannot be written: {error.strerror or error}") from error
    return 0


def definition(kind: str) -> str:
    """The CustomResourceDefinition of a kind of document, as YAML."""
    return HEADING + yaml.safe_dump(crd(kind), sort_keys=False, width=115, allow_unicode=True)
