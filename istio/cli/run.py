"""``switchgear istio run``: a control plane that writes its ejections to Istio's endpoints.

Takes all settings of ``switchgear serve`` and also serves Envoys that connect. Of two instances, one writes and
one waits for the lease.
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
            # Few Envoys connect here, and a `serve` on the same machine uses the usual port.
            one.default = "127.0.0.1:0"
    return [
        *settings,
        click.Option(
            ["--istio-kubeconfig", "istio_kubeconfig"],
            type=click.Path(path_type=Path),
            help="Kubeconfig of the cluster that runs Istio. [default: as for --kubernetes]",
        ),
        click.Option(["--istio-context", "istio_context"], default="", help="Context in --istio-kubeconfig."),
        click.Option(
            ["--istio-namespace", "istio_namespace"],
            default="default",
            show_default=True,
            help="Namespace of objects of pools without one.",
        ),
        click.Option(
            ["--istio-lease", "istio_lease"],
            help="Lease (NAMESPACE/NAME) of the writer. [default: switchgear-istio in that namespace]",
        ),
        click.Option(
            ["--writes-per-s", "writes_per_s"],
            type=click.FloatRange(0.1, _MOST_WRITES_PER_S),
            default=10.0,
            show_default=True,
            help="Sustained writes per second; bursts of five times as many.",
        ),
        click.Option(["--dry-run"], is_flag=True, help="Print the writes without making them."),
        click.Option(["--remove"], is_flag=True, help="Remove everything this command ever wrote, and exit."),
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
    """Remove ejected and draining engines from Istio's endpoints, until SIGTERM or SIGINT.

    Such engines get the label switchgear.dev/serving=false on their pod, or on a WorkloadEntry created for them.
    The subsets and selectors that `switchgear export istio --live` writes match this label.

    Exit code: 0 stopped, 1 --remove was partly refused, 2 invalid setting, 70 a bug.
    """
    # Importing the Kubernetes client takes most of a second; --help does not need it.
    from istio.live.istio_sync import IstioSync, IstioSyncSettings, endpoint_writer  # noqa: PLC0415
    from xds_server.k8s.client_config import ClientConfig, open_kube_api  # noqa: PLC0415
    from xds_server.k8s.kube_api import ApiError  # noqa: PLC0415

    kubeconfig = istio_kubeconfig or settings.get("kubeconfig")
    context = istio_context or settings.get("context") or ""
    lease = istio_lease or f"{istio_namespace}/switchgear-istio"
    if lease.count("/") != 1 or not all(lease.split("/")):
        raise click.BadParameter(f"{lease!r} is invalid: write NAMESPACE/NAME", param_hint="--istio-lease")
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
        raise click.UsageError(f"cannot reach the cluster: {error.message}") from error
    except ExceptionGroup as refused:
        click.echo(f"Error: {refused.exceptions[0]}", err=True)
        return 1
    click.echo(f"{count} objects to remove" if dry_run else f"{count} objects removed", err=True)
    return 0


command = click.Command("run", callback=_run, params=_options(), help=_run.__doc__)
