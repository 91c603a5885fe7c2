"""Strain of a pool: its pressure, and other signs that degradation levels may follow.

Reports count while they are fresh, and calls while proxies report them. None is unknown and enters no level.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from engine.report import EngineReport
from policies.pool import Probe
from policies.resilience.degradation import Step
from xds_server.decide.decisions import Ejector, EngineDecision, Health
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pool_traffic import STALE_S, PoolTraffic

_LEAST_CALLS: Final = 20
"""Fewer recent calls show no share of failures."""

_FRESH_PROBES: Final = 3
"""Probe intervals after which a report no longer counts; at least ``STALE_S``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStrain:
    """``pressure`` as in ``AdmissionDecision``. The rest in percent or seconds, None if unknown.

    ``failed_percent``: of recent calls. ``ejected_percent``: of slots, ejected by evidence. ``kv_cache_percent``:
    mean use, ``throttled_percent``: share with a throttled GPU, of engines in rotation that report it.
    ``first_token_s`` is the 99th percentile that callers see, else that of the median engine.
    """

    pressure: float | None
    failed_percent: float | None = None
    ejected_percent: float | None = None
    kv_cache_percent: float | None = None
    throttled_percent: float | None = None
    first_token_s: float | None = None

    def signs(self, step: Step) -> Iterator[tuple[float, float, str]]:
        """Value, threshold and sentence of each sign that the level follows and that is known."""
        rows = (
            (self.failed_percent, step.above_failed_percent, "{:.0f} % of calls fail (limit {:g} %)"),
            (self.ejected_percent, step.above_ejected_percent, "{:.0f} % of slots are ejected (limit {:g} %)"),
            (self.kv_cache_percent, step.above_kv_cache_percent, "KV cache {:.0f} % used (limit {:g} %)"),
            (self.throttled_percent, step.above_throttled_percent, "{:.0f} % of engines throttled (limit {:g} %)"),
            (self.first_token_s, step.above_first_token, "first token after {:.1f} s (limit {:g} s)"),
        )
        for value, threshold, text in rows:
            if value is not None and threshold is not None:
                yield value, threshold, text.format(value, threshold)


def pool_strain(
    probe: Probe,
    engines: Sequence[Engine],
    decisions: Mapping[EngineId, EngineDecision],
    traffic: PoolTraffic | None,
    *,
    pressure: float | None,
    now_s: float,
) -> PoolStrain:
    """The strain at ``now_s``; ``pressure`` is that of the last round."""
    serving = [engine for engine in engines if _serves(engine, decisions)]
    reports = [engine.report for engine in serving if engine.report is not None and _fresh(engine, probe, now_s)]
    caches = [one.kv_cache_usage_ratio for one in reports if one.kv_cache_usage_ratio is not None]
    throttled = [_throttled(one) for one in reports if one.gpu is not None and one.gpu.gpus]
    first = [one.time_to_first_token.p99_s for one in reports if one.time_to_first_token is not None]
    return PoolStrain(
        pressure=pressure,
        failed_percent=_failed_percent(traffic, now_s),
        ejected_percent=_ejected_percent(engines, decisions),
        kv_cache_percent=100 * statistics.fmean(caches) if caches else None,
        throttled_percent=100 * statistics.fmean(throttled) if throttled else None,
        first_token_s=_first_token_s(traffic, first, now_s),
    )


def _first_token_s(traffic: PoolTraffic | None, of_engines: Sequence[float], now_s: float) -> float | None:
    if traffic is not None and traffic.first_byte is not None and now_s - traffic.heard_at_s < STALE_S:
        return traffic.first_byte.p99_s
    return statistics.median(of_engines) if of_engines else None


def _serves(engine: Engine, decisions: Mapping[EngineId, EngineDecision]) -> bool:
    decision = decisions.get(engine.id)
    return decision is not None and decision.health is Health.HEALTHY


def _fresh(engine: Engine, probe: Probe, now_s: float) -> bool:
    if engine.report is None or engine.received_at_s is None:
        return False
    return now_s - engine.received_at_s < max(STALE_S, _FRESH_PROBES * probe.interval)


def _throttled(report: EngineReport) -> bool:
    return report.gpu is not None and any(gpu.throttled for gpu in report.gpu.gpus)


def _failed_percent(traffic: PoolTraffic | None, now_s: float) -> float | None:
    if traffic is None or now_s - traffic.heard_at_s >= STALE_S:
        return None
    calls = sum(one.window_calls for one in traffic.engines.values())
    failures = sum(one.window_failures for one in traffic.engines.values())
    return 100 * failures / calls if calls >= _LEAST_CALLS else None


def _ejected_percent(engines: Sequence[Engine], decisions: Mapping[EngineId, EngineDecision]) -> float | None:
    slots = sum(engine.slots for engine in engines)
    if not slots:
        return None
    ejected = 0
    for engine in engines:
        decision = decisions.get(engine.id)
        if (
            decision is not None
            and decision.health is Health.UNHEALTHY
            and decision.ejector is not Ejector.OPERATOR
        ):
            ejected += engine.slots
    return 100 * ejected / slots
