"""``switchgear-agent version``."""

import click

from command_line.output_format import DATA, OutputForm, as_data, output_option
from command_line.version import client_version, short_version
from engine.agent.cli import PROGRAM


@click.command(name="version")
@output_option()
def command(output: OutputForm) -> int:
    """Show the version."""
    click.echo(as_data(client_version(), output) if output in DATA else f"{short_version(PROGRAM)}\n", nl=False)
    return 0
