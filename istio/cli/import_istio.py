"""``switchgear import istio``: policies from DestinationRules, VirtualServices and entries."""

import click

from istio.cli.import_command import ImportOutputs, import_options, run_import
from istio.imports.from_istio import from_istio
from istio.imports.policy_drafts import ImportOptions


@click.command(name="istio")
@import_options
def command(*, files: tuple[str, ...], options: ImportOptions, outputs: ImportOutputs) -> int:
    """Convert Istio objects to policies, and list unsupported settings.

    Exit code: 0, or 1 with --strict and an unsupported setting, or 2 for an invalid file.
    """
    return run_import(files, "Istio", lambda sources: from_istio(sources, options), outputs)
