"""``switchgear bootstrap``: print the bootstrap of an Envoy.

In a cluster the zone is a label of the pod's node. Not every version of Kubernetes passes it to the pod, so this
command can read it.
"""

import asyncio
import ipaddress
import re
from pathlib import Path
from typing import Final, Literal

import click

from command_line.out_option import STDOUT, out_option, write_out
from engine.tls.paths import TlsFiles
from policies.quantity import NAME_PATTERN, ZONE_PATTERN
from xds_server.envoy_bootstrap import Bootstrap, BootstrapTls, bootstrap_yaml, secret_files
from xds_server.serve_config import ConfigError, address_of

ZONE_LABEL: Final = "topology.kubernetes.io/zone"
_UNITS: Final = {"": 1, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3}
_FILE: Final = click.Path(dir_okay=False, path_type=Path)
REGION_LABEL: Final = "topology.kubernetes.io/region"


def _ip_address(_context: click.Context, _option: click.Parameter, text: str) -> str:
    if text:
        try:
            ipaddress.ip_address(text)
        except ValueError as error:
            raise click.BadParameter(f"{text!r} is not an IP address.") from error
    return text


def _node(_context: click.Context, _option: click.Parameter, text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise click.BadParameter(f"{text!r} is not a node ID: use printable characters.")
    return text


def _zone(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    if text is not None and not re.fullmatch(ZONE_PATTERN, text):
        raise click.BadParameter(f"invalid zone or region {text!r}: use letters, digits and - _ .")
    return text


def _pools(_context: click.Context, _option: click.Parameter, text: str) -> tuple[str, ...]:
    pools = tuple(pool.strip() for pool in text.split(",") if pool.strip())
    for pool in pools:
        if not re.fullmatch(NAME_PATTERN, pool):
            raise click.BadParameter(f"invalid pool name {pool!r}: use lower-case letters, digits and dashes.")
    return pools


def _memory(_context: click.Context, _option: click.Parameter, text: str) -> int:
    if not text:
        return 0
    found = re.fullmatch(r"(\d+)(Ki|Mi|Gi|)B?", text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not a size: write bytes, or e.g. 512MiB or 1Gi.")
    return int(found[1]) * _UNITS[found[2]]


def _server(text: str) -> tuple[str, int]:
    try:
        address = address_of(text)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--server") from error
    if text.startswith(":") or not address.port:
        raise click.BadParameter(f"cannot connect to {text!r}: set host and port", param_hint="--server")
    return address.host, address.port


def _place_of_node(name: str) -> tuple[str, str]:
    """Zone and region of a node of this cluster; empty where it lacks the label."""
    # The Kubernetes client loads slowly, and most bootstraps need none.
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
            f"cannot read the zone of node {name!r}: {error}. Allow the pod's service account to get nodes, "
            "or set --zone"
        ) from error


@click.command(name="bootstrap")
@click.option("--node", required=True, callback=_node, metavar="ID", help="Unique node ID of this Envoy.")
@click.option("--zone", callback=_zone, help="Zone of this Envoy, as in the endpoints of pools.")
@click.option("--region", default="", callback=_zone, help="Region of this Envoy.")
@click.option(
    "--kubernetes-node",
    default="",
    metavar="NAME",
    help="Read zone and region from the labels of this cluster node.",
)
@click.option(
    "--role",
    type=click.Choice(["gateway", "sidecar"]),
    default="gateway",
    show_default=True,
    help="gateway: in front of the fleet; sidecar: next to one calling service.",
)
@click.option(
    "--pools",
    default="",
    callback=_pools,
    metavar="A,B",
    help="Only these pools and their routes; default: all.",
)
@click.option(
    "--listen-address",
    default="",
    metavar="IP",
    callback=_ip_address,
    help="Bind listeners to this address instead of the address in the routes.",
)
@click.option(
    "--server",
    "servers",
    multiple=True,
    default=("127.0.0.1:18000",),
    show_default=True,
    metavar="HOST:PORT",
    help="Address of the control plane; repeatable.",
)
@click.option(
    "--admin-port",
    type=click.IntRange(0, 65535),
    default=9901,
    show_default=True,
    help="Envoy's admin port on 127.0.0.1; 0: any free port.",
)
@click.option(
    "--health-port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Port of /live, /ready and /stats/prometheus for other machines; 0: none.",
)
@click.option(
    "--memory-limit",
    "memory_bytes",
    default="",
    callback=_memory,
    metavar="SIZE",
    help="Memory limit of Envoy's container, e.g. 1GiB; near it Envoy refuses requests instead of being killed.",
)
@click.option(
    "--protocol",
    type=click.Choice(["delta", "sotw"]),
    default="delta",
    show_default=True,
    help="ADS variant; both serve the same resources.",
)
@click.option(
    "--cuts/--no-cuts",
    default=True,
    show_default=True,
    help="Allow cutting requests on hung engines; requires envoy --drain-time-s 0.",
)
@click.option("--tls-cert", type=_FILE, help="Certificate (chain) of this Envoy, PEM; the path as Envoy sees it.")
@click.option("--tls-key", type=_FILE, help="Private key of --tls-cert, PEM.")
@click.option("--tls-ca", type=_FILE, help="CA bundle, PEM, that verifies control planes.")
@click.option(
    "--server-name",
    default="",
    metavar="NAME",
    help="DNS name or URI (SPIFFE) required in control plane certificates; default: host of the first --server.",
)
@click.option(
    "--sds-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for two SDS files with the certificate paths, created if missing; default: the folder of --out.",
)
@out_option("File to write; default: stdout.", default=STDOUT)
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
    memory_bytes: int,
    protocol: Literal["delta", "sotw"],
    cuts: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    server_name: str,
    sds_dir: Path | None,
    out: Path,
) -> None:
    """Print an Envoy bootstrap that connects to this control plane."""
    folder = sds_dir or (None if out == STDOUT else out.parent)
    tls = _tls((tls_cert, tls_key, tls_ca), folder, server_name or _server(servers[0])[0])
    if (zone is None) == (not kubernetes_node):
        raise click.UsageError("set either --zone or --kubernetes-node")
    if kubernetes_node and region:
        raise click.UsageError("--kubernetes-node reads the region from the node: remove --region")
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
            memory_bytes=memory_bytes,
            tls=tls,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if tls is not None:
        _make(tls.folder)
        for name, content in secret_files(tls).items():
            _write(tls.folder / name, content)
    write_out(out, bootstrap_yaml(one))


def _tls(
    paths: tuple[Path | None, Path | None, Path | None], folder: Path | None, name: str
) -> BootstrapTls | None:
    certificate, key, authorities = paths
    if certificate is None and key is None and authorities is None:
        return None
    if certificate is None or key is None or authorities is None:
        raise click.UsageError("--tls-cert, --tls-key and --tls-ca are required together")
    if folder is None:
        raise click.UsageError("set --sds-dir or --out: the SDS files with the certificate paths need a folder")
    files = TlsFiles(certificate=certificate.absolute(), key=key.absolute(), authorities=authorities.absolute())
    return BootstrapTls(files=files, folder=folder.absolute(), server_name=name)


def _make(folder: Path) -> None:
    """Create the folder for this user only: its files decide which certificate Envoy uses."""
    if folder.is_dir():
        return
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError as error:
        raise click.ClickException(f"--sds-dir {folder} is a file; name a folder") from error
    except OSError as error:
        raise click.ClickException(f"cannot create folder {folder}: {error.strerror}") from error
    click.echo(f"created {folder} for this user only; if Envoy runs as another user: chmod o+x {folder}", err=True)


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from error
