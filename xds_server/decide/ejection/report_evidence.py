"""What an engine's own reports ask for, before the pool or its answers are considered.

Two restraints. *Hysteresis*: several failed probes in a row to eject, several successful ones to return, so that
one lost packet is not an outage. *Freshness*: old reports count less. An engine without reports, or without recent
ones, counts as ready: losing sight of the fleet must not eject it, and Envoy's outlier detection still works.
"""

from dataclasses import dataclass
from typing import Final

from engine.report import STANDSTILL_READING, Doubt, EngineReport, ReportSource, Verdict
from policies.pool import Probe
from xds_server.decide.decisions import Ejector, EngineDecision, Health
from xds_server.model.fleet import Engine

# Four missed probes, and never less than a pause of this process may last.
_STALE_LOOKS: Final = 4
_STALE_FLOOR_S: Final = 5.0
# Evidence against an engine ages slower than evidence for it: a brief gap in its source must not send requests to
# a dead engine.
_STALE_OUT_FACTOR: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class EjectionRequest:
    """What one ejector asks for an engine; for ``VERDICT`` it is what its reports say.

    ``soft``: the engine is worse, not useless, so the pool may need it anyway. ``severity`` 0..1 ranks soft
    evidence. ``until_s``: monotonic time at which age alone changes the request; ``due_s`` the same where time is
    part of the decision, None where only evidence is. ``ordered``: an order, not evidence. ``floor``: the engine
    is kept in rotation by the capacity floor. ``ability``: the good answers that it yields, as a share of a good
    engine's; 1 where the evidence does not measure it. ``paced`` as in ``EngineDecision``.
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
    ability: float = 1.0
    paced: bool = False
    cut: bool = False
    returns: str = ""
    due_s: float | None = None


# Severity of soft evidence of a verdict, 0 to 1: the worst go first.
_SILENT: Final = 0.95
_DAMAGED: Final = 0.6


def can_change(before: EngineReport | None, now: EngineReport, decision: EngineDecision | None) -> bool:
    """Whether a report may change the decision: it is news, or the decision still lags behind."""
    if before is None or decision is None or before.verdict is not now.verdict:
        return True
    if is_at_standstill(before) != is_at_standstill(now):
        return True
    return (decision.health is Health.HEALTHY) != now.verdict.good


def is_at_standstill(report: EngineReport) -> bool:
    """Whether the engine stands still longer than its recent prompts explain."""
    return any(one.reading == STANDSTILL_READING for one in report.reasons)


def stale_after_s(probe: Probe) -> float:
    """Age in seconds from which a report no longer counts."""
    return max(_STALE_FLOOR_S, _STALE_LOOKS * (probe.interval + max(probe.timeout, probe.step_s)))


def fresh_for_s(source: ReportSource, probe: Probe) -> float:
    """Age in seconds from which a report of this source no longer counts for an engine in rotation."""
    return _STALE_FLOOR_S if source is ReportSource.AGENT else stale_after_s(probe)


def out_for_s(source: ReportSource, probe: Probe) -> float:
    """The same for an engine out of rotation."""
    return fresh_for_s(source, probe) * _STALE_OUT_FACTOR


def report_request(engine: Engine, probe: Probe, previous: EngineDecision | None, now_s: float) -> EjectionRequest:
    """What the reports of ``engine`` ask for at ``now_s``, given the previous decision."""
    report = engine.report
    if report is None or engine.received_at_s is None:
        reason = (
            "not probed: counted as ready"
            if not probe.enabled and not engine.has_agent
            else "no report yet: counted as ready"
        )
        return EjectionRequest(
            health=Health.HEALTHY, reason=reason, verdict=None, until_s=float("inf"), reported=False
        )
    judged = previous if previous is None or previous.shadow is None else previous.shadow
    was = _by_verdict(judged)
    out = judged is not None and judged.health is not Health.HEALTHY and was is not Health.HEALTHY
    patient_s = out_for_s(report.source, probe) if out else fresh_for_s(report.source, probe)
    fresh_until_s = engine.received_at_s + patient_s
    if now_s >= fresh_until_s and report.verdict is not Verdict.DRAINING:
        return EjectionRequest(
            health=Health.HEALTHY,
            reason=f"stale: no report for {patient_s:g} s (last: {report.verdict}); counted as ready",
            verdict=report.verdict,
            until_s=float("inf"),
            reported=False,
        )
    health, reason = _hysteresis(engine, report.verdict, probe, was)
    if health is Health.UNHEALTHY and _keeps_share(report, probe):
        percent = 100 * report.working_share
        return EjectionRequest(
            health=Health.HEALTHY,
            reason=f"kept in rotation with {percent:.0f} % of its share: {report.evidence}",
            verdict=report.verdict,
            until_s=fresh_until_s,
            ejector=Ejector.VERDICT,
            traffic_percent=percent,
            # The slots of its hung ranks are lost, whatever the floor allows.
            ability=report.working_share,
            returns=_returns(report.verdict, probe),
        )
    # A silent process may only be overloaded: ejecting many of those would overload the rest.
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


def _keeps_share(report: EngineReport, probe: Probe) -> bool:
    """Whether some data-parallel ranks hang, and the policy keeps the engine for the others."""
    return report.verdict is Verdict.HUNG and probe.hung_rank == "reduceShare" and 0 < report.working_share < 1


def _by_verdict(judged: EngineDecision | None) -> Health:
    """What the reports last asked for, granted or not; it sets how long old evidence counts."""
    if judged is None or judged.ejector is not Ejector.VERDICT or judged.traffic_percent < 100:
        return Health.HEALTHY
    return Health.DRAINING if judged.health is Health.DRAINING else Health.UNHEALTHY


def _returns(verdict: Verdict, probe: Probe) -> str:
    if verdict is Verdict.DRAINING:
        return "its agent ends the drain, or its process restarts"
    looks = probe.healthy_after
    return "1 successful probe" if looks == 1 else f"{looks} successful probes in a row"


def _hysteresis(engine: Engine, verdict: Verdict, probe: Probe, was: Health) -> tuple[Health, str]:
    """Health after enough results in a row, and a remark while the count is not reached."""
    if verdict is Verdict.DRAINING:
        return Health.DRAINING, ""
    # An agent reports a verdict only after several of its own checks.
    settled = engine.report is not None and engine.report.source is ReportSource.AGENT
    if verdict.good:
        if settled or was is Health.HEALTHY or engine.good_looks >= probe.healthy_after:
            return Health.HEALTHY, ""
        return was, f" ({engine.good_looks} of {probe.healthy_after} successful probes to return)"
    if settled or was is not Health.HEALTHY or engine.bad_looks >= probe.unhealthy_after:
        return Health.UNHEALTHY, ""
    return Health.HEALTHY, f" ({engine.bad_looks} of {probe.unhealthy_after} failed probes to eject)"
