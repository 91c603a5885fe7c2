"""``switchgear import inferencepool``: Gateway API InferencePools and the objects beside them as policies."""

import click

from istio.cli.import_command import import_options, run_import
from istio.imports.from_inferencepool import from_inferencepool
from istio.imports.policy_drafts import ImportOptions


@click.command(name="inferencepool")
@import_options
def command(*, files: tuple[str, ...], wishes: ImportOptions, output: str, strict: bool) -> int:
    """Write policies from the InferencePools and HTTPRoutes in FILEs (- is stdin), and list what was left out.

    Exits 0, or 1 with --strict when something was not understood, or 2 when a FILE cannot be used.
    """
    return run_import(
        files, "Gateway API", lambda sources: from_inferencepool(sources, wishes), output=output, strict=strict
    )
