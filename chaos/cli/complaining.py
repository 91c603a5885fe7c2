"""Errors in scenarios and policies, printed as ``switchgear validate`` prints them."""

import click

from policies.findings import PolicyErrors
from xds_server.cli.answering import ASKED_WRONGLY
from xds_server.cli.complaints import as_text, of_errors


def refused(errors: PolicyErrors) -> int:
    """The exit code of who asked wrongly, after every error went to stderr with its place and its way out."""
    click.echo(as_text(of_errors(errors)), err=True)
    return ASKED_WRONGLY
