"""Errors in scenarios and policies, printed as ``switchgear validate`` prints them."""

import click

from command_line.group_runner import USAGE_ERROR
from policies.findings import PolicyErrors
from xds_server.cli.diagnostics import as_text, from_errors


def print_errors(errors: PolicyErrors) -> int:
    """The exit code of who asked wrongly, after every error went to stderr with its place and its way out."""
    click.echo(as_text(from_errors(errors)), err=True)
    return USAGE_ERROR
