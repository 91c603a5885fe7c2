"""``switchgear status``: policies, engines and proxies of a running server, and what is wrong."""

import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import click

from command_line.output_format import DATA, as_data, output_option
from command_line.table import Cell, Role, StyledText, TableColumn, styled, table_lines, terminal_width
from command_line.wrapping import wrapped
from engine.report import GpuSummary
from xds_server.admin_api.answers import ProblemList
from xds_server.admin_api.endpoints import CANARY, ENGINES, HISTORY, POLICIES, PROBLEMS, PROXIES
from xds_server.admin_api.status_types import (
    Condition,
    EngineStatus,
    PoliciesStatus,
    ProxyStatus,
    Severity,
    SyncState,
    TypeStatus,
)
from xds_server.admin_api.version_types import CanaryStatus, HistoryStatus, VersionStatus
from xds_server.cli.admin_client import AdminAnswer, UnknownPathError, fetch
from xds_server.cli.completion import complete_names
from xds_server.cli.connection_options import connection_options
from xds_server.cli.diagnostics import printable
from xds_server.cli.output_format import condition_line, redrawn, style_of
from xds_server.cli.server_conditions import conditions_document, fetch_conditions
from xds_server.cli.watch import LiveScreen
from xds_server.diagnosis.check_result import state_of
from xds_server.diagnosis.conditions import severity_rank
from xds_server.model.text import age_text, count_text

MOST_ROWS: Final = 20
MOST_OF_CODE: Final = 5
"""Conditions of one code that are shown."""

_PAUSE_S: Final = 1.0
_HEALTH_STYLES: Final = {"HEALTHY": "green", "DRAINING": "yellow", "UNHEALTHY": "bold red"}
_SYNC_STYLES: Final = {"SYNCED": "green", "STALE": "yellow", "NACK": "bold red"}
_CALM_GPU: Final = ("", "none")
_POLICY_STATES: Final = {"held": "held back", "unread": "not read yet", "unreached": "source not reached"}
_ENGINE_COLUMNS: Final = (
    TableColumn(title="engine", role=Role.IDENTITY),
    TableColumn(title="health"),
    TableColumn(title="verdict"),
    TableColumn(title="from", minor=True),
    TableColumn(title="age", role=Role.FIGURE),
    TableColumn(title="gpu", minor=True),
    TableColumn(title="why", role=Role.FREE),
)


@click.command(name="status", short_help="Show proxies, policies and engines, and what is wrong.")
@click.argument("proxy", metavar="[PROXY]", default="", shell_complete=complete_names("proxies"))
@connection_options
@click.option("--watch", "-w", is_flag=True, help="Keep watching; on a pipe, print again at each change.")
@click.option(
    "--fail-on",
    type=click.Choice([one.value for one in Severity]),
    default=Severity.CRITICAL.value,
    show_default=True,
    help="Least severity that gives exit code 1.",
)
@output_option("table", "wide", *DATA)
def command(*, proxy: str, admin: str, watch: bool, fail_on: str, output: str) -> int:
    """Show policies, engines and proxies of a running server, and what is wrong; with PROXY, of that proxy only.

    \b
    critical  your policies are not in force: a proxy refuses a resource (NACK) or one is rolled back; policies
              or a custom resource are refused or held back, or not read since the start; certificates, access
              rules, tokens or secrets are unusable or expired; the disk refuses state; an engine refuses its
              probe; a pool has no engine, or none in rotation; memory is short
    warning   engines or agents need a look, a proxy lags, a limit is reached, a certificate expires soon, a
              source that was read does not answer now
    info      a push or a canary is in progress, an engine is not ready, applied policies replace the files

    -o wide shows every engine, and cuts nothing.

    Exit code: 0, 1 when something is as severe as --fail-on or PROXY is not connected, 2 when no server answers.
    """
    if watch:
        _watch(admin, proxy, output)
    state = _state(admin, proxy)
    if proxy and not state.proxies:
        click.echo(f"proxy {printable(proxy)!r} is not connected", err=True)
        return 1
    click.echo(_answer(state, output), nl=False)
    return 1 if _severe(state, Severity(fail_on)) else 0


def _answer(state: "_State", output: str) -> str:
    if output in DATA:
        return as_data({**state.document, **conditions_document(state.conditions)}, output)
    return "".join(f"{line}\n" for line in _lines(state, wide=output == "wide"))


