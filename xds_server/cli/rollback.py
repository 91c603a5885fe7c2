"""``switchgear rollback``: an earlier version of the policies is served again."""

import click

from xds_server.admin_api.endpoints import ROLLBACK
from xds_server.cli.admin_client import AdminApiError, fetch
from xds_server.cli.apply import by_option, expect_option, reason_option, user_name
from xds_server.cli.change_outcome import OutcomeReporter, form_option
from xds_server.cli.connection_options import connection_options
from xds_server.cli.version_number import VersionNumber


@click.command(name="rollback")
@click.argument("number", type=VersionNumber(), required=False)
@expect_option
@connection_options
@by_option
@reason_option
@form_option
def command(*, number: int | None, expect: str, admin: str, by: str, reason: str, output: str) -> int:
    """Serve version NUMBER again; without it, the newest that says something else than what is served.

    It becomes a version of its own, and stands until the policy files change: correct them, too. With --expect it
    is refused once another version is served than the one that you saw. With -o json or yaml what became of it is
    one document; there is none where the exit code is 2 or 130.

    Exit code: 0 when it is served, 1 when it is not (there is no such version, another one is served than
    expected, or it would drop too much), 2 when the request is wrong or no server answers.
    """
    body = {"version": number or 0, "by": by or user_name(), "reason": reason}
    if expect:
        body["expect"] = expect
    teller = OutcomeReporter(admin=admin, form=output)
    try:
        return teller.report_answer(fetch(admin, ROLLBACK, body=body).value)
    except AdminApiError as refusal:
        return teller.report_refusal(refusal)
