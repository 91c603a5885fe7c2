"""``switchgear istio run``: a control plane that tells Istio what it decides.

It takes all settings of ``switchgear serve`` and serves Envoys too, where some connect; beside that it keeps
Istio's endpoints in step. Two of them are one writer and one that waits.
"""

import asyncio
import socket
from pathlib import Path
from typing import Any, Final

import click

from xds_server.cli import serve as serving

_MOST_WRITES_PER_S: Final = 1000.0


def _options() -> list[click.Parameter]:
    settings = serving.options()
    for one in settings:
        if one.name == "listen":
            # Hardly an Envoy connects to this one, and beside a `serve` the usual port is taken.
            one.default = "127.0.0.1:0"
    return [
        *settings,
        click.Option(
            ["--istio-kubeconfig", "istio_kubeconfig"],
            type=click.Path(path_type=Path),
            help="Kubeconfig of the cluster whose Istio is told; absent, that of --kubernetes.",
        ),
        click.Option(["--istio-context", "istio_context"], default="", help="Context of that kubeconfig."),
        click.Option(
            ["--istio-namespace", "istio_namespace"],
            default="default",
            show_default=True,
            help="Namespace of objects of pools that name none.",
        ),
        click.Option(
            ["--istio-lease", "istio_lease"],
            help="Lease (NAMESPACE/NAME) of the one that writes; absent, switchgear-istio in that namespace.",
        ),
        click.Option(
            ["--writes-per-s", "writes_per_s"],
            type=click.FloatRange(0.1, _MOST_WRITES_PER_S),
            default=10.0,
            show_default=True,
            help="Writes per second in the long run; five times as many at once.",
        ),
        click.Option(["--dry-run"], is_flag=True, help="Say what would be written, and write nothing."),
        click.Option(
            ["--remove"], is_flag=True, help="Take away all that was ever written by this command, and end."
        ),
    ]


def _run(
    *,
    istio_kubeconfig: Path | None,
    istio_context: str,
    istio_namespace: str,
    istio_lease: str | None,
    writes_per_s: float,
    dry_run: bool,
    remove: bool,
    **settings: Any,
) -> int:
    """Keep Istio's endpoints in step with the engines' verdicts, until SIGTERM or SIGINT.

    Engines that are out or draining get the label switchgear.dev/serving=false, on their pod or on a WorkloadEntry
    that is made for them; a DestinationRule's subset and a ServiceEntry's selector go by it, which
    `switchgear export istio --live` writes. Exit code: 0 when told to stop, 1 when --remove was refused something,
    2 when a setting cannot work, 70 after a bug.
    """
    # kubernetes' client costs most of a second, and --help should not.
    from istio.live.istio_sync import IstioSync, IstioSyncSettings, endpoint_writer  # noqa: PLC0415
    from xds_server.k8s.client_config import ClientConfig, open_kube_api  # noqa: PLC0415
    from xds_server.k8s.kube_api import ApiError  # noqa: PLC0415

    kubeconfig = istio_kubeconfig or settings.get("kubeconfig")
    context = istio_context or settings.get("context") or ""
    lease = istio_lease or f"{istio_namespace}/switchgear-istio"
    if lease.count("/") != 1 or not all(lease.split("/")):
        raise click.BadParameter(f"{lease!r} is not NAMESPACE/NAME", param_hint="--istio-lease")
    asked = IstioSyncSettings(
        access=ClientConfig(kubeconfig=kubeconfig, context=context),
        namespace=istio_namespace,
        namespaces=tuple(settings.get("namespaces") or ()),
        lease=lease,
        identity=settings.get("identity") or socket.gethostname(),
        writes_per_s=writes_per_s,
        dry_run=dry_run,
    )

    def tell(line: str) -> None:
        click.echo(line)

    if not remove:
        return serving.run(settings, (IstioSync(asked, tell),))

    async def take_away() -> int:
        async with open_kube_api(asked.access) as api:
            return await endpoint_writer(api, asked, lambda: None, tell).remove()

    try:
        count = asyncio.run(take_away())
    except ApiError as error:
        raise click.UsageError(f"the cluster cannot be reached: {error.message}") from error
    except ExceptionGroup as refused:
        click.echo(f"Error: {refused.exceptions[0]}", err=True)
        return 1
    click.echo(f"{count} to be removed" if dry_run else f"{count} removed", err=True)
    return 0


command = click.Command("run", callback=_run, params=_options(), help=_run.__doc__)
