"""``switchgear bootstrap``: print the file an Envoy starts with."""

import ipaddress
import re
from typing import Literal

import click

from policies.quantity import NAME_PATTERN, ZONE_PATTERN
from xds_server.bootstrap import Bootstrap, bootstrap_yaml
from xds_server.config import Address, ConfigError


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


def _zone(_context: click.Context, _option: click.Parameter, said: str) -> str:
    if not re.fullmatch(ZONE_PATTERN, said):
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
        address = Address.parse(said)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--server") from error
    if said.startswith(":") or not address.port:
        raise click.BadParameter(f"{said!r} can be listened on, not connected to", param_hint="--server")
    return address.host, address.port


@click.command
@click.option("--node", required=True, callback=_node, metavar="ID", help="Name of this Envoy, unique among all.")
@click.option(
    "--zone", required=True, callback=_zone, help="Zone this Envoy stands in, as the engines' zones are called."
)
@click.option("--region", default="", callback=_zone, help="Region this Envoy stands in.")
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
def command(
    *,
    node: str,
    zone: str,
    region: str,
    role: Literal["gateway", "sidecar"],
    pools: tuple[str, ...],
    listen_address: str,
    servers: tuple[str, ...],
    admin_port: int,
    protocol: Literal["delta", "sotw"],
    cuts: bool,
) -> None:
    """Print a complete Envoy bootstrap that connects here."""
    text = bootstrap_yaml(
        Bootstrap(
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
        )
    )
    click.echo(text, nl=False)
