"""``switchgear options``: the global options, which other help texts leave out."""

import click

from command_line.global_option import GlobalOption
from xds_server.cli.connection_options import global_options


@click.command(name="options")
@click.pass_context
def command(context: click.Context) -> int:
    """List the global options: which server a command talks to, and how it proves who asks.

    Give them before or behind any command that talks to a server. Each value comes from the first of: its flag,
    the context of --context, its environment variable, the current context (`switchgear config`), its default.

    Exit code: 0.
    """
    formatter = context.make_formatter()
    with formatter.section("Global options"):
        formatter.write_dl(
            [one.global_help_record(context) for one in global_options() if isinstance(one, GlobalOption)]
        )
    click.echo(formatter.getvalue(), nl=False)
    return 0
