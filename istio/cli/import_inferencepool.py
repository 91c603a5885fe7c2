"""``switchgear import inferencepool``: Gateway API InferencePools and the objects beside them as policies."""

import click

from istio.cli.importing import import_files, import_options
from istio.imports.from_inferencepool import from_inferencepool
from istio.imports.pools import Wishes


@click.command(name="inferencepool")
@import_options
def command(*, files: tuple[str, ...], wishes: Wishes, output: str, strict: bool) -> int:
    """Write policies from the InferencePools and HTTPRoutes in FILEs (- is stdin), and list what was left out.

    Exits 0, or 1 with --strict when something was not understood, or 2 when a FILE cannot be used.
    """
    return import_files(
        files, "Gateway API", lambda sources: from_inferencepool(sources, wishes), output=output, strict=strict
    )
