"""Conditions of a server: every state that operators should know, with code, severity, sentence and fix. Pure.

``conditions`` computes them from one input. `status`, `doctor`, `top`, the dashboard, the metric
``switchgear_condition`` and the conditions of custom resources show its result. A code's severity and fix are in
the table of codes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from engine.report import Verdict
from policies.codes import REMARKS
from xds_server.admin_api.status_types import (
    Condition,
    EngineStatus,
    FileProblem,
    PoliciesStatus,
    PoolStatus,
    ProxyStatus,
    ReachedLimit,
    RejectedObject,
    RolledBackResource,
    Severity,
)
from xds_server.admin_api.version_types import CanaryStatus, HistoryStatus
from xds_server.model.text import count_text, names_text

_CODES: Final[Mapping[tuple[str, str], str]] = MappingProxyType(
    {
        ("certificate", "unusable"): "SG210",
        ("rules", "unusable"): "SG213",
        ("token", "unusable"): "SG214",
        ("token", "open"): "SG215",
        ("secret", "unusable"): "SG216",
        ("secret", "withheld"): "SG218",
        ("rules", "refuses"): "SG225",
        ("state", "unwritten"): "SG234",
        ("", "ends"): "SG211",
        ("", "ended"): "SG212",
    }
)
"""By kind of file and defect."""

_LEVELS: Final = ("normal", "no hedging", "fallback", "load shedding", "maintenance")

_LIMITS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "SG280": "more streams, connections, node ids or kinds of proxies than allowed",
        "SG281": "CPU time used up, so messages wait",
        "SG282": "more access log entries than their part of the budget",
        "SG283": "streams ended, as the server is short of memory",
        "SG284": "no first message in time, or a message that is unfinished or too large",
        "SG285": "more connections or requests than the admin port allows",
        "SG286": "more events than are logged",
    }
)
"""Sentence by code of a limit."""

CANARY_RECENT_S: Final = 3600.0
"""A rolled-back canary is reported this long: long enough for an alert that it caused, too short for the next
shift. History and events keep it longer."""

BEHIND_S: Final = 30.0
"""A push takes milliseconds, a cluster that has to warm up to 15 s."""

SILENT_S: Final = 30.0
"""Agents send heartbeats every second; probes are seconds apart."""

ALONE: Final = 3
"""More engines of one pool and zone with the same verdict are one condition: a lost zone is one line."""

_RANK: Final = {Severity.CRITICAL.value: 0, Severity.WARNING.value: 1, Severity.INFO.value: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What conditions are computed from. ``not_ready``: why the xDS port is closed, empty if open.

    ``proxies`` may leave out those in sync that report their traffic; ``connected`` counts all, None: ``proxies``
    are all. ``applied``: the policy version that replaces the files, with its author; empty if none.
    """

    now_unix_s: float
    policies: PoliciesStatus
    proxies: Sequence[ProxyStatus] = ()
    connected: int | None = None
    engines: Sequence[EngineStatus] = ()
    pools: Sequence[PoolStatus] = ()
    file_problems: Sequence[FileProblem] = ()
    rolled_back: Sequence[RolledBackResource] = ()
    canary: CanaryStatus | None = None
    rejected: Sequence[RejectedObject] = ()
    limits: Sequence[ReachedLimit] = ()
    not_ready: str = ""
    applied: str = ""


def conditions(state: ServerState) -> tuple[Condition, ...]:
    """Every condition, the most severe first."""
    now = state.now_unix_s
    found = [
        *of_policies(state.policies, now, state.not_ready),
        *of_rejected_objects(state.rejected),
        *of_rolled_back(state.rolled_back, now),
        *of_file_problems(state.file_problems, now),
        *of_canary(state.canary, now),
        *of_applied(state.applied),
        *of_proxies(state.proxies, now, connected=state.connected),
        *of_pools(state.policies.pools, state.engines, state.pools),
        *of_engines(state.engines, now),
        *of_limits(state.limits, now),
    ]
    return tuple(sorted(found, key=severity_rank))


def severity_rank(one: Condition) -> int:
    """0 for the most severe; an unknown severity counts as critical."""
    return _RANK.get(one.severity, 0)


