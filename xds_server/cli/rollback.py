"""``switchgear rollback``: roll back to an earlier policy version."""

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
    """Roll back to policy version NUMBER; without it, to the newest version that differs from the current one.

    The rollback is a new version and stays until the policy files change: correct the files too. With --expect it
    is refused if another version is current. -o json prints one document, and none with exit code 2 or 130.

    Exit code: 0 now serving it, 1 refused (unknown version, other version current, or too much removed), 2 usage
    error or no server.
    """
    body = {"version": number or 0, "by": by or user_name(), "reason": reason}
    if expect:
        body["expect"] = expect
    reporter = OutcomeReporter(admin=admin, form=output)
    try:
        return reporter.report_answer(fetch(admin, ROLLBACK, body=body).value)
    except AdminApiError as refusal:
        return reporter.report_refusal(refusal)
