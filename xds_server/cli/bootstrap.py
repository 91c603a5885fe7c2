"""``switchgear bootstrap``: print the file an Envoy starts with.

In a cluster the zone is a label of the node that the pod came to stand on. Nothing hands that to the pod on every
version of Kubernetes, so it can also be asked for here.
"""

import asyncio
import ipaddress
import re
from pathlib import Path
from typing import Final, Literal

import click

from engine.tls.paths import TlsFiles
from policies.quantity import NAME_PATTERN, ZONE_PATTERN
from xds_server.envoy_bootstrap import Bootstrap, BootstrapTls, bootstrap_yaml, secret_files
from xds_server.serve_config import ConfigError, address_of

ZONE_LABEL: Final = "topology.kubernetes.io/zone"
_FILE: Final = click.Path(dir_okay=False, path_type=Path)
REGION_LABEL: Final = "topology.kubernetes.io/region"


def _ip_address(_context: click.Context, _option: click.Parameter, said: str) -> str:
    if said:
        try:
            ipaddress.ip_address(said)
        except ValueError as error:
            raise click.BadParameter(f"{said!r} is not an IP address.") from error
    return said


def _node(_context: click.Context, _option: click.Parameter, said: str) -> str:
    if not said.strip() or not said.isprintable():
        raise click.BadParameter(f"{said!r} is no name to tell one Envoy from another by.")
    return said


def _zone(_context: click.Context, _option: click.Parameter, said: str | None) -> str | None:
    if said is not None and not re.fullmatch(ZONE_PATTERN, said):
        raise click.BadParameter(
            f"no engine can be in {said!r}: letters, digits and - _ . make the name of a zone."
        )
    return said


def _pools(_context: click.Context, _option: click.Parameter, said: str) -> tuple[str, ...]:
    pools = tuple(pool.strip() for pool in said.split(",") if pool.strip())
    for pool in pools:
        if not re.fullmatch(NAME_PATTERN, pool):
            raise click.BadParameter(f"no pool can be called {pool!r}: lower-case letters, digits and dashes.")
    return pools


def _server(said: str) -> tuple[str, int]:
    try:
        address = address_of(said)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--server") from error
    if said.startswith(":") or not address.port:
        raise click.BadParameter(f"{said!r} can be listened on, not connected to", param_hint="--server")
    return address.host, address.port


def _place_of_node(name: str) -> tuple[str, str]:
    """Zone and region of a node of the cluster this runs in; empty where it has no such label."""
    # Whoever prints a bootstrap for one machine need not wait for a client of Kubernetes to load.
    from xds_server.k8s.api_resources import NODES  # noqa: PLC0415
    from xds_server.k8s.client_config import ClientConfig, open_kube_api  # noqa: PLC0415
    from xds_server.k8s.kube_api import ApiError  # noqa: PLC0415

    async def ask() -> tuple[str, str]:
        async with open_kube_api(ClientConfig()) as api:
            labels = (await api.get(NODES, "", name)).get("metadata", {}).get("labels") or {}
            return str(labels.get(ZONE_LABEL, "")), str(labels.get(REGION_LABEL, ""))

    try:
        return asyncio.run(ask())
    except ApiError as error:
        raise click.ClickException(
            f"cannot read the zone of node {name!r}: {error}. The pod's service account needs get on nodes; "
            "or say --zone"
        ) from error