def condition(code: str, subject: str, sentence: str, **named: Any) -> Condition:
    """A condition with the severity, fix and runbook of its code."""
    known = REMARKS[code]
    return Condition(
        code=code,
        severity=Severity(known.severity),
        subject=subject,
        sentence=sentence,
        fix=known.fix,
        runbook=known.runbook,
        **named,
    )


def of_policies(policies: PoliciesStatus, now_unix_s: float, not_ready: str = "") -> Iterator[Condition]:
    """Refused, held-back, stale or unreachable policies; a server that is not ready."""
    state, since = policies.state, now_unix_s - policies.age_s
    lost = policies.lost_s
    if lost:
        serving = (
            "serving the last known state" if policies.serving_digest else "nothing is served until it answers"
        )
        names = names_text(sorted(lost))
        yield condition(
            "SG202",
            "policies",
            f"the Kubernetes API does not answer for {names}; {serving}",
            since_unix_s=now_unix_s - max(lost.values()),
        )
    if state == "refused":
        problems = policies.errors
        first = f": {problems[0].place}: {problems[0].message}" if problems else ""
        errors = count_text(len(problems), "error")
        text = f"{errors} in the policies; the last good version stays in force{first}"
        yield condition("SG200", "policies", text, since_unix_s=since)
    elif policies.held:
        yield condition("SG201", "policies", f"held back: {policies.held}", since_unix_s=since)
    elif not_ready:
        yield condition("SG207", "server", not_ready)
    elif state != "accepted" and not (lost and policies.serving_digest):
        yield condition("SG207", "server", f"the policies are {state}", since_unix_s=since)
    if policies.stale:
        yield condition("SG203", "policies", "serving the version restored from the last run")


def of_rejected_objects(rejected: Sequence[RejectedObject]) -> Iterator[Condition]:
    """Custom resources whose latest spec is not in force."""
    for one in rejected:
        yield condition("SG229", f"{one.kind} {one.namespace}/{one.name}", one.sentence, origins=(one.file,))


def of_proxies(
    proxies: Sequence[ProxyStatus], now_unix_s: float, *, connected: int | None = None
) -> Iterator[Condition]:
    """No proxy, refusals (NACK), late acknowledgements, missing telemetry; ``connected`` counts all proxies."""
    count = len(proxies) if connected is None else connected
    if not count:
        yield condition("SG206", "proxies", "no proxy is connected")
    late = 0
    for proxy in proxies:
        name = f"proxy {proxy.node}"
        for kind in proxy.types:
            since = now_unix_s - kind.age_s
            if kind.state == "NACK":
                refused = names_text(_with_places(one.name, one.origins) for one in kind.refused)
                reason = kind.refused[0].reason if kind.refused else "no reason given"
                yield condition(
                    "SG204",
                    name,
                    f"{kind.type} refused: {refused}: {reason}",
                    since_unix_s=since,
                    proxy=proxy.node,
                    origins=tuple(origin for one in kind.refused for origin in one.origins),
                )
            elif kind.state == "STALE" and kind.age_s > BEHIND_S:
                text = f"{kind.type} not acknowledged"
                yield condition("SG205", name, text, since_unix_s=since, proxy=proxy.node)
        late += any(kind.state == "STALE" and kind.age_s <= BEHIND_S for kind in proxy.types)
        yield from of_telemetry(proxy)
    if late:
        text = f"{count_text(late, 'proxy')} of {count} acknowledging the latest resources"
        yield condition("SG274", "proxies", text, count=late)


def of_telemetry(proxy: ProxyStatus) -> Iterator[Condition]:
    """A proxy that has been connected for a while and reports no traffic."""
    silent = [one.pool for one in proxy.traffic if one.telemetry_age_s is None]
    if silent and proxy.connected_s > SILENT_S:
        text = f"reports no traffic for {names_text(silent)}"
        yield condition("SG224", f"proxy {proxy.node}", text, proxy=proxy.node)


