"""``switchgear status``: each proxy and whether it has what it should, from the admin port of a server.

The answer is "no" (exit code 1) while what the operator wrote is not what is in force: a proxy refuses something,
or what one refused is rolled back; the policy files are refused or held back; certificates, rules of access,
tokens or secrets cannot be used or have ended; the disk refuses what a restart begins with. STALE alone is "yes",
for a push is under way, and so is a certificate that ends soon.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from command_line.output_format import DATA, as_data, output_option
from engine.report import GpuSummary
from xds_server.admin_api.answers import ProblemList
from xds_server.admin_api.endpoints import CANARY, ENGINES, HISTORY, POLICIES, PROBLEMS, PROXIES
from xds_server.admin_api.status_types import EngineStatus, PoliciesStatus, ProxyStatus, SyncState, TypeStatus
from xds_server.admin_api.version_types import CanaryStatus, HistoryStatus
from xds_server.cli.admin_client import AdminAnswer, UnknownPathError, fetch
from xds_server.cli.connection_options import connection_options
from xds_server.cli.diagnostics import printable
from xds_server.cli.output_format import check_line, console, show_table, style_of
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


def show_engines(console: Console, engines: Sequence[EngineStatus], *, every: bool = False) -> None:
    """Print a count by pool and health, and the engines that matter most, or every one."""
    most = len(engines) if every else MOST_ROWS
    counts: dict[str, dict[str, int]] = {}
    for engine in engines:
        by_health = counts.setdefault(engine.pool, {})
        health = engine.health or "UNKNOWN"
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
        health = engine.health or "UNKNOWN"
        said = engine.report_age_s
        table.add_row(
            Text(f"{engine.pool}/{engine.engine}"),
            Text(health, style=_HEALTH_STYLES.get(health, "")),
            Text(engine.verdict or "-"),
            Text(_source(engine)),
            Text("-" if said is None else age_text(said)),
            Text(_gpu(engine.gpu)),
            Text(
                engine.reason if engine.health != "HEALTHY" else engine.evidence,
                no_wrap=True,
                overflow="ellipsis",
            ),
        )
    show_table(console, table)
    if len(engines) > most:
        console.print(Text(f"... and {len(engines) - most} more (-o wide shows all)"))


def _calmness(engine: EngineStatus) -> int:
    """0 for what needs a look first."""
    if engine.health != "HEALTHY":
        return 0
    if engine.verdict not in ("ready", "busy"):
        return 1
    gpu, agent = engine.gpu, engine.agent
    calm = (gpu is None or gpu.action in _CALM_GPU) and (agent is None or agent.connected)
    return 3 if calm else 2


def _source(engine: EngineStatus) -> str:
    source = engine.source or "-"
    return source if engine.agent is None or engine.agent.connected else f"{source}, agent lost"


def _gpu(gpu: GpuSummary | None) -> str:
    """What the GPUs ask for where they do, how many there are and how hot the hottest is.

    Why none is seen is a sentence, which would push the reasons out of the table; the JSON has it.
    """
    if gpu is None:
        return "-"
    degrees = [one.temperature_c for one in gpu.gpus if one.temperature_c is not None]
    heat = f", {max(degrees)} °C" if degrees else ""
    asks = "" if gpu.action in _CALM_GPU else f"{gpu.action}: "
    return f"{asks}{len(gpu.gpus)}{heat}" if gpu.gpus else f"{asks}none seen"


_STYLES: Final = {"SYNCED": "green", "STALE": "yellow", "NACK": "bold red"}


@click.command(name="status", short_help="Show each proxy and whether it has what it should.")
@connection_options
@output_option("table", "wide", *DATA)
def command(admin: str, output: str) -> int:
    """Show each connected proxy, the policies and the engines of a running server.

    Exit code: 0 when what you wrote is in force, 1 when a proxy refuses a resource (NACK) or one is rolled back,
    when the policy files are refused or held back, when certificates, rules of access, tokens or secrets cannot
    be used or have ended, or when the disk refuses what a restart begins with, 2 when the server cannot be asked.
    """
    state = _state(admin)
    if output in DATA:
        remarks = [dict(one.record()) for one in _remarks(state)]
        click.echo(as_data({**state.document, "remarks": remarks}, output), nl=False)
    else:
        _show(state, wide=output == "wide")
    refused = any(kind.state == SyncState.NACK for proxy in state.proxies for kind in proxy.types)
    broken = failed(_on_trust(state))
    return 1 if refused or broken or state.policies.state != "accepted" else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The answers that the command shows; ``history`` and ``canary`` are None for a server without versions.

    ``document`` has the same as the server sent it.
    """

    proxies: Sequence[ProxyStatus]
    policies: PoliciesStatus
    engines: Sequence[EngineStatus]
    history: HistoryStatus | None
    canary: CanaryStatus | None
    troubles: ProblemList
    document: Mapping[str, Any]


