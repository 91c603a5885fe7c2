"""``switchgear status``: each proxy and whether it has what it should, from the admin port of a server.

The answer is "no" (exit code 1) while what the operator wrote is not what is in force: a proxy refuses something,
or what one refused is rolled back; the policy files are refused or held back; certificates, rules of access,
tokens or secrets cannot be used or have ended; the disk refuses what a restart begins with. STALE alone is "yes",
for a push is under way, and so is a certificate that ends soon.
"""

from collections.abc import Sequence
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from xds_server.cli.admin_client import UnknownPathError, admin_option, request_json
from xds_server.cli.diagnostics import printable
from xds_server.cli.output_format import DATA, as_data, check_line, console, output_option, show_table, style_of
from xds_server.diagnosis.check_result import Check, failed
from xds_server.diagnosis.status_findings import (
    on_canary,
    on_engines,
    on_file_problems,
    on_policies,
    on_proxies,
    on_rolled_back,
)
from xds_server.model.text import age_text, count_text

MOST_ROWS: Final = 20
_HEALTH_STYLES: Final = {"HEALTHY": "green", "DRAINING": "yellow", "UNHEALTHY": "bold red"}
_CALM_GPU: Final = ("", "none")


def show_engines(console: Console, engines: Sequence[dict[str, Any]], *, every: bool = False) -> None:
    """Print a count by pool and health, and the engines that matter most, or every one."""
    most = len(engines) if every else MOST_ROWS
    counts: dict[str, dict[str, int]] = {}
    for engine in engines:
        by_health = counts.setdefault(engine["pool"], {})
        health = engine["health"] or "UNKNOWN"
        by_health[health] = by_health.get(health, 0) + 1
    for pool, by_health in counts.items():
        line = ", ".join(f"{count} {health}" for health, count in sorted(by_health.items()))
        console.print(Text(f"engines of {pool}: {line}"), soft_wrap=True)
    if not engines:
        return
    # In a narrow terminal the reason is cut, and nothing else: a row that runs over two lines is read as two.
    short = [Column(title, no_wrap=True) for title in ("engine", "health", "verdict", "from", "age", "GPU")]
    table = Table(*short, "why", box=None, pad_edge=False)
    for engine in sorted(engines, key=_calmness)[:most]:
        health = engine["health"] or "UNKNOWN"
        said = engine["report_age_s"]
        table.add_row(
            Text(f"{engine['pool']}/{engine['engine']}"),
            Text(health, style=_HEALTH_STYLES.get(health, "")),
            Text(engine["verdict"] or "-"),
            Text(_source(engine)),
            Text("-" if said is None else age_text(said)),
            Text(_gpu(engine["gpu"])),
            Text(
                engine["reason"] if engine["health"] != "HEALTHY" else engine["evidence"],
                no_wrap=True,
                overflow="ellipsis",
            ),
        )
    show_table(console, table)
    if len(engines) > most:
        console.print(Text(f"... and {len(engines) - most} more (-o wide shows all)"))


def _calmness(engine: dict[str, Any]) -> int:
    """0 for what needs a look first."""
    if engine["health"] != "HEALTHY":
        return 0
    if engine["verdict"] not in ("ready", "busy"):
        return 1
    gpu, agent = engine["gpu"], engine["agent"]
    calm = (gpu is None or gpu["action"] in _CALM_GPU) and (agent is None or agent["connected"])
    return 3 if calm else 2


def _source(engine: dict[str, Any]) -> str:
    source = engine["source"] or "-"
    return source if engine["agent"] is None or engine["agent"]["connected"] else f"{source}, agent lost"


def _gpu(gpu: dict[str, Any] | None) -> str:
    """What the GPUs ask for where they do, how many there are and how hot the hottest is.

    Why none is seen is a sentence, which would push the reasons out of the table; the JSON has it.
    """
    if gpu is None:
        return "-"
    degrees = [one["temperature_c"] for one in gpu["gpus"] if one["temperature_c"] is not None]
    heat = f", {max(degrees)} °C" if degrees else ""
    asks = "" if gpu["action"] in _CALM_GPU else f"{gpu['action']}: "
    return f"{asks}{len(gpu['gpus'])}{heat}" if gpu["gpus"] else f"{asks}none seen"


_STYLES: Final = {"SYNCED": "green", "STALE": "yellow", "NACK": "bold red"}


@click.command(name="status", short_help="Show each proxy and whether it has what it should.")
@admin_option
@output_option("table", "wide", default="table", text="Form of the answer; wide shows every engine, in full.")
def command(admin: str, output: str) -> int:
    """Show each connected proxy, the policies and the engines of a running server.

    Exit code: 0 when what you wrote is in force, 1 when a proxy refuses a resource (NACK) or one is rolled back,
    when the policy files are refused or held back, when certificates, rules of access, tokens or secrets cannot
    be used or have ended, or when the disk refuses what a restart begins with, 2 when the server cannot be asked.
    """
    answer = {
        "proxies": request_json(admin, "/v1/proxies")["proxies"],
        "policies": request_json(admin, "/v1/policies"),
        "engines": request_json(admin, "/v1/engines")["engines"],
        "served": _served(admin),
        **_troubles(admin),
    }
    if output in DATA:
        click.echo(
            as_data(answer | {"remarks": [dict(one.record()) for one in _remarks(answer)]}, output), nl=False
        )
    else:
        _show(answer, wide=output == "wide")
    refused = any(kind["state"] == "NACK" for proxy in answer["proxies"] for kind in proxy["types"])
    broken = failed(_on_trust(answer))
    return 1 if refused or broken or answer["policies"]["state"] != "accepted" else 0


