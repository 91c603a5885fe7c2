"""``switchgear config-dump``: the intended configuration of a proxy, or how the live Envoy differs."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import click
import yaml

from command_line.output_format import DATA, as_data, output_option
from xds_server.admin_api.answers import ProxyResources
from xds_server.admin_api.endpoints import RESOURCES
from xds_server.cli.admin_client import AdminAnswer, AdminApiError, fetch
from xds_server.cli.completion import complete_names
from xds_server.cli.connection_options import connection_options
from xds_server.cli.diagnostics import printable
from xds_server.cli.envoy_admin import EnvoyConfig, config_of_envoy, config_of_file
from xds_server.diagnosis.config_diff import TYPES, ProxyConfigDiff, ResourceDiff, config_diff


@click.command(name="config-dump", short_help="Show a proxy's intended configuration, or how Envoy's differs.")
@click.argument("proxy", metavar="[PROXY]", default="", shell_complete=complete_names("proxies"))
@connection_options
@click.option("--diff", is_flag=True, help="Compare with the live Envoy; needs --envoy-admin or --envoy-dump.")
@click.option("--envoy-admin", metavar="URL", help="Admin port of the Envoy, e.g. http://127.0.0.1:9901.")
@click.option(
    "--envoy-dump",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Saved /config_dump?include_eds of the Envoy; - reads stdin.",
)
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice(TYPES, case_sensitive=False),
    help="Only resources of this type; repeatable.",
)
@output_option()
def command(
    *,
    proxy: str,
    admin: str,
    diff: bool,
    envoy_admin: str | None,
    envoy_dump: Path | None,
    types: tuple[str, ...],
    output: str,
) -> int:
    """Show every resource that PROXY (a node id) should have, including its own runtime layer.

    --diff shows only what differs in the live Envoy; values are compared by meaning. PROXY may then be left out.
    An Envoy that is not connected is compared with what it would be served now.

    Exit code: 0, with --diff 1 on a difference, 2 when no server or Envoy answers, or on a usage error.
    """
    if diff != bool(envoy_admin or envoy_dump) or (envoy_admin and envoy_dump):
        raise click.UsageError("--diff needs exactly one of --envoy-admin URL and --envoy-dump FILE")
    wanted = types or TYPES
    if not diff:
        if not proxy:
            raise click.UsageError("PROXY is missing; list the connected ones with `switchgear get proxies`")
        _show(_intended(admin, proxy), wanted, output)
        return 0
    seen = config_of_envoy(envoy_admin) if envoy_admin else config_of_file(envoy_dump or Path())
    if proxy and seen.node not in ("", proxy):
        raise click.UsageError(f"this is Envoy {seen.node!r}, not {proxy!r}")
    name = proxy or seen.node
    if not name:
        raise click.UsageError("the Envoy has no node id; name it with PROXY")
    meant = _intended(admin, name, seen)
    connected, unseen = meant.value.connected, dict(seen.unseen)
    if not connected:
        unseen["RTDS"] = unseen["ECDS"] = "its share of limits is computed when it connects"
    unseen = {kind: why for kind, why in unseen.items() if kind in wanted}
    answer = config_diff(meant.value.resources, seen.found, unseen, wanted)
    if output in DATA:
        click.echo(as_data({"proxy": name, "connected": connected, **_record(answer)}, output), nl=False)
    else:
        absent = f"SG256 {name} is not connected: compared with what it would be served now"
        click.echo(printable("\n".join([*([] if connected else [absent]), *_difference_lines(name, answer)])))
    return 1 if answer.differences else 0


def _intended(admin: str, proxy: str, seen: EnvoyConfig | None = None) -> AdminAnswer[ProxyResources]:
    """What a proxy should have; with its node attributes also for a proxy that is not connected."""
    asked = [("node", proxy), *([] if seen is None else [("absent", "true"), *seen.node_attributes])]
    try:
        return fetch(admin, RESOURCES, query=asked)
    except AdminApiError as error:
        raise click.UsageError(error.format_message()) from error


def _show(answer: AdminAnswer[ProxyResources], types: Collection[str], output: str) -> None:
    if output in DATA:
        resources = [one for one in answer.document["resources"] if one["type"] in types]
        click.echo(as_data({"resources": resources}, output), nl=False)
        return
    for one in answer.value.resources:
        if one.type not in types:
            continue
        places = f", from {', '.join(one.origins)}" if one.origins else ""
        click.echo(f"---  # {one.type} {one.name} version {one.version}{places}")
        content = one.content
        text = "# not shown\n" if content is None else yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        click.echo(text, nl=False)


def _difference_lines(proxy: str, answer: ProxyConfigDiff) -> Iterator[str]:
    for one in answer.differences:
        yield f"SG254 {one.type} {one.name}: {one.what}{_places(one)}"
        yield from (f"  {line}" for line in one.lines)
    for kind, why in answer.unseen.items():
        yield f"SG255 {kind} not compared: {why}"
    same = ", ".join(f"{count} {kind}" for kind, count in answer.same.items()) or "nothing"
    count = len(answer.differences)
    yield f"{proxy}: {same} the same; {f'{count} different' if count else 'no difference'}"


def _places(one: ResourceDiff) -> str:
    return f" ({', '.join(one.origins)})" if one.origins else ""


def _record(answer: ProxyConfigDiff) -> dict[str, Any]:
    return {
        "same": dict(answer.same),
        "differences": [
            {
                "code": "SG254",
                "type": one.type,
                "name": one.name,
                "what": one.what,
                "origins": list(one.origins),
                "lines": list(one.lines),
            }
            for one in answer.differences
        ],
        "not_compared": [{"code": "SG255", "type": kind, "why": why} for kind, why in answer.unseen.items()],
    }
