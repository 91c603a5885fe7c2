"""Requests that proxies count on an engine that will not answer them, though no verdict says that it hangs.

Behind a black hole an engine is well: it finishes what it got and says that it holds nothing, while its answers
never arrive. A process that is stopped says nothing even to the agent beside it. So requests look lost while no
call to the engine ends well and either its own count is zero and that of the proxies is not, or its agent hears
nothing from it. When that has been so for as long as a try may take, what it holds may be ended. An engine that is
only slow says what it holds, and so does one whose streams are long.
"""

from collections.abc import Mapping
from typing import Final

from engine.report import Doubt, ReportSource
from policies.pool import EnginePoolSpec, Probe
from xds_server.decide.decisions import AdmissionDecision, EngineDecision, Health, TimeLimits
from xds_server.decide.ejection.report_evidence import fresh_for_s
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pool_traffic import EngineTraffic

_LEAST_S: Final = 2.0
"""Two reports, and two load reports: counts of different moments differ for shorter."""

_LONGEST_PER_MEAN: Final = 4.0  # EnginePool.spec.longestServiceTime: four times serviceTime when absent


def longest_try_s(pool: EnginePoolSpec, limits: TimeLimits | None, admission: AdmissionDecision | None) -> float:
    """Seconds that a try may take: the limit in force, or the wait allowed and the longest service declared.

    The limit is learned only after a while, and is off where the policy says so.
    """
    wait_s = 0.0 if admission is None else admission.wait_s
    declared_s = pool.longest_service_time or _LONGEST_PER_MEAN * pool.service_time
    limit_s = None if limits is None else limits.per_try_s
    return max(_LEAST_S, limit_s or wait_s + declared_s)


def lost_contact_since_s(
    engine: Engine,
    before: Mapping[EngineId, float],
    decided: EngineDecision | None,
    calls: EngineTraffic | None,
    *,
    probe: Probe,
    now_s: float,
) -> float | None:
    """Monotonic time since when what the engine holds has looked lost; None when it does not.

    ``before`` is what this returned last, by engine, ``decided`` what was decided of it last, and ``calls`` its
    traffic where that is fresh.
    """
    report = engine.report
    if report is None or engine.received_at_s is None or calls is None or calls.done_per_s:
        return None
    if report.source is ReportSource.AGENT and report.doubt is Doubt.SILENT:
        # Nothing was sent to it since it left. To a prober the silence may be that of its own way there.
        out = decided is not None and decided.health is Health.UNHEALTHY
        return before.get(engine.id, decided.since_s if decided is not None and out else now_s)
    fresh = now_s < engine.received_at_s + fresh_for_s(report.source, probe)
    if fresh and report.requests_in_flight == 0 and calls.in_flight:
        return before.get(engine.id, now_s)
    return None