def _troubles(admin: str) -> dict[str, Any]:
    """What is wrong with certificates, rules and the like, and what is rolled back; nothing of an older server."""
    try:
        answer = request_json(admin, "/v1/troubles")
    except UnknownPathError:
        return {"troubles": [], "rolled_back": []}
    return {"troubles": answer["troubles"], "rolled_back": answer["rolled_back"]}


def _served(admin: str) -> dict[str, Any]:
    """Which version is served, and the canary beside it; empty for a server that keeps no versions."""
    try:
        history, canary = request_json(admin, "/v1/history"), request_json(admin, "/v1/apply")
    except UnknownPathError:
        return {}
    version = next((one for one in reversed(history["versions"]) if one["serving"]), None)
    return {"version": version, "stands": history["stands"], "canary": canary}


def _show_served(console: Console, served: dict[str, Any]) -> None:
    version, canary = served.get("version"), served.get("canary")
    if version is not None:
        by = f" by {version['by']}" if served["stands"] else ""
        until = "; it stands until the files change" if served["stands"] else ""
        console.print(
            Text(printable(f"  version {version['number']}, {version['source']}{by}{until}")), soft_wrap=True
        )
    if canary and canary["state"] == "running":
        console.print(
            Text(
                printable(
                    f"  canary of {canary['by'] or 'somebody'} at {canary['percent']:g} % "
                    f"({count_text(len(canary['proxies']), 'proxy')}) for {age_text(canary['age_s'])}, "
                    f"{age_text(canary['left_s'])} left: {canary['word']}"
                ),
                style="yellow",
            ),
            soft_wrap=True,
        )


def _remarks(answer: dict[str, Any]) -> list[Check]:
    return [
        *on_policies(answer["policies"]),
        *_said_first(answer),
        *on_proxies(answer["proxies"]),
        *on_engines(answer["engines"]),
    ]


def _said_first(answer: dict[str, Any]) -> list[Check]:
    """What stands between what somebody wrote and what is in force."""
    return [*_on_trust(answer), *on_canary(answer["served"].get("canary"))]


def _on_trust(answer: dict[str, Any]) -> list[Check]:
    return [*on_rolled_back(answer["rolled_back"]), *on_file_problems(answer["troubles"])]


def _show(answer: dict[str, Any], *, wide: bool) -> None:
    out = console(whole_lines=wide)
    _show_policies(out, answer["policies"])
    _show_served(out, answer["served"])
    for one in _said_first(answer):
        out.print(Text(printable(check_line(one)).replace("\n", " "), style=style_of(one.state)), soft_wrap=True)
        out.print(Text(f"  {printable(one.fix)}", style="dim"), soft_wrap=True)
    show_engines(out, answer["engines"], every=wide)
    _show_proxies(out, answer["proxies"])
    # What is told above with its place need not be told again.
    for one in on_proxies(answer["proxies"]):
        if one.code == "SG205":
            out.print(Text(printable(check_line(one)), style=style_of(one.state)), soft_wrap=True)


def _show_proxies(console: Console, proxies: list[dict[str, Any]]) -> None:
    if not proxies:
        console.print(Text("SG206 no proxy is connected"))
        return
    types = list(dict.fromkeys(kind["type"] for proxy in proxies for kind in proxy["types"]))
    table = Table("node", "zone", "role", *types, box=None, pad_edge=False)
    for proxy in sorted(proxies, key=lambda one: str(one["node"])):
        states = {kind["type"]: kind for kind in proxy["types"]}
        cells = [_cell(states.get(name)) for name in types]
        table.add_row(Text(proxy["node"]), Text(proxy["zone"] or "-"), Text(proxy["role"]), *cells)
    show_table(console, table)
    for proxy in proxies:
        for kind in proxy["types"]:
            for refused in kind["refused"]:
                places = ", ".join(refused["origins"]) or "built-in defaults"
                said = f"SG204 NACK {proxy['node']} {kind['type']} {refused['name']} ({places})"
                console.print(Text(f"{said}: {refused['reason']}"), soft_wrap=True)


def _cell(kind: dict[str, Any] | None) -> Text:
    if kind is None:
        return Text("-")
    return Text(f"{kind['state']} {age_text(kind['age_s'])}", style=_STYLES.get(kind["state"], ""))


def _show_policies(console: Console, policies: dict[str, Any]) -> None:
    stale = ", SG203 stale: from the last run of the server" if policies["stale"] else ""
    serving = policies["serving_digest"][:12] or "nothing"
    refused = "SG200 " if policies["state"] == "refused" else ""
    console.print(
        Text(f"{refused}policies {policies['state']} for {age_text(policies['age_s'])}; serving {serving}{stale}"),
        soft_wrap=True,
    )
    lost = policies.get("lost_s")
    if lost:
        since, what = age_text(max(lost.values())), ", ".join(sorted(lost))
        doing = (
            "serving what was last known" if policies["serving_digest"] else "nothing is served before it answers"
        )
        console.print(
            Text(f"  SG202 Kubernetes API not reached for {since} ({what}): {doing}", style="yellow"),
            soft_wrap=True,
        )
    if policies["held"]:
        console.print(Text(f"  SG201 held back: {policies['held']}"), soft_wrap=True)
    for problem in policies["errors"]:
        where = f"{problem['place']}: {problem['code']} {problem['path']}".rstrip()
        console.print(Text(f"  {where}: {problem['message']}"), soft_wrap=True)