def of_rolled_back(rolled_back: Sequence[RolledBackResource], now_unix_s: float) -> Iterator[Condition]:
    """Resources that proxies lack because they were refused."""
    for one in rolled_back:
        places = names_text(one.origins) or "built-in defaults"
        by = names_text(one.refused_by, of=one.refusals) or "a proxy, in an earlier run of the server"
        held = f"; held back from others of {names_text(one.held_from)}" if one.held_from else ""
        has = (
            (one.on_content_before, "the previously accepted content"),
            (one.on_nothing, "no such resource"),
            (one.on_trial, "not refused it"),
        )
        instead = "; ".join(f"{_proxies(count)} {what}" for count, what in has if count)
        reason = f": {one.reason}" if one.reason else ""
        yield condition(
            "SG217",
            f"{one.type} {one.name}",
            f"refused by {by} and rolled back: {instead}{held} ({places}){reason}",
            since_unix_s=None if one.age_s is None else now_unix_s - one.age_s,
            origins=one.origins,
        )


def of_canary(canary: CanaryStatus | None, now_unix_s: float) -> Iterator[Condition]:
    """A running or recently rolled-back canary."""
    if canary is None:
        return
    by = canary.by or "unknown"
    ended_s = canary.ended_s
    if canary.state == "running":
        text = f"{canary.digest[:12]} by {by} on {canary.percent:g} % of the proxies"
        yield condition("SG275", "canary", text, since_unix_s=now_unix_s - canary.age_s)
    elif canary.state == "rolled-back" and ended_s is not None and ended_s <= CANARY_RECENT_S:
        reasons = "; ".join(canary.reasons) or "no reason given"
        text = f"{canary.digest[:12]} by {by} rolled back: {reasons}"
        yield condition("SG219", "canary", text, since_unix_s=now_unix_s - ended_s)


def applied_version(history: HistoryStatus | None) -> str:
    """``version 2 (0123456789ab), applied by ann``, if it replaces the policy files; otherwise empty."""
    served = None if history is None else next((one for one in reversed(history.versions) if one.serving), None)
    if history is None or served is None or not history.stands:
        return ""
    by = f" by {served.by}" if served.by else ""
    return f"version {served.number} ({served.digest[:12]}), {served.source}{by},"


def of_applied(applied: str) -> Iterator[Condition]:
    """Policies of an operator that replace the files."""
    if applied:
        yield condition("SG277", "policies", f"{applied} replaces the policy files until they change")


def of_file_problems(troubles: Sequence[FileProblem], now_unix_s: float) -> Iterator[Condition]:
    """Problems with certificates, access rules, tokens, secrets, and state files."""
    for one in troubles:
        code = _CODES.get((one.what, one.defect)) or _CODES.get(("", one.defect), "SG216")
        named = "" if one.file in one.sentence else f"{one.file}: "
        yield condition(code, one.what, f"{named}{one.sentence}", since_unix_s=now_unix_s - one.age_s)


def of_pools(
    declared: Sequence[str], engines: Sequence[EngineStatus], pools: Sequence[PoolStatus]
) -> Iterator[Condition]:
    """Pools without an engine, or with none in rotation; degraded pools; refused requests."""
    served = {engine.pool for engine in engines}
    for pool in declared:
        if pool not in served:
            yield condition(
                "SG228", f"pool {pool}", "has no engine: without a fallback its requests get 503", pool=pool
            )
    for one in pools:
        name = f"pool {one.pool}"
        if one.engines and not one.healthy:
            yield condition("SG272", name, f"none of {one.engines} engines is in rotation", pool=one.pool)
        if one.level:
            # Without a fallback, level 2 is level 1.
            level = 1 if one.level == 2 and not one.fallback else one.level
            word = _LEVELS[level] if level < len(_LEVELS) else "unknown"
            reason = f": {one.level_reason}" if one.level_reason else ""
            yield condition("SG270", name, f"degradation level {one.level} ({word}){reason}", pool=one.pool)
        lost = [adapter.adapter for adapter in one.adapters if adapter.lost and adapter.routed]
        if lost and one.healthy:
            text = f"no engine in rotation has {names_text(lost)}"
            yield condition("SG278", name, text, pool=one.pool, count=len(lost))
        for adapter in one.adapters:
            if adapter.wanted is not None and adapter.engines < adapter.wanted and adapter.trouble:
                text = f"on {adapter.engines} of {count_text(adapter.wanted, 'engine')}; {adapter.trouble}"
                yield condition("SG279", f"adapter {adapter.adapter} of {name}", text, pool=one.pool)
        if sum(one.shed_per_s.values()) > 0:
            yield condition("SG271", name, "requests are refused with 503", pool=one.pool)


