"""Pool decisions as metrics: the columns of ``get pools``, for dashboards and alerts.

Labels are closed sets, so the label ``action`` stands for the reason of a level; the sentence is in ``switchgear
why POOL`` and in the ledger.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import Metric

from policies.remote_prefill import Stage
from xds_server.admin.views.context import ViewContext
from xds_server.admin.views.get_tables import pool_rows
from xds_server.admin_api.status_types import PoolStatus
from xds_server.decide.decisions import DegradationState, Ejector, Health
from xds_server.metrics.fleet_metrics import EngineMetrics, PoolMetrics
from xds_server.metrics.metric_spec import GaugeFamilySpec
from xds_server.model.fleet import Engine
from xds_server.model.pod_state import PodPhase
from xds_server.translate.prefillers import PrefillState, prefillers

_FIGURES: Final[tuple[tuple[GaugeFamilySpec, Callable[[PoolStatus], float | None]], ...]] = (
    (PoolMetrics.pool_ceiling_requests, lambda one: one.ceiling),
    (PoolMetrics.pool_held_requests, lambda one: one.held),
    (PoolMetrics.pool_in_flight_requests, lambda one: one.in_flight),
    (PoolMetrics.pool_slots, lambda one: one.slots),
    (PoolMetrics.pool_pressure_ratio, lambda one: one.pressure),
    (PoolMetrics.pool_utilization_ratio, lambda one: one.utilization),
    (PoolMetrics.pool_arrivals_per_second, lambda one: one.arrivals_per_s),
    (PoolMetrics.pool_retries_per_second, lambda one: one.retries_per_s),
    (PoolMetrics.pool_kept_in_engines, lambda one: one.kept_in),
    (PoolMetrics.pool_degradation_level, lambda one: one.level),
    (PoolMetrics.pool_hedging, lambda one: one.hedging),
    (
        PoolMetrics.pool_keys_away_ratio,
        lambda one: None if one.keys_away_percent is None else one.keys_away_percent / 100,
    ),
    (
        PoolMetrics.pool_prefilled_ratio,
        lambda one: None if one.prefilled_percent is None else one.prefilled_percent / 100,
    ),
)
"""Column of ``get pools`` behind each metric."""


_FRESH_S: Final = 30.0
"""Age up to which a report shows a drain; agents report each second."""


def pool_metrics(scene: ViewContext) -> Iterator[Metric]:
    """Metrics of every pool; unknown values are omitted."""
    rows = pool_rows(scene)
    for metric, figure in _FIGURES:
        yield metric.family({(row.pool,): float(value) for row in rows if (value := figure(row)) is not None})
    yield PoolMetrics.pool_revisions.family(
        {(one.pool, region): float(len(counts)) for one in rows for region, counts in one.revisions.items()}
    )
    yield PoolMetrics.pool_adapter_engines.family(
        {(row.pool, one.adapter): float(one.engines) for row in rows for one in row.adapters}
    )
    yield PoolMetrics.pool_region_share_ratio.family(
        {
            (one.pool, region.region, to): percent / 100
            for one in rows
            for region in one.regions
            for to, percent in region.sends_percent.items()
        }
    )
    yield PoolMetrics.pool_capacity_ratio.family(
        {(pool,): share for pool in scene.decisions.pools if (share := _capacity(pool, scene)) is not None}
    )
    yield PoolMetrics.pool_capacity_floor_ratio.family(
        {
            (pool,): scene.policies.effective[pool].breaker.capacity_floor_percent / 100
            for pool in scene.decisions.pools
        }
    )
    yield from _engines(scene)
    yield PoolMetrics.pool_prefill_engines.family(_prefill_engines(scene))
    yield PoolMetrics.pool_shed_per_second.family(_shed(rows))
    yield PoolMetrics.pool_degradation_action.family(
        {
            (pool, action): float(done)
            for pool, decided in scene.decisions.pools.items()
            if decided.degradation is not None
            for action, done in _actions(decided.degradation).items()
        }
    )
    yield EngineMetrics.engines_out.family(_out(scene))
    yield EngineMetrics.engine_standings.family(_standings(scene))


def _capacity(pool: str, scene: ViewContext) -> float | None:
    """Declared slots: unlike learned slots, they do not change when capacity is learned again."""
    engines = scene.fleet.pools.get(pool, ())
    declared, decided = sum(one.slots for one in engines), scene.decisions.engines
    inside = sum(one.slots for one in engines if one.id in decided and decided[one.id].health is Health.HEALTHY)
    return inside / declared if declared else None


def _drain_left_s(engine: Engine, now_s: float) -> float | None:
    """Time until the deadline of the engine's drain, by a fresh report: a process that ended drains no more."""
    report, at_s = engine.report, engine.received_at_s
    if report is None or report.drain is None or report.drain.deadline_in_s is None or at_s is None:
        return None
    return max(0.0, report.drain.deadline_in_s - (now_s - at_s)) if now_s - at_s <= _FRESH_S else None


