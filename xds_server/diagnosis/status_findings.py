"""Findings on a running server, each with its code, for ``status``, ``doctor`` and the dashboard."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from engine.report import Verdict
from xds_server.admin_api.status_types import (
    EngineStatus,
    FileProblem,
    PoliciesStatus,
    ProxyStatus,
    RolledBackResource,
)
from xds_server.admin_api.version_types import CanaryStatus
from xds_server.diagnosis.check_result import Check, fail, warn
from xds_server.model.text import age_text, count_text, names_text

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

CANARY_RECENT_S: Final = 3600.0
"""A rolled-back canary is reported this long: long enough for an alert that it caused, too short for the next
shift. History and events keep it longer."""

BEHIND_S: Final = 30.0
"""A push takes milliseconds, a cluster that has to warm up to 15 s."""

SILENT_S: Final = 30.0
"""Agents send heartbeats every second; probes are seconds apart."""


def on_policies(policies: PoliciesStatus) -> Iterator[Check]:
    """Refused, held-back, stale or unreachable policies."""
    state = policies.state
    lost = policies.lost_s
    if lost:
        serving = "serving the last known state" if policies.serving_digest else "nothing served yet"
        yield warn(
            "policies", "SG202", f"the Kubernetes API does not answer for {names_text(sorted(lost))}; {serving}"
        )
    if state == "refused":
        problems = policies.errors
        first = f": {problems[0].place}: {problems[0].message}" if problems else ""
        errors = count_text(len(problems), "error")
        yield fail("policies", "SG200", f"{errors} in the policies; the last good version stays in force{first}")
    elif policies.held:
        yield fail("policies", "SG201", f"held back: {policies.held}")
    elif state != "accepted" and not lost:
        yield fail("policies", "SG207", f"the policies are {state}")
    if policies.stale:
        yield warn("policies", "SG203", "serving the version restored from the last run")


def on_proxies(proxies: Sequence[ProxyStatus]) -> Iterator[Check]:
    """No proxy, refusals (NACK), late acknowledgements."""
    if not proxies:
        yield warn("proxies", "SG206", "no proxy is connected")
    for proxy in proxies:
        name = f"proxy {proxy.node}"
        for kind in proxy.types:
            if kind.state == "NACK":
                refused = names_text(str(one.name) for one in kind.refused)
                reason = kind.refused[0].reason if kind.refused else "no reason given"
                yield fail(name, "SG204", f"{kind.type} refused: {refused}: {reason}")
            elif kind.state == "STALE" and kind.age_s > BEHIND_S:
                yield warn(name, "SG205", f"{kind.type} not acknowledged for {kind.age_s:.0f} s")


def on_telemetry(proxies: Sequence[ProxyStatus]) -> Iterator[Check]:
    """Proxies that have been connected for a while and report no traffic."""
    for proxy in proxies:
        silent = [one.pool for one in proxy.traffic if one.telemetry_age_s is None]
        if silent and proxy.connected_s > SILENT_S:
            yield warn(f"proxy {proxy.node}", "SG224", f"reports no traffic for {names_text(silent)}")


def on_rolled_back(rolled_back: Sequence[RolledBackResource], *, aged: bool = True) -> Iterator[Check]:
    """Resources that proxies lack because they were refused; since when, if ``aged``."""
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
        when = f" {age_text(one.age_s)} ago" if aged and one.age_s is not None else ""
        sentence = f"refused by {by}{when} and rolled back: {instead}{held} ({places}){reason}"
        yield fail(f"{one.type} {one.name}", "SG217", sentence)


def on_canary(canary: CanaryStatus | None, *, aged: bool = True) -> Iterator[Check]:
    """A recently rolled-back canary; when, if ``aged``."""
    ended_s = None if canary is None else canary.ended_s
    if canary is None or canary.state != "rolled-back" or ended_s is None or ended_s > CANARY_RECENT_S:
        return
    whose = f"{canary.digest[:12]} by {canary.by or 'unknown'}"
    reasons = "; ".join(canary.reasons) or "no reason given"
    when = f" {age_text(ended_s)} ago" if aged else ""
    yield warn("canary", "SG219", f"{whose} rolled back{when}: {reasons}")


def on_file_problems(troubles: Sequence[FileProblem], *, aged: bool = True) -> Iterator[Check]:
    """Problems with certificates, access rules, tokens, secrets, and state files; ``aged`` as above."""
    for one in troubles:
        code = _CODES.get((one.what, one.defect)) or _CODES.get(("", one.defect), "SG216")
        make = warn if one.defect in ("ends", "open", "refuses") else fail
        said = "" if one.file in one.sentence else f"{one.file}: "
        yield make(one.what, code, f"{said}{one.sentence}{_since(one.age_s if aged else None)}")


def _proxies(count: int) -> str:
    return f"{count} {'proxy has' if count == 1 else 'proxies have'}"


def _since(age_s: float | None) -> str:
    return "" if age_s is None else f" (for {age_text(age_s)})"


def on_pools(pools: Sequence[str], engines: Sequence[EngineStatus]) -> Iterator[Check]:
    """Pools without any engine."""
    served = {engine.pool for engine in engines}
    for pool in pools:
        if pool not in served:
            yield fail(f"pool {pool}", "SG228", "has no engine: without a fallback its requests get 503")


def on_engines(engines: Sequence[EngineStatus]) -> Iterator[Check]:
    """Engines that refuse the probe, ejected engines, and engines without reports."""
    for engine in engines:
        if engine.verdict == Verdict.MISCONFIGURED:
            stays = "still in rotation: no peer answers this probe; " if engine.health == "HEALTHY" else ""
            yield fail(f"engine {engine.pool}/{engine.engine}", "SG227", f"{stays}{engine.evidence}")
    out = [f"{one.pool}/{one.engine}" for one in engines if one.health not in (None, "HEALTHY")]
    if out:
        yield warn("engines", "SG208", f"{len(out)} of {len(engines)} not in rotation: {names_text(out)}")
    yield from on_agent_contact(engines)


def on_agent_contact(engines: Sequence[EngineStatus]) -> Iterator[Check]:
    """Agents without contact, and engines without reports."""
    for engine in engines:
        name = f"engine {engine.pool}/{engine.engine}"
        agent, age_s = engine.agent, engine.report_age_s
        if agent is not None and not agent.connected:
            trouble = f": {agent.trouble}" if agent.trouble else ""
            yield warn(name, "SG222", f"no contact with its agent{trouble}")
        if age_s is None:
            yield warn(name, "SG223", "no report yet")
        elif age_s > SILENT_S:
            yield warn(name, "SG223", f"last report {age_s:.0f} s ago")
