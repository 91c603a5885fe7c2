"""``switchgear status``: each proxy and whether it has what it should, from the admin port of a server.

The answer is "no" (exit code 1) while any proxy refuses something, and while the policy files are refused or
held back: then what the operator wrote is not what is served. STALE alone is "yes": a push is under way.
"""

import http.client
import json
from typing import Any, Final
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from xds_server.cli.engines_table import age, show_engines

TIMEOUT_S: Final = 5.0
_STYLES: Final = {"SYNCED": "green", "STALE": "yellow", "NACK": "bold red"}


@click.command(name="status", short_help="Show each proxy and whether it has what it should.")
@click.option(
    "--admin",
    default="http://127.0.0.1:18001",
    show_default=True,
    envvar="SWITCHGEAR_ADMIN_URL",
    metavar="URL",
    help="Admin port of the server.",
)
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
        "proxies": _ask(admin, "/v1/proxies")["proxies"],
        "policies": _ask(admin, "/v1/policies"),
        "engines": _ask(admin, "/v1/engines")["engines"],
    }
    if output == "json":
        click.echo(json.dumps(answer, indent=2, ensure_ascii=False))
    else:
        _show(answer)
    refused = any(kind["state"] == "NACK" for proxy in answer["proxies"] for kind in proxy["types"])
    return 1 if refused or answer["policies"]["state"] != "accepted" else 0


def _ask(admin: str, path: str) -> Any:
    """The JSON at ``path`` of the admin port; ``click.UsageError`` when it cannot be had."""
    host, port = _place(admin)
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
    except http.client.HTTPException as error:  # what it says instead may be binary
        raise click.UsageError(f"{admin} answers, but not in HTTP: is it the --admin port?") from error
    except OSError as error:
        reason = str(error) or type(error).__name__
        raise click.UsageError(
            f"no server answers at {admin}: {reason}. Is `switchgear serve` running?"
        ) from error
    finally:
        connection.close()
    try:
        if answer.status == http.client.OK:
            return json.loads(body)
    except ValueError as error:
        raise click.UsageError(f"{admin} answers, but not as Switchgear does: is it the --admin port?") from error
    raise click.UsageError(f"{admin}{path} answered {answer.status}: is it the --admin port of a Switchgear?")


def _place(admin: str) -> tuple[str, int]:
    """Host and port of the admin port; ``click.UsageError`` when ``admin`` names none."""
    wrong = click.UsageError(f"--admin {admin!r} is not an address such as http://127.0.0.1:18001")
    try:
        url = urlsplit(admin if "//" in admin else f"http://{admin}")
        host, port = url.hostname, url.port
    except ValueError as error:
        raise wrong from error
    if url.scheme != "http" or not host:
        raise wrong
    return host, port or 80


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
    if policies["held"]:
        console.print(Text(f"  held back: {policies['held']}"), soft_wrap=True)
    for problem in policies["errors"]:
        where = f"{problem['place']}: {problem['code']} {problem['path']}".rstrip()
        console.print(Text(f"  {where}: {problem['message']}"), soft_wrap=True)
