"""Requests that proxies count on an engine that will not answer them, though no verdict says hung.

Behind a black hole an engine looks healthy: it finishes its work and reports zero in flight, while its answers
never arrive. A stopped process does not even answer its own agent. So requests look lost while no call to the
engine succeeds and either its own count is zero and the proxies' is not, or its agent gets no response. After as
long as a try may take, these requests may be cut. A slow engine, or one with long streams, reports its requests.
"""

from collections.abc import Mapping
from statistics import median
from typing import Final

from engine.report import Doubt, ReportSource
from policies.pool import EnginePoolSpec, Probe
from xds_server.decide.decisions import MEASURED, AdmissionDecision, EngineDecision, Health, TimeLimits
from xds_server.decide.ejection.report_evidence import fresh_for_s
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pool_traffic import EngineTraffic

_LEAST_S: Final = 2.0
"""Two engine reports and two load reports: over shorter times, counts of different moments differ."""


def longest_try_s(pool: EnginePoolSpec, limits: TimeLimits | None, admission: AdmissionDecision | None) -> float:
    """Seconds that a try may take: the limit in force, at most the allowed wait plus the longest service.

    The declared longest service shrinks with the measured mean: declared times are often guesses, and callers on a
    stopped engine wait for them.
    """
    wait_s = 0.0 if admission is None else admission.wait_s
    measured_s = (
        []
        if admission is None
        else [one.service_s for one in admission.capacities.values() if one.source == MEASURED]
    )
    shorter = min(1.0, median(measured_s) / pool.service_time) if measured_s else 1.0
    longest_s = wait_s + shorter * pool.longest_s
    limit_s = None if limits is None else limits.per_try_s
    return max(_LEAST_S, longest_s if limit_s is None else min(limit_s, longest_s))


def lost_contact_since_s(
    engine: Engine,
    before: Mapping[EngineId, float],
    decided: EngineDecision | None,
    calls: EngineTraffic | None,
    *,
    probe: Probe,
    now_s: float,
) -> float | None:
    """Monotonic time since when the engine's requests have looked lost; None if they do not.

    ``before`` is the last result by engine, ``decided`` its last decision, and ``calls`` its traffic if fresh.
    """
    report = engine.report
    if report is None or engine.received_at_s is None or calls is None or calls.done_per_s:
        return None
    if report.source is ReportSource.AGENT and report.doubt is Doubt.SILENT:
        # Nothing was sent to it since its ejection. For a prober, silence may be its own network path.
        out = decided is not None and decided.health is Health.UNHEALTHY
        return before.get(engine.id, decided.since_s if decided is not None and out else now_s)
    fresh = now_s < engine.received_at_s + fresh_for_s(report.source, probe)
    if fresh and report.requests_in_flight == 0 and calls.in_flight:
        return before.get(engine.id, now_s)
    return None
