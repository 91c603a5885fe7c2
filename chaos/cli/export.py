"""``switchgear-chaos export``: scenarios as manifests for Chaos Mesh or Litmus."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from chaos.cli.error_output import print_errors
from chaos.cli.resource_names import complete_scenarios
from chaos.export.chaos_mesh import chaos_mesh
from chaos.export.litmus import litmus
from chaos.faults.pod_labels import ClusterNames
from chaos.scenario.scenario_library import chosen_scenarios
from command_line.out_option import out_option, write_out
from policies.findings import PolicyErrors

_TOOLS = {"chaos-mesh": chaos_mesh, "litmus": litmus}
_NAMES = ClusterNames()


def _labels(_context: click.Context, _option: click.Parameter, text: str) -> Mapping[str, str]:
    pairs = dict(one.split("=", 1) for one in text.split(",") if "=" in one)
    if len(pairs) != len(text.split(",")):
        msg = f"{text!r} is not a list of labels: write app=vllm,tier=model"
        raise click.BadParameter(msg)
    return pairs


def _text(labels: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in labels.items())


@click.command(name="export")
@click.argument("words", nargs=-1, required=True, metavar="SCENARIO...", shell_complete=complete_scenarios)
@click.option("--tool", type=click.Choice(list(_TOOLS)), required=True, help="Tool to write manifests for.")
@out_option("Write the manifests to this file instead of stdout.")
@click.option("--namespace", default=_NAMES.namespace, show_default=True, help="Namespace of the pods.")
@click.option(
    "--engines", callback=_labels, default=_text(_NAMES.engines), show_default=True, help="Labels of engine pods."
)
@click.option(
    "--proxies", callback=_labels, default=_text(_NAMES.proxies), show_default=True, help="Labels of Envoy pods."
)
@click.option(
    "--control-plane",
    callback=_labels,
    default=_text(_NAMES.control_plane),
    show_default=True,
    help="Labels of control plane pods.",
)
@click.option(
    "--workload", default=_NAMES.workload, show_default=True, help="Kind of the workload that owns the pods."
)
@click.option(
    "--engine-container", default=_NAMES.engine_container, show_default=True, help="Name of the engine container."
)
@click.option(
    "--agent-container", default=_NAMES.agent_container, show_default=True, help="Name of the agent container."
)
@click.option("--engine-port", default=_NAMES.engine_port, show_default=True, help="Port of the engines.")
def command(words: tuple[str, ...], tool: str, out: Path | None, **names: Any) -> int:
    """Convert each SCENARIO (a file or a name of the library) to manifests.

    The first lines list what differs from the scenario. A fault without counterpart is reported on stderr.
    """
    try:
        found = chosen_scenarios(words)
    except PolicyErrors as errors:
        return print_errors(errors)
    exported = [_TOOLS[tool](one.scenario, ClusterNames(**names)) for one in found]
    write_out(out, "---\n".join(one.text() for one in exported))
    for scenario, one in zip(found, exported, strict=True):
        faults = [remark.about for remark in one.remarks if not remark.mapped and remark.is_fault]
        if faults:
            click.echo(f"{scenario.name}: no counterpart in {one.tool}: {', '.join(faults)}", err=True)
    return 0
