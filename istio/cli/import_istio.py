"""``switchgear import istio``: DestinationRules, VirtualServices and entries as policies."""

import click

from istio.cli.import_command import import_options, run_import
from istio.imports.from_istio import from_istio
from istio.imports.policy_drafts import ImportOptions


@click.command(name="istio")
@import_options
def command(*, files: tuple[str, ...], wishes: ImportOptions, output: str, strict: bool) -> int:
    """Write policies from the Istio objects in FILEs (- is stdin), and list what was not understood.

    Exits 0, or 1 with --strict when something was not understood, or 2 when a FILE cannot be used.
    """
    return run_import(files, "Istio", lambda sources: from_istio(sources, wishes), output=output, strict=strict)