def of_engines(engines: Sequence[EngineStatus], now_unix_s: float) -> Iterator[Condition]:
    """Ejected engines, those kept in rotation, those that refuse the probe or that nothing is heard of."""
    groups: dict[tuple[str, ...], list[EngineStatus]] = {}
    for engine in engines:
        code = _state_code(engine)
        if code:
            key = code, engine.pool, engine.zone, engine.verdict or "no report"
            groups.setdefault(key, []).append(engine)
    for (code, pool, zone, _verdict), members in groups.items():
        if len(members) <= ALONE:
            yield from (_state(code, one, now_unix_s) for one in members)
            continue
        first = _state(code, members[0], now_unix_s)
        yield condition(
            code,
            f"{len(members)} engines of {pool}, {zone or 'no zone'}",
            f"{first.sentence} ({members[0].engine}, for example)",
            since_unix_s=first.since_unix_s,
            pool=pool,
            engine=members[0].engine,
            count=len(members),
        )
    for engine in engines:
        if engine.verdict == Verdict.MISCONFIGURED:
            stays = "still in rotation: no peer answers this probe; " if engine.health == "HEALTHY" else ""
            yield _of_engine("SG227", engine, f"{stays}{engine.evidence}")
    yield from of_agent_contact(engines, now_unix_s)


def _state_code(engine: EngineStatus) -> str:
    """Code of an engine's state; empty for a good one, and for those with codes of their own."""
    if engine.health not in (None, "HEALTHY"):
        return "SG208"
    if engine.floor:
        return "SG273"
    other = engine.verdict not in (None, "ready", "busy", Verdict.MISCONFIGURED)
    return "SG276" if other else ""


def _state(code: str, engine: EngineStatus, now_unix_s: float) -> Condition:
    since = None if engine.health_age_s is None else now_unix_s - engine.health_age_s
    reason = engine.reason.removeprefix("kept in rotation: ") or engine.verdict or ""
    if code == "SG208":
        return _of_engine(code, engine, f"not in rotation: {reason}", since)
    if code == "SG273":
        return _of_engine(code, engine, f"kept in rotation by the capacity floor: {reason}")
    return _of_engine(code, engine, f"reports {engine.verdict}, and is in rotation")


def of_agent_contact(engines: Sequence[EngineStatus], now_unix_s: float) -> Iterator[Condition]:
    """Agents without contact, and engines without reports."""
    for engine in engines:
        agent, age_s = engine.agent, engine.report_age_s
        if agent is not None and not agent.connected:
            trouble = f": {agent.trouble}" if agent.trouble else ""
            yield _of_engine("SG222", engine, f"no contact with its agent{trouble}")
        if age_s is None:
            yield _of_engine("SG223", engine, "no report yet: its state is unknown")
        elif age_s > SILENT_S:
            yield _of_engine("SG223", engine, "no more reports", now_unix_s - age_s)


def of_limits(limits: Sequence[ReachedLimit], now_unix_s: float) -> Iterator[Condition]:
    """Limits of peers that were reached within the last minute."""
    for one in limits:
        peers = names_text(one.peers, of=one.count)
        yield condition(
            one.code,
            "peers",
            f"{_LIMITS[one.code]}{f': {peers}' if peers else ''}",
            since_unix_s=now_unix_s - one.age_s,
            count=max(1, one.count),
        )


def objects_by_code(found: Iterable[Condition]) -> Mapping[tuple[str, ...], float]:
    """Objects in each condition by code and severity, zeros included: values of ``switchgear_condition``."""
    counts: dict[tuple[str, ...], float] = {
        (one.code, one.severity): 0.0 for one in REMARKS.values() if one.severity
    }
    for one in found:
        counts[one.code, str(one.severity)] += one.count
    return counts


def _of_engine(code: str, engine: EngineStatus, sentence: str, since_unix_s: float | None = None) -> Condition:
    return condition(
        code,
        f"engine {engine.pool}/{engine.engine}",
        sentence,
        since_unix_s=since_unix_s,
        pool=engine.pool,
        engine=engine.engine,
    )


def _with_places(name: object, origins: Sequence[str]) -> str:
    return f"{name} ({names_text(origins) or 'built-in defaults'})"


def _proxies(count: int) -> str:
    return f"{count} {'proxy has' if count == 1 else 'proxies have'}"
