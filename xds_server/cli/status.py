"""``switchgear status``: each proxy and whether it has what it should, from the admin port of a server.

The answer is "no" (exit code 1) while any proxy refuses something, and while the policy files are refused or
held back: then what the operator wrote is not what is served. STALE alone is "yes": a push is under way.
"""

import json
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from xds_server.cli.asking import admin_option, ask
from xds_server.cli.engines_table import age, show_engines

_STYLES: Final = {"SYNCED": "green", "STALE": "yellow", "NACK": "bold red"}


@click.command(name="status", short_help="Show each proxy and whether it has what it should.")
@admin_option
@click.option(
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Form of the answer.",
)
def command(admin: str, output: str) -> int:
    """Show each connected proxy, the policies and the engines of a running server.

    Exit code: 0 when nothing is refused, 1 when a proxy refuses a resource (NACK) or the policy files are
    refused or held back, 2 when the server cannot be asked.
    """
    answer = {
        "proxies": ask(admin, "/v1/proxies")["proxies"],
        "policies": ask(admin, "/v1/policies"),
        "engines": ask(admin, "/v1/engines")["engines"],
    }
    if output == "json":
        click.echo(json.dumps(answer, indent=2, ensure_ascii=False))
    else:
        _show(answer)
    refused = any(kind["state"] == "NACK" for proxy in answer["proxies"] for kind in proxy["types"])
    return 1 if refused or answer["policies"]["state"] != "accepted" else 0


def _show(answer: dict[str, Any]) -> None:
    console = Console()
    _show_policies(console, answer["policies"])
    show_engines(console, answer["engines"])
    proxies = answer["proxies"]
    if not proxies:
        console.print("no proxy is connected")
        return
    types = list(dict.fromkeys(kind["type"] for proxy in proxies for kind in proxy["types"]))
    table = Table("node", "zone", "role", *types, box=None, pad_edge=False)
    for proxy in sorted(proxies, key=lambda one: str(one["node"])):
        states = {kind["type"]: kind for kind in proxy["types"]}
        cells = [_cell(states.get(name)) for name in types]
        table.add_row(Text(proxy["node"]), Text(proxy["zone"] or "-"), Text(proxy["role"]), *cells)
    console.print(table)
    for proxy in proxies:
        for kind in proxy["types"]:
            for refused in kind["refused"]:
                places = ", ".join(refused["origins"]) or "built-in defaults"
                console.print(
                    Text(f"NACK {proxy['node']} {kind['type']} {refused['name']} ({places}): {refused['reason']}"),
                    soft_wrap=True,
                )


def _cell(kind: dict[str, Any] | None) -> Text:
    if kind is None:
        return Text("-")
    return Text(f"{kind['state']} {age(kind['age_s'])}", style=_STYLES.get(kind["state"], ""))


def _show_policies(console: Console, policies: dict[str, Any]) -> None:
    stale = ", stale: from the last run of the server" if policies["stale"] else ""
    serving = policies["serving_digest"][:12] or "nothing"
    console.print(
        Text(f"policies {policies['state']} for {age(policies['age_s'])}; serving {serving}{stale}"),
        soft_wrap=True,
    )
    lost = policies.get("lost_s")
    if lost:
        since, what = age(max(lost.values())), ", ".join(sorted(lost))
        doing = (
            "serving what was last known" if policies["serving_digest"] else "nothing is served before it answers"
        )
        console.print(
            Text(f"  Kubernetes API not reached for {since} ({what}): {doing}", style="yellow"), soft_wrap=True
        )
    if policies["held"]:
        console.print(Text(f"  held back: {policies['held']}"), soft_wrap=True)
    for problem in policies["errors"]:
        where = f"{problem['place']}: {problem['code']} {problem['path']}".rstrip()
        console.print(Text(f"  {where}: {problem['message']}"), soft_wrap=True)
