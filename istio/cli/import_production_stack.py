"""``switchgear import production-stack``: policies from Helm values of vLLM's production-stack."""

import click

from istio.cli.import_command import ImportOutputs, import_options, run_import
from istio.imports.from_production_stack import from_production_stack
from istio.imports.policy_drafts import ImportOptions


@click.command(name="production-stack")
@import_options
@click.option("--release", default="vllm", show_default=True, help="Release name of the chart.")
def command(*, files: tuple[str, ...], options: ImportOptions, outputs: ImportOutputs, release: str) -> int:
    """Convert Helm values of production-stack to policies, and list unsupported settings.

    Use the output of `helm get values --all RELEASE`, which includes the chart's defaults.

    Exit code: 0, or 1 with --strict and an unsupported setting, or 2 for an invalid file.
    """
    return run_import(files, "values", lambda sources: from_production_stack(sources, options, release), outputs)