@click.command
@click.option("--node", required=True, callback=_node, metavar="ID", help="Name of this Envoy, unique among all.")
@click.option("--zone", callback=_zone, help="Zone this Envoy stands in, as the engines' zones are called.")
@click.option("--region", default="", callback=_zone, help="Region this Envoy stands in.")
@click.option(
    "--kubernetes-node",
    default="",
    metavar="NAME",
    help="Instead of --zone and --region: the node of the cluster whose labels have them.",
)
@click.option(
    "--role",
    type=click.Choice(["gateway", "sidecar"]),
    default="gateway",
    show_default=True,
    help="gateway: one of a few in front of the fleet; sidecar: beside one calling service.",
)
@click.option(
    "--pools",
    default="",
    callback=_pools,
    metavar="A,B",
    help="Only these pools and the routes to them; all when absent.",
)
@click.option(
    "--listen-address",
    default="",
    metavar="IP",
    callback=_ip_address,
    help="Where this Envoy binds its listeners, instead of the address the routes name.",
)
@click.option(
    "--server",
    "servers",
    multiple=True,
    default=("127.0.0.1:18000",),
    show_default=True,
    metavar="HOST:PORT",
    help="Where the control plane listens; more than one may be given.",
)
@click.option(
    "--admin-port",
    type=click.IntRange(0, 65535),
    default=9901,
    show_default=True,
    help="Envoy's admin port on 127.0.0.1; 0 takes a free one.",
)
@click.option(
    "--health-port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Port on which other machines may ask /live, /ready and /stats/prometheus; 0 opens none.",
)
@click.option(
    "--protocol",
    type=click.Choice(["delta", "sotw"]),
    default="delta",
    show_default=True,
    help="Variant of ADS; both serve the same.",
)
@click.option(
    "--cuts/--no-cuts",
    default=True,
    show_default=True,
    help="Whether this Envoy ends what a hung engine holds when told to; start it with --drain-time-s 0 then.",
)
@click.option("--tls-cert", type=_FILE, help="Certificate (chain) of this Envoy, PEM, where it sees it.")
@click.option("--tls-key", type=_FILE, help="Its key, PEM.")
@click.option("--tls-ca", type=_FILE, help="Authorities, PEM, that control planes' certificates must come from.")
@click.option(
    "--server-name",
    default="",
    metavar="NAME",
    help="DNS name or URI (SPIFFE) that control planes must prove; the host of the first --server when absent.",
)
@click.option(
    "--sds-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for two small files that tell Envoy where certificates are, made if missing; "
    "beside -o when absent.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="File to write instead of stdout.",
)
def command(
    *,
    node: str,
    zone: str | None,
    region: str,
    kubernetes_node: str,
    role: Literal["gateway", "sidecar"],
    pools: tuple[str, ...],
    listen_address: str,
    servers: tuple[str, ...],
    admin_port: int,
    health_port: int,
    protocol: Literal["delta", "sotw"],
    cuts: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    server_name: str,
    sds_dir: Path | None,
    output: Path | None,
) -> None:
    """Print a complete Envoy bootstrap that connects here."""
    folder = sds_dir or (None if output is None else output.parent)
    tls = _tls((tls_cert, tls_key, tls_ca), folder, server_name or _server(servers[0])[0])
    if (zone is None) == (not kubernetes_node):
        raise click.UsageError("say either --zone or --kubernetes-node")
    if kubernetes_node and region:
        raise click.UsageError("--region comes from the node's labels with --kubernetes-node")
    if zone is None:
        zone, region = _place_of_node(kubernetes_node)
    try:
        one = Bootstrap(
            node=node,
            zone=zone,
            region=region,
            role=role,
            pools=pools,
            listen_address=listen_address,
            servers=[_server(server) for server in servers],
            admin_port=admin_port,
            protocol=protocol,
            cuts=cuts,
            health_port=health_port,
            tls=tls,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if tls is not None:
        _make(tls.folder)
        for name, content in secret_files(tls).items():
            _write(tls.folder / name, content)
    if output is None:
        click.echo(bootstrap_yaml(one), nl=False)
        return
    _write(output, bootstrap_yaml(one))


def _tls(
    paths: tuple[Path | None, Path | None, Path | None], folder: Path | None, name: str
) -> BootstrapTls | None:
    certificate, key, authorities = paths
    if certificate is None and key is None and authorities is None:
        return None
    if certificate is None or key is None or authorities is None:
        raise click.UsageError("--tls-cert, --tls-key and --tls-ca go together")
    if folder is None:
        raise click.UsageError("say with --sds-dir or -o where the files that name the certificates may stand")
    files = TlsFiles(certificate=certificate.absolute(), key=key.absolute(), authorities=authorities.absolute())
    return BootstrapTls(files=files, folder=folder.absolute(), server_name=name)


def _make(folder: Path) -> None:
    """Make the folder where it is missing: whoever may write there says by which certificate Envoy is known."""
    if folder.is_dir():
        return
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError as error:
        raise click.ClickException(f"--sds-dir {folder} is a file: name a folder") from error
    except OSError as error:
        raise click.ClickException(f"cannot make the folder {folder}: {error.strerror}") from error
    click.echo(f"made {folder}, for this user alone: an Envoy of another user needs `chmod o+x` there", err=True)


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from error
