"""``switchgear-chaos export``: scenarios as manifests for a cluster."""

from collections.abc import Mapping
from typing import Any

import click

from chaos.cli.error_output import print_errors
from chaos.export.chaos_mesh import chaos_mesh
from chaos.export.litmus import litmus
from chaos.faults.pod_labels import ClusterNames
from chaos.scenario.scenario_library import chosen_scenarios
from policies.findings import PolicyErrors

_TOOLS = {"chaos-mesh": chaos_mesh, "litmus": litmus}
_NAMES = ClusterNames()


def _labels(_context: click.Context, _option: click.Parameter, text: str) -> Mapping[str, str]:
    pairs = dict(one.split("=", 1) for one in text.split(",") if "=" in one)
    if len(pairs) != len(text.split(",")):
        msg = f"{text!r} is not a list of labels, such as app=vllm,tier=model"
        raise click.BadParameter(msg)
    return pairs


def _text(labels: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in labels.items())


@click.command(name="export")
@click.argument("words", nargs=-1, required=True, metavar="SCENARIO...")
@click.option("--format", "tool", type=click.Choice(list(_TOOLS)), required=True, help="For which tool.")
@click.option("--namespace", default=_NAMES.namespace, show_default=True, help="Where the pods are.")
@click.option("--engines", callback=_labels, default=_text(_NAMES.engines), show_default=True, help="Labels.")
@click.option("--proxies", callback=_labels, default=_text(_NAMES.proxies), show_default=True, help="Labels.")
@click.option(
    "--control-plane", callback=_labels, default=_text(_NAMES.control_plane), show_default=True, help="Labels."
)
@click.option("--workload", default=_NAMES.workload, show_default=True, help="Kind of what owns the pods.")
@click.option("--engine-container", default=_NAMES.engine_container, show_default=True, help="Its name.")
@click.option("--agent-container", default=_NAMES.agent_container, show_default=True, help="Its name.")
@click.option("--engine-port", default=_NAMES.engine_port, show_default=True, help="The port that proxies ask.")
def command(words: tuple[str, ...], tool: str, **names: Any) -> int:
    """Write the scenarios SCENARIO (files or names of the library) as manifests to stdout.

    Their first lines say what they do not do; the same goes to stderr where a fault has no counterpart at all.
    """
    try:
        found = chosen_scenarios(words)
    except PolicyErrors as errors:
        return print_errors(errors)
    exported = [_TOOLS[tool](one.scenario, ClusterNames(**names)) for one in found]
    click.echo("---\n".join(one.text() for one in exported), nl=False)
    for scenario, one in zip(found, exported, strict=True):
        faults = [remark.about for remark in one.remarks if not remark.mapped and remark.is_fault]
        if faults:
            click.echo(f"{scenario.name}: no counterpart in {one.tool}: {', '.join(faults)}", err=True)
    return 0
