"""``switchgear describe``: one engine, pool, zone or proxy in detail."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from command_line.output_format import DATA, as_data, output_option
from command_line.wrapping import wrapped
from policies.findings import did_you_mean
from xds_server.admin_api.endpoints import EVENTS, PROXIES, WHY
from xds_server.admin_api.status_types import Condition, ProxyPoolStatus, ProxyStatus, TypeStatus
from xds_server.cli.admin_client import fetch
from xds_server.cli.connection_options import connection_options
from xds_server.cli.diagnostics import printable
from xds_server.cli.output_format import condition_line
from xds_server.cli.resource_types import complete_resources, parse_resources
from xds_server.cli.server_conditions import conditions_document
from xds_server.cli.why import as_text, event_line
from xds_server.diagnosis.conditions import of_proxies
from xds_server.model.text import age_text, count_text

_EXPLAINED: Final = {"engines": "engine", "pools": "pool", "zones": "zone"}
_PAST: Final = 5


@click.command(name="describe")
@click.argument(
    "resources",
    nargs=-1,
    required=True,
    callback=parse_resources,
    metavar="TYPE NAME | TYPE/NAME",
    shell_complete=complete_resources,
)
@connection_options
@output_option()
def command(resources: Mapping[str, tuple[str, ...]], admin: str, output: str) -> int:
    """Show the details of one engine, pool, zone or proxy.

    An engine, pool or zone: what `switchgear why` shows. A proxy: its sync state, limits, traffic and last events.

    Exit code: 0, or 2 when there is no such NAME, or no server answers.
    """
    ((kind, names), *others) = resources.items()
    if others or len(names) != 1:
        raise click.UsageError("name one resource: TYPE NAME, or TYPE/NAME")
    if kind == "proxies":
        return _describe_proxy(admin, names[0], output)
    if kind not in _EXPLAINED:
        raise click.UsageError(f"describe works with {', '.join((*_EXPLAINED, 'proxies'))}, not with {kind}")
    answer = fetch(admin, WHY, query=[("name", f"{_EXPLAINED[kind]}:{names[0]}")])
    if output in DATA:
        click.echo(as_data(answer.document, output), nl=False)
    else:
        click.echo(as_text(answer.value))
    return 0


def _describe_proxy(admin: str, node: str, output: str) -> int:
    answer = fetch(admin, PROXIES)
    rows = {
        row.node: (row, document)
        for row, document in zip(answer.value.proxies, answer.document["proxies"], strict=True)
    }
    if node not in rows:
        hint = did_you_mean(node, rows) or "list them with `switchgear get proxies`"
        raise click.UsageError(f"no proxy {node!r} is connected; {hint}")
    proxy, document = rows[node]
    listed = fetch(admin, EVENTS)
    # The server's own filter knows engines, zones and pools only.
    events = [
        (event, document)
        for event, document in zip(listed.value.events, listed.document["events"], strict=True)
        if event.proxy == node
    ]
    conditions = list(of_proxies([proxy], time.time()))
    if output in DATA:
        told: dict[str, Any] = {
            **document,
            **conditions_document(conditions),
            "events": [document for _, document in events],
        }
        click.echo(as_data(told, output), nl=False)
    else:
        lines = [*_lines(proxy, conditions), "", "Before:" if events else "Before: no events."]
        lines += [f"  {event_line(event)}" for event, _ in reversed(events[-_PAST:])]
        click.echo(wrapped(printable("\n".join(lines))))
    return 0


def _lines(proxy: ProxyStatus, conditions: Sequence[Condition]) -> Iterator[str]:
    yield f"Name:       {proxy.node}"
    yield f"Role:       {proxy.role}"
    yield f"Zone:       {proxy.zone or '-'}"
    yield f"Pools:      {', '.join(proxy.pools) or 'all'}"
    yield f"Peer:       {proxy.peer}"
    yield f"Protocol:   {proxy.protocol}"
    yield f"Connected:  {age_text(proxy.connected_s)} ago"
    yield "Resources:"
    for kind in proxy.types:
        yield f"  {_type_line(kind)}"
        for refused in kind.refused:
            places = ", ".join(refused.origins) or "built-in defaults"
            yield f"    refused: {refused.name} ({places}): {refused.reason}"
    yield "Traffic:" if proxy.traffic else "Traffic:    not reported"
    for part in proxy.traffic:
        yield f"  {_traffic_line(part)}"
    for one in conditions:
        yield condition_line(one, time.time())
        yield f"  {one.fix}"


def _type_line(kind: TypeStatus) -> str:
    version = f", version {kind.version}" if kind.version else ""
    return (
        f"{kind.type}: {kind.state} for {age_text(kind.age_s)}, {count_text(kind.resources, 'resource')}{version}"
    )


def _traffic_line(part: ProxyPoolStatus) -> str:
    limits = (
        ""
        if part.ceiling_interactive is None
        else f", limit {part.ceiling_interactive} interactive / {part.ceiling_batch} batch"
    )
    avoids = f", avoids {', '.join(part.shuns)}" if part.shuns else ""
    return (
        f"{part.pool}: {part.arrivals_per_s:.1f} req/s, {part.shed_per_s:.1f} shed/s, "
        f"{part.retries_per_s:.1f} retry/s, {part.in_flight} in flight{limits}{avoids}"
    )
