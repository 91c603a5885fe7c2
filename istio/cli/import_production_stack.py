"""``switchgear import production-stack``: Helm values of vLLM's production-stack as policies."""

import click

from istio.cli.import_command import import_options, run_import
from istio.imports.from_production_stack import from_production_stack
from istio.imports.policy_drafts import ImportOptions


@click.command(name="production-stack")
@import_options
@click.option("--release", default="vllm", show_default=True, help="Name that the chart was installed by.")
def command(*, files: tuple[str, ...], wishes: ImportOptions, output: str, strict: bool, release: str) -> int:
    """Write policies from Helm values of production-stack in FILEs (- is stdin), and list what was left out.

    Give what `helm get values --all RELEASE` prints, so that the chart's own defaults are said as well. Exits 0,
    or 1 with --strict when something was not understood, or 2 when a FILE cannot be used.
    """
    return run_import(
        files,
        "values",
        lambda sources: from_production_stack(sources, wishes, release),
        output=output,
        strict=strict,
    )
