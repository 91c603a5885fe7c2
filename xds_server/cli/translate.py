"""``switchgear translate``: print the Envoy resources that a proxy would get, without a server."""

import json
from pathlib import Path
from typing import Any, Final

import click

from command_line.output_format import output_option
from policies.findings import PolicyErrors
from policies.model import PolicySet
from xds_server.cli.diagnostics import as_text, from_errors
from xds_server.cli.light_messages import light_messages
from xds_server.cli.policies_option import load_policies, policies_option
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.engine_health.engine_addresses import host_names, resolved_fleet
from xds_server.model.fleet import Fleet, declared
from xds_server.model.type_urls import SHORT_NAMES
from xds_server.model.view import GRPC_ROLE, View

with light_messages():
    from xds_server.translate.envoy_json import as_json, as_yaml, static_bootstrap
    from xds_server.translate.translated_resource import TranslatedResource
    from xds_server.translate.view_resources import translate

_TYPES: Final = {
    short.lower(): url
    for url, short in SHORT_NAMES.items()
    if short in ("CDS", "ECDS", "EDS", "LDS", "RDS", "RTDS")
}


@click.command(name="translate")
@policies_option(required=True)
@click.option("--node", default="", metavar="ID", help="Node ID of the proxy, for the heading.")
@click.option("--zone", default="", help="Zone of the proxy.")
@click.option(
    "--role",
    type=click.Choice(["gateway", "sidecar", GRPC_ROLE]),
    default="gateway",
    show_default=True,
    help="Role of the proxy; grpc: a client with gRPC's own xDS support.",
)
@click.option("--pools", default="", metavar="A,B", help="Only these pools and their routes; default: all.")
@click.option(
    "--proxies",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of proxies of this role; gateways share the admission limits.",
)
@click.option(
    "--calling-zones",
    default="",
    metavar="A,B",
    help="Zones with proxies, besides --zone; default: every zone with engines.",
)
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice(list(_TYPES)),
    help="Only resources of this type; repeatable.",
)
@output_option("yaml", "json", "static", text="Output format (static: a whole Envoy bootstrap)")
def command(
    *,
    filename: tuple[Path, ...],
    node: str,
    zone: str,
    role: str,
    pools: str,
    proxies: int,
    calling_zones: str,
    types: tuple[str, ...],
    output: str,
) -> int:
    """Print the Envoy resources that a proxy would get, with every engine in rotation.

    Exit code: 0; 1 when the policies have problems; 2 usage error.
    """
    if output == "static" and (role == GRPC_ROLE or types):
        raise click.UsageError("-o static prints a whole Envoy configuration: remove --type and --role grpc")
    try:
        policies = load_policies(filename)
    except PolicyErrors as errors:
        click.echo(as_text(from_errors(errors)), err=True)
        return 1
    named = _listed(pools)
    if unknown := sorted(named - policies.pools.keys()):
        raise click.BadParameter(f"unknown pool {', '.join(unknown)}", param_hint="--pools")
    view = View(zone=zone, role=role, pools=named)
    items = _items(policies, view, proxies, _listed(calling_zones))
    wanted = {_TYPES[one] for one in types}
    shown = [item for item in items if not wanted or item.type_url in wanted]
    if output == "yaml":
        who = f"node {node}, " if node else ""
        click.echo(f"# for {who}zone {zone or '(none)'}, role {role}\n{as_yaml(shown)}", nl=False)
    else:
        answer = static_bootstrap(shown) if output == "static" else [_record(item) for item in shown]
        click.echo(json.dumps(answer, indent=2))
    return 0


def _listed(text: str) -> frozenset[str]:
    return frozenset(one.strip() for one in text.split(",") if one.strip())


def _items(
    policies: PolicySet, view: View, proxies: int, calling_zones: frozenset[str]
) -> tuple[TranslatedResource, ...]:
    fleet = declared(policies)
    if names := sorted(host_names(policies)):
        click.echo(
            f"engines at {', '.join(names)} left out: only `switchgear serve` resolves host names", err=True
        )
        fleet = resolved_fleet(fleet, {})
    zones = (calling_zones or _zones(fleet)) | {view.zone}
    connected = ConnectedProxies(by_role={view.role: proxies}, calling_zones=zones)
    decisions, _ = decide(policies, fleet, NO_MEMORY, proxies=connected, now_s=0.0)
    return translate(policies, fleet, decisions, view)


def _zones(fleet: Fleet) -> frozenset[str]:
    return frozenset(engine.zone for engines in fleet.pools.values() for engine in engines)


def _record(item: TranslatedResource) -> dict[str, Any]:
    return {
        "type": SHORT_NAMES[item.type_url],
        "name": item.name,
        "origins": list(item.origins),
        "resource": {"@type": item.type_url, **as_json(item)},
    }