def _engines(scene: ViewContext) -> Iterator[Metric]:
    """Per-engine metrics for comparison with peers."""
    inside: dict[tuple[str, ...], float] = {}
    busy: dict[tuple[str, ...], float] = {}
    failed: dict[tuple[str, ...], float] = {}
    kv: dict[tuple[str, ...], float] = {}
    per_token: dict[tuple[str, ...], float] = {}
    xids: dict[tuple[str, ...], float] = {}
    drains: dict[tuple[str, ...], float] = {}
    for pool, engines in scene.fleet.pools.items():
        traffic = scene.fleet.traffic.get(pool)
        for engine in engines:
            key = (pool, engine.id.engine, engine.zone)
            decision = scene.decisions.engines.get(engine.id)
            if decision is not None:
                inside[key] = decision.traffic_percent / 100 if decision.health is Health.HEALTHY else 0.0
            if engine.report is not None and engine.report.kv_cache_usage_ratio is not None:
                kv[key] = engine.report.kv_cache_usage_ratio
            if engine.report is not None and engine.report.time_per_output_token is not None:
                per_token[*key, "p50"] = engine.report.time_per_output_token.p50_s
                per_token[*key, "p99"] = engine.report.time_per_output_token.p99_s
            if engine.report is not None and engine.report.gpu is not None:
                xids[key] = float(len({xid for gpu in engine.report.gpu.gpus for xid in gpu.xids}))
            left_s = _drain_left_s(engine, scene.now.s)
            if left_s is not None:
                drains[key] = left_s
            calls = None if traffic is None else traffic.engines.get(engine.id.engine)
            if calls is not None and calls.in_flight is not None:
                busy[key] = float(calls.in_flight)
            if calls is not None and calls.window_calls:
                failed[key] = calls.window_failures / calls.window_calls
    yield EngineMetrics.engine_admitted_ratio.family(inside)
    yield EngineMetrics.engine_in_flight_requests.family(busy)
    yield EngineMetrics.engine_failed_ratio.family(failed)
    yield EngineMetrics.engine_kv_cache_usage_ratio.family(kv)
    yield EngineMetrics.engine_time_per_output_token_seconds.family(per_token)
    yield EngineMetrics.engine_xids.family(xids)
    yield EngineMetrics.engine_drain_left_seconds.family(drains)


def _standings(scene: ViewContext) -> dict[tuple[str, ...], float]:
    return {
        (pool, standing.value): float(sum(engine.pod_phase is standing for engine in engines))
        for pool, engines in scene.fleet.pools.items()
        for standing in PodPhase
    }


def _prefill_engines(scene: ViewContext) -> dict[tuple[str, ...], float]:
    """Engines of each prefill pool by whether they are named."""
    found: dict[tuple[str, ...], float] = {}
    for pool in scene.decisions.pools:
        if scene.policies.pools[pool].spec.stage is Stage.PREFILL:
            states = Counter(one.state for one in prefillers(scene.policies, scene.fleet, scene.decisions, pool))
            found |= {(pool, state.value): float(states[state]) for state in PrefillState}
    return found


def _shed(rows: Sequence[PoolStatus]) -> dict[tuple[str, ...], float]:
    return {(row.pool, kind): per_s for row in rows for kind, per_s in row.shed_per_s.items()}


def _actions(ladder: DegradationState) -> dict[str, bool]:
    return {
        "no_hedging": ladder.hedging_off,
        "fewest_retries": ladder.retries_minimum,
        "fallback": ladder.fallback_percent > 0,
        "no_batch": ladder.shed_batch,
        "short_answers": ladder.max_tokens is not None,
        "maintenance": bool(ladder.maintenance),
    }


def _out(scene: ViewContext) -> dict[tuple[str, ...], float]:
    counts: dict[tuple[str, ...], float] = {
        (pool, ejector.value): 0.0 for pool in scene.decisions.pools for ejector in Ejector
    }
    for key, decision in scene.decisions.engines.items():
        if decision.health is not Health.HEALTHY and decision.ejector is not None:
            counts[key.pool, decision.ejector.value] += 1
    return counts
