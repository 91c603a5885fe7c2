"""Errors in scenarios and policies, printed as by ``switchgear validate``."""

import click

from command_line.group_runner import USAGE_ERROR
from policies.findings import PolicyErrors
from xds_server.cli.diagnostics import as_text, from_errors


def print_errors(errors: PolicyErrors) -> int:
    """Print every error to stderr with its location and fix; return the exit code for usage errors."""
    click.echo(as_text(from_errors(errors)), err=True)
    return USAGE_ERROR
