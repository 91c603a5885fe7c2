"""``switchgear release``: serve an edit that the guard against shrinking holds back."""

import click

from command_line.output_format import DATA, as_data, output_option
from xds_server.admin_api.endpoints import ALLOW_SHRINK, POLICIES
from xds_server.cli.admin_client import AdminApiError, fetch
from xds_server.cli.connection_options import connection_options
from xds_server.cli.diagnostics import printable

_REFUSED = 409


@click.command(name="release")
@click.option(
    "--expect",
    default="",
    metavar="DIGEST",
    help="Refuse unless the digest of the held policies begins so; see `status -o json`.",
)
@connection_options
@output_option()
def command(expect: str, admin: str, output: str) -> int:
    """Serve policies that are held back because they remove more than half of the resources or engines.

    `switchgear status` shows what they would remove. In a cluster the other replicas follow within seconds.

    Exit code: 0 when released, 1 when nothing is held back, a canary runs or --expect does not match, 2 when no
    server answers.
    """
    held = fetch(admin, POLICIES).value
    if expect and held.held and not held.digest.startswith(expect):
        return _refused(f"the held policies have digest {held.digest[:12]}, not {expect}", output)
    try:
        fetch(admin, ALLOW_SHRINK)
    except AdminApiError as refusal:
        if refusal.status != _REFUSED:
            raise
        return _refused(refusal.message, output)
    sentence = f"Released policies {held.digest[:12]}: they are now served."
    click.echo(sentence, err=output in DATA)
    if output in DATA:
        click.echo(as_data({"outcome": "released", "reason": "", "digest": held.digest}, output), nl=False)
    return 0


def _refused(reason: str, output: str) -> int:
    click.echo(f"refused: {printable(reason)}", err=True)
    if output in DATA:
        click.echo(as_data({"outcome": "refused", "reason": reason, "digest": ""}, output), nl=False)
    return 1
