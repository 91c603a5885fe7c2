"""What one engine's own reports ask for, before anyone weighs the pool or looks at its answers.

Two rules of restraint live here. *Hysteresis*: so many bad looks in a row to leave, so many good ones to come
back, so that one lost packet is not an outage. *Freshness*: a report says less the older it is. An engine nobody
has spoken of, or not for a long time, counts as ready: losing our view of the fleet must not take the fleet
away, and Envoy's own outlier detection still stands guard.
"""

from dataclasses import dataclass
from typing import Final

from engine.report import Doubt, EngineReport, ReportSource, Verdict
from policies.pool import Probe
from xds_server.decide.decisions import Ejector, EngineDecision, Health
from xds_server.model.fleet import Engine

# Four looks missed, and never less than a pause of our own process may last.
_STALE_LOOKS: Final = 4
_STALE_FLOOR_S: Final = 5.0
# Evidence against an engine ages slower than evidence for it: it is out for a reason, and a source that only
# hiccuped must not send requests to a corpse.
_STALE_OUT_FACTOR: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class EjectionRequest:
    """What one ejector asks for an engine; of the ``VERDICT`` it is what its reports say.

    ``soft``: the evidence is that it is worse, not that it is useless, so that the pool may need it anyway.
    ``severity`` 0..1 orders soft evidence. ``until_s``: monotonic time at which age alone
    changes the wish; ``due_s`` the same where time is part of what was decided, None where only evidence is.
    ``ordered``: somebody said so, and it is no judgement. ``floor``: the engine is kept in against this wish.
    """

    health: Health
    reason: str
    verdict: Verdict | None
    until_s: float
    soft: bool = False
    doubt: Doubt | None = None
    reported: bool = True
    ejector: Ejector | None = None
    severity: float = 0.0
    ordered: bool = False
    floor: bool = False
    traffic_percent: float = 100.0
    cut: bool = False
    returns: str = ""
    due_s: float | None = None


# How bad soft evidence of a verdict is, between 0 and 1: the worst leave first.
_SILENT: Final = 0.95
_DAMAGED: Final = 0.6


def can_change(before: EngineReport | None, now: EngineReport, decision: EngineDecision | None) -> bool:
    """Whether a report may lead to another decision: it is news, or the decision is still catching up."""
    if before is None or decision is None or before.verdict is not now.verdict:
        return True
    return (decision.health is Health.HEALTHY) != now.verdict.good


def stale_after_s(probe: Probe) -> float:
    """Age in seconds from which a report no longer speaks for an engine."""
    return max(_STALE_FLOOR_S, _STALE_LOOKS * (probe.interval + max(probe.timeout, probe.stall_after)))


def fresh_for_s(source: ReportSource, probe: Probe) -> float:
    """Age in seconds from which a report of this source no longer speaks for an engine that is in."""
    return _STALE_FLOOR_S if source is ReportSource.AGENT else stale_after_s(probe)


def report_request(engine: Engine, probe: Probe, previous: EngineDecision | None, now_s: float) -> EjectionRequest:
    """What the reports of ``engine`` ask for at ``now_s``, given what was decided before."""
    report = engine.report
    if report is None or engine.received_at_s is None:
        reason = (
            "not probed: counted as ready"
            if not probe.enabled and not engine.has_agent
            else "nothing heard yet: counted as ready until then"
        )
        return EjectionRequest(
            health=Health.HEALTHY, reason=reason, verdict=None, until_s=float("inf"), reported=False
        )
    judged = previous if previous is None or previous.shadow is None else previous.shadow
    was = _by_verdict(judged)
    out = judged is not None and judged.health is not Health.HEALTHY and was is not Health.HEALTHY
    patient_s = fresh_for_s(report.source, probe) * (_STALE_OUT_FACTOR if out else 1)
    fresh_until_s = engine.received_at_s + patient_s
    if now_s >= fresh_until_s and report.verdict is not Verdict.DRAINING:
        return EjectionRequest(
            health=Health.HEALTHY,
            reason=f"stale: nothing heard for {patient_s:g} s (last was {report.verdict}): counted as ready",
            verdict=report.verdict,
            until_s=float("inf"),
            reported=False,
        )
    health, reason = _hysteresis(engine, report.verdict, probe, was)
    # Silence may be a process that is only overwhelmed: taking many of those out would bury the rest.
    soft = health is Health.UNHEALTHY and (not report.verdict.hard or report.doubt is Doubt.SILENT)
    return EjectionRequest(
        health=health,
        reason=f"{report.verdict}: {report.evidence}{reason}",
        verdict=report.verdict,
        until_s=fresh_until_s,
        soft=soft,
        doubt=report.doubt,
        ejector=None if health is Health.HEALTHY else Ejector.VERDICT,
        severity=(_SILENT if report.doubt is Doubt.SILENT else _DAMAGED) if soft else 0.0,
        ordered=health is Health.DRAINING,
        returns="" if health is Health.HEALTHY else _returns(report.verdict, probe),
    )


def _by_verdict(judged: EngineDecision | None) -> Health:
    """What the reports had asked for, whether it was granted or not, as far as that decides how patient to be."""
    if judged is None or judged.ejector is not Ejector.VERDICT:
        return Health.HEALTHY
    return Health.DRAINING if judged.health is Health.DRAINING else Health.UNHEALTHY


def _returns(verdict: Verdict, probe: Probe) -> str:
    if verdict is Verdict.DRAINING:
        return "its agent says that it no longer drains, or another process starts there"
    looks = probe.healthy_after
    return f"{looks} good look{'s' if looks > 1 else ''} in a row"


def _hysteresis(engine: Engine, verdict: Verdict, probe: Probe, was: Health) -> tuple[Health, str]:
    """Health after so many looks in a row, and a remark where the count is not reached yet."""
    if verdict is Verdict.DRAINING:
        return Health.DRAINING, ""
    # An agent has looked often before it says anything.
    settled = engine.report is not None and engine.report.source is ReportSource.AGENT
    if verdict.good:
        if settled or was is Health.HEALTHY or engine.good_looks >= probe.healthy_after:
            return Health.HEALTHY, ""
        return was, f" ({engine.good_looks} of {probe.healthy_after} good looks to return)"
    if settled or was is not Health.HEALTHY or engine.bad_looks >= probe.unhealthy_after:
        return Health.UNHEALTHY, ""
    return Health.HEALTHY, f" ({engine.bad_looks} of {probe.unhealthy_after} bad looks to leave)"
