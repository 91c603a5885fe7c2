"""``switchgear import inferencepool``: policies from Gateway API InferencePools and HTTPRoutes."""

import click

from istio.cli.import_command import ImportOutputs, import_options, run_import
from istio.imports.from_inferencepool import from_inferencepool
from istio.imports.policy_drafts import ImportOptions


@click.command(name="inferencepool")
@import_options
def command(*, files: tuple[str, ...], options: ImportOptions, outputs: ImportOutputs) -> int:
    """Convert InferencePools and HTTPRoutes to policies, and list unsupported settings.

    Exit code: 0, or 1 with --strict and an unsupported setting, or 2 for an invalid file.
    """
    return run_import(files, "Gateway API", lambda sources: from_inferencepool(sources, options), outputs)