def _state(admin: str) -> _State:
    proxies, policies, engines = fetch(admin, PROXIES), fetch(admin, POLICIES), fetch(admin, ENGINES)
    history: AdminAnswer[HistoryStatus] | None = None
    canary: AdminAnswer[CanaryStatus] | None = None
    with contextlib.suppress(UnknownPathError):  # of an older server
        history, canary = fetch(admin, HISTORY), fetch(admin, CANARY)
    try:
        troubles = fetch(admin, PROBLEMS)
    except UnknownPathError:
        troubles = AdminAnswer(value=ProblemList(), document={"troubles": [], "rolled_back": []})
    return _State(
        proxies=proxies.value.proxies,
        policies=policies.value,
        engines=engines.value.engines,
        history=None if history is None else history.value,
        canary=None if canary is None else canary.value,
        troubles=troubles.value,
        document={
            "proxies": proxies.document["proxies"],
            "policies": policies.document,
            "engines": engines.document["engines"],
            "served": {} if history is None or canary is None else _served_document(history, canary),
            "troubles": troubles.document["troubles"],
            "rolled_back": troubles.document["rolled_back"],
        },
    )


def _served_document(history: AdminAnswer[HistoryStatus], canary: AdminAnswer[CanaryStatus]) -> dict[str, Any]:
    """The version that is served, and the canary beside it."""
    versions: list[dict[str, Any]] = history.document["versions"]
    version = next((one for one in reversed(versions) if one["serving"]), None)
    return {"version": version, "stands": history.value.stands, "canary": canary.document}


def _show_served(console: Console, history: HistoryStatus, canary: CanaryStatus) -> None:
    version = next((one for one in reversed(history.versions) if one.serving), None)
    if version is not None:
        by = f" by {version.by}" if history.stands else ""
        until = "; it stands until the files change" if history.stands else ""
        console.print(Text(printable(f"  version {version.number}, {version.source}{by}{until}")), soft_wrap=True)
    if canary.state == "running":
        console.print(
            Text(
                printable(
                    f"  canary of {canary.by or 'somebody'} at {canary.percent:g} % "
                    f"({count_text(len(canary.proxies), 'proxy')}) for {age_text(canary.age_s)}, "
                    f"{age_text(canary.left_s)} left: {canary.word}"
                ),
                style="yellow",
            ),
            soft_wrap=True,
        )


def _remarks(state: _State) -> list[Check]:
    return [
        *on_policies(state.policies),
        *_first_remarks(state),
        *on_proxies(state.proxies),
        *on_engines(state.engines),
    ]


def _first_remarks(state: _State) -> list[Check]:
    """What stands between the policies that an operator wrote and those in force."""
    return [*_on_trust(state), *on_canary(state.canary)]


def _on_trust(state: _State) -> list[Check]:
    return [*on_rolled_back(state.troubles.rolled_back), *on_file_problems(state.troubles.troubles)]


def _show(state: _State, *, wide: bool) -> None:
    out = console(whole_lines=wide)
    _show_policies(out, state.policies)
    if state.history is not None and state.canary is not None:
        _show_served(out, state.history, state.canary)
    for one in _first_remarks(state):
        out.print(Text(printable(check_line(one)).replace("\n", " "), style=style_of(one.state)), soft_wrap=True)
        out.print(Text(f"  {printable(one.fix)}", style="dim"), soft_wrap=True)
    show_engines(out, state.engines, every=wide)
    _show_proxies(out, state.proxies)
    # Refusals and places are in the table above.
    for one in on_proxies(state.proxies):
        if one.code == "SG205":
            out.print(Text(printable(check_line(one)), style=style_of(one.state)), soft_wrap=True)


def _show_proxies(console: Console, proxies: Sequence[ProxyStatus]) -> None:
    if not proxies:
        console.print(Text("SG206 no proxy is connected"))
        return
    types = list(dict.fromkeys(kind.type for proxy in proxies for kind in proxy.types))
    table = Table("node", "zone", "role", *types, box=None, pad_edge=False)
    for proxy in sorted(proxies, key=lambda one: one.node):
        states = {kind.type: kind for kind in proxy.types}
        cells = [_cell(states.get(name)) for name in types]
        table.add_row(Text(proxy.node), Text(proxy.zone or "-"), Text(proxy.role), *cells)
    show_table(console, table)
    for proxy in proxies:
        for kind in proxy.types:
            for refused in kind.refused:
                places = ", ".join(refused.origins) or "built-in defaults"
                said = f"SG204 NACK {proxy.node} {kind.type} {refused.name} ({places})"
                console.print(Text(f"{said}: {refused.reason}"), soft_wrap=True)


def _cell(kind: TypeStatus | None) -> Text:
    if kind is None:
        return Text("-")
    return Text(f"{kind.state} {age_text(kind.age_s)}", style=_STYLES.get(kind.state, ""))


def _show_policies(console: Console, policies: PoliciesStatus) -> None:
    stale = ", SG203 stale: from the last run of the server" if policies.stale else ""
    serving = policies.serving_digest[:12] or "nothing"
    refused = "SG200 " if policies.state == "refused" else ""
    console.print(
        Text(f"{refused}policies {policies.state} for {age_text(policies.age_s)}; serving {serving}{stale}"),
        soft_wrap=True,
    )
    lost = policies.lost_s
    if lost:
        since, what = age_text(max(lost.values())), ", ".join(sorted(lost))
        doing = "serving what was last known" if policies.serving_digest else "nothing is served before it answers"
        console.print(
            Text(f"  SG202 Kubernetes API not reached for {since} ({what}): {doing}", style="yellow"),
            soft_wrap=True,
        )
    if policies.held:
        console.print(Text(f"  SG201 held back: {policies.held}"), soft_wrap=True)
    for problem in policies.errors:
        where = f"{problem.place}: {problem.code} {problem.path}".rstrip()
        console.print(Text(f"  {where}: {problem.message}"), soft_wrap=True)
