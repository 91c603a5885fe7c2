"""``switchgear version``: of this command, and of the server where one answers."""

import click

from command_line.output_format import DATA, as_data, output_option
from command_line.version import client_version
from xds_server.admin_api.endpoints import SERVER_INFO
from xds_server.cli.admin_client import AdminApiError, NoAnswerError, fetch
from xds_server.cli.connection_options import connection_options


@click.command(name="version")
@click.option("--client", is_flag=True, help="Show the version of this command only; ask no server.")
@connection_options
@output_option()
def command(*, client: bool, admin: str, output: str) -> int:
    """Show the version of this command, and of the server if it answers.

    Exit code: 0, also without a server.
    """
    mine = client_version()
    server, trouble = None, ""
    if not client:
        try:
            server = {
                "version": fetch(admin, SERVER_INFO).value.libraries.get("switchgear", "unknown"),
                "url": admin,
            }
        except (NoAnswerError, AdminApiError) as error:
            trouble = error.format_message()
    if output in DATA:
        click.echo(as_data({"client": mine, "server": server}, output), nl=False)
    else:
        click.echo(f"Client: {mine['version']} (Python {mine['python']})")
        if server:
            click.echo(f"Server: {server['version']} ({admin})")
    if trouble:
        click.echo(f"server version unknown: {trouble}", err=True)
    return 0