def _severe(state: "_State", fail_on: Severity) -> bool:
    least = tuple(Severity)[::-1].index(fail_on)
    return any(severity_rank(one) <= least for one in state.conditions)


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The answers to show; ``history`` and ``canary`` are None for a server without versions.

    ``document`` is the same as JSON, as the server sent it.
    """

    proxies: Sequence[ProxyStatus]
    policies: PoliciesStatus
    engines: Sequence[EngineStatus]
    history: HistoryStatus | None
    canary: CanaryStatus | None
    conditions: Sequence[Condition]
    document: Mapping[str, Any]
    proxy: str = ""


def _state(admin: str, proxy: str = "") -> _State:
    state = _whole_state(admin)
    if not proxy:
        return state
    document = {
        **state.document,
        "proxies": [one for one in state.document["proxies"] if one.get("node") == proxy],
        "engines": [],
    }
    proxies = [one for one in state.proxies if one.node == proxy]
    found = [one for one in state.conditions if one.proxy == proxy or one.subject in ("policies", "server")]
    return replace(state, proxies=proxies, engines=(), conditions=found, document=document, proxy=proxy)


def _whole_state(admin: str) -> _State:
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
        conditions=fetch_conditions(admin),
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
    """The version that is served, and the canary."""
    versions: list[dict[str, Any]] = history.document["versions"]
    version = next((one for one in reversed(versions) if one["serving"]), None)
    return {"version": version, "stands": history.value.stands, "canary": canary.document}


def _watch(admin: str, proxy: str, output: str) -> None:
    """Until Ctrl-C."""
    if redrawn() and output not in DATA:
        with LiveScreen() as screen:
            while True:
                try:
                    lines = list(_lines(_state(admin, proxy), wide=output == "wide"))
                except click.ClickException as error:
                    lines = [styled(printable(error.format_message()), "bold red")]
                screen.show(lines)
                time.sleep(_PAUSE_S)
    before: Any = None
    while True:
        try:
            state = _state(admin, proxy)
            now, text = _essence(state), _answer(state, output)
            if output == "json":  # one document a line, for readers of a stream
                text = json.dumps(json.loads(text), ensure_ascii=False) + "\n"
        except click.ClickException as error:
            now, text = error.format_message(), ""
            if now != before:
                click.echo(printable(error.format_message()), err=True)
        if now != before and text:
            separator = "---\n" if output == "yaml" else "\n" if before is not None and output not in DATA else ""
            click.echo(f"{separator}{text}", nl=False)
            sys.stdout.flush()
        before = now
        time.sleep(_PAUSE_S)


def _essence(state: _State) -> Any:
    """What makes ``--watch`` print again: all states, no ages and figures."""
    return (
        state.policies.state,
        state.policies.serving_digest,
        state.policies.held,
        [(one.node, [(kind.type, str(kind.state)) for kind in one.types]) for one in state.proxies],
        [(one.pool, one.engine, one.health, one.verdict) for one in state.engines],
        None if state.canary is None else state.canary.state,
        [one.key for one in state.conditions],
    )


def _lines(state: _State, *, wide: bool) -> Iterator[str]:
    width = None if wide else terminal_width()
    yield from _policy_lines(state)
    yield from _condition_lines(state.conditions, every=wide)
    if not state.proxy:
        yield from _engine_lines(state.engines, width, every=wide)
    yield from _proxy_lines(state.proxies, width)


def _condition_lines(conditions: Sequence[Condition], *, every: bool) -> Iterator[str]:
    """Each condition with its fix; the first of a code, unless ``every`` is set."""
    now_unix_s = time.time()
    shown: Counter[str] = Counter()
    for one in conditions:
        shown[one.code] += 1
        if shown[one.code] > MOST_OF_CODE and not every:
            continue
        yield styled(wrapped(_plain(condition_line(one, now_unix_s))), style_of(state_of(one.severity)))
        yield styled(wrapped(f"  {printable(one.fix)}"), "dim")
    for code, count in shown.items():
        if count > MOST_OF_CODE and not every:
            yield f"... and {count - MOST_OF_CODE} more of {code} (-o wide shows all)"


def _plain(text: str) -> str:
    return printable(text).replace("\n", " ")


def _policy_lines(state: _State) -> Iterator[str]:
    policies = state.policies
    word = _POLICY_STATES.get(policies.state, policies.state)
    serving = _serving(state)
    if policies.state != "accepted":
        serving = f"serving {serving}"
    yield _plain(f"Policies: {word} {age_text(policies.age_s)} ago, {serving}")
    for problem in policies.errors:
        where = f"{problem.place}: {problem.code} {problem.path}".rstrip()
        yield _plain(f"  {where}: {problem.message}")
    canary = state.canary
    if canary is not None and canary.state == "running":
        by = f" by {canary.by}" if canary.by else ""
        share = f"{canary.percent:g} % ({count_text(len(canary.proxies), 'proxy')})"
        left = f"running for {age_text(canary.age_s)}, {age_text(canary.left_s)} left"
        yield styled(_plain(f"  canary{by}: {share}, {left}: {canary.word}"), "yellow")


def _serving(state: _State) -> str:
    """``version 2 (0123456789ab), applied by ann; stays until the policy files change``."""
    digest = state.policies.serving_digest[:12]
    version = _served_version(state.history)
    if version is None or state.history is None:
        return digest or "nothing"
    text = f"version {version.number} ({digest})"
    if state.history.stands:
        by = f" by {version.by}" if version.by else ""
        text += f", {version.source}{by}; stays until the policy files change"
    return text


def _served_version(history: HistoryStatus | None) -> VersionStatus | None:
    return None if history is None else next((one for one in reversed(history.versions) if one.serving), None)


def _engine_lines(engines: Sequence[EngineStatus], width: int | None, *, every: bool) -> Iterator[str]:
    """Counts by pool and health, then the engines that matter most, or every one."""
    counts: dict[str, dict[str, int]] = {}
    for engine in engines:
        by_health = counts.setdefault(engine.pool, {})
        health = engine.health or "UNKNOWN"
        by_health[health] = by_health.get(health, 0) + 1
    for pool, by_health in counts.items():
        yield _plain(
            f"Engines of {pool}: " + ", ".join(f"{count} {health}" for health, count in sorted(by_health.items()))
        )
    if not engines:
        return
    shown = sorted(engines, key=_urgency)[: len(engines) if every else MOST_ROWS]
    yield from table_lines(_ENGINE_COLUMNS, [_engine_row(one) for one in shown], width=width)
    if len(engines) > len(shown):
        yield f"... and {len(engines) - len(shown)} more (-o wide shows all)"


def _engine_row(engine: EngineStatus) -> list[Cell]:
    health = engine.health or "UNKNOWN"
    age_s = engine.report_age_s
    return [
        printable(f"{engine.pool}/{engine.engine}"),
        StyledText(health, _HEALTH_STYLES.get(health, "")),
        engine.verdict or "-",
        _source(engine),
        "-" if age_s is None else age_text(age_s),
        _gpu(engine.gpu),
        printable(engine.reason if engine.health != "HEALTHY" else engine.evidence),
    ]


def _urgency(engine: EngineStatus) -> int:
    """0 for the most urgent."""
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
    """Requested action if any, number of GPUs, temperature of the hottest; the JSON has the reasons."""
    if gpu is None:
        return "-"
    degrees = [one.temperature_c for one in gpu.gpus if one.temperature_c is not None]
    heat = f", {max(degrees)} °C" if degrees else ""
    asks = "" if gpu.action in _CALM_GPU else f"{gpu.action}: "
    return f"{asks}{len(gpu.gpus)}{heat}" if gpu.gpus else f"{asks}none found"


def _proxy_lines(proxies: Sequence[ProxyStatus], width: int | None) -> Iterator[str]:
    if not proxies:
        return
    types = list(dict.fromkeys(kind.type for proxy in proxies for kind in proxy.types))
    columns = [
        TableColumn(title="proxy", role=Role.IDENTITY),
        TableColumn(title="sync"),
        TableColumn(title="zone"),
        TableColumn(title="role"),
        *(TableColumn(title=one) for one in types),
    ]
    yield from table_lines(
        columns, [_proxy_row(one, types) for one in sorted(proxies, key=lambda one: one.node)], width=width
    )


def _proxy_row(proxy: ProxyStatus, types: Sequence[str]) -> list[Cell]:
    states = {kind.type: kind for kind in proxy.types}
    worst = next(
        (state for state in (SyncState.NACK, SyncState.STALE) if any(kind.state == state for kind in proxy.types)),
        SyncState.SYNCED,
    )
    sync = StyledText(worst.value, _SYNC_STYLES[worst.value])
    return [printable(proxy.node), sync, proxy.zone or "-", proxy.role, *(_cell(states.get(one)) for one in types)]


def _cell(kind: TypeStatus | None) -> Cell:
    if kind is None:
        return "-"
    return StyledText(f"{kind.state} {age_text(kind.age_s)}", _SYNC_STYLES.get(kind.state, ""))
