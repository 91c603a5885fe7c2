"""``switchgear doctor``: checks of a server and its surroundings, each fault with its code and a fix."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from command_line.output_format import DATA, as_data, output_option
from command_line.table import coloured, styled
from command_line.wrapping import wrapped
from xds_server.cli.connection_options import connection_options
from xds_server.cli.diagnostics import printable
from xds_server.cli.doctor_checks import all_checks
from xds_server.cli.output_format import style_of
from xds_server.cli.policies_option import policies_option
from xds_server.diagnosis.check_result import Check, CheckState, failed


@click.command(name="doctor", short_help="Check a server and its surroundings; show a fix for each fault.")
@connection_options
@click.option(
    "--xds",
    default="",
    metavar="HOST:PORT",
    help="Address that Envoys connect to.  [default: as the server reports]",
)
@click.option(
    "--envoy-admin",
    "envoys",
    multiple=True,
    metavar="URL",
    help="Admin port of an Envoy, to check its clock; repeatable.",
)
@policies_option("Policy file or folder to validate as well; repeatable.")
@click.option("--kubernetes", is_flag=True, help="Check permissions and pods of a cluster, too.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    help="Kubeconfig of the cluster.  [default: this pod's account]",
)
@click.option("--kube-context", default="", help="Context of the kubeconfig.")
@click.option("--namespace", default="", metavar="NAME", help="Namespace of permissions and pods.  [default: all]")
@output_option("table", "wide", *DATA)
def command(*, admin: str, output: str, **named: Any) -> int:
    """Check versions, ports, clocks, engines, agents, proxies, files, disk, policies and cluster permissions.

    Changes nothing. Each result is ok, info, warn or fail; `switchgear explain CODE` explains a code.

    Exit code: 0, 1 when a check failed, 2 on a usage error.
    """
    scope = _Scope(**named)
    checks = list(
        all_checks(admin, xds=scope.xds, envoys=scope.envoys, policies=scope.filename, cluster=scope.cluster)
    )
    if output in DATA:
        click.echo(as_data({"checks": [dict(one.record()) for one in checks]}, output), nl=False)
    else:
        show(checks)
    return 1 if failed(checks) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scope:
    """What to check besides the server."""

    xds: str
    envoys: tuple[str, ...]
    filename: tuple[Path, ...]
    kubernetes: bool
    kubeconfig: Path | None
    kube_context: str
    namespace: str

    @property
    def cluster(self) -> tuple[Path | None, str, str] | None:
        """Kubeconfig, context and namespace; None where no option names a cluster."""
        named = self.kubernetes or self.kubeconfig or self.kube_context
        return (self.kubeconfig, self.kube_context, self.namespace) if named else None


def show(checks: Sequence[Check]) -> None:
    """Print the checks, each with its fix if it has one."""
    lines = []
    for one in checks:
        state = f"{one.state.value:<4}"
        code = f" {one.code}" if one.code else ""
        text = printable(f"{state}{code} {one.subject}: {one.sentence}").replace("\n", " ")
        lines.append(f"{styled(state, style_of(one.state))}{wrapped(text)[len(state) :]}")
        if one.fix:
            lines.append(styled(wrapped(f"       {printable(one.fix)}"), "dim"))
    counts = {state: sum(one.state is state for one in checks) for state in CheckState}
    lines.append(", ".join(f"{count} {state.value}" for state, count in counts.items()))
    click.echo("\n".join(lines), color=coloured())
