"""What is decided of the pools, as metrics: the figures of ``get pools``, for dashboards and alerts.

Labels are from closed sets, so the reason of a level is told by what is done because of it (``action``); the
sentence is in ``switchgear why POOL`` and in the ledger.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import Metric

from xds_server.admin.views.context import ViewContext
from xds_server.admin.views.get_tables import pool_rows
from xds_server.decide.decisions import DegradationState, Ejector, Health
from xds_server.metrics import gauge
from xds_server.model.pod_state import PodPhase
from xds_server.model.status_types import PoolStatus

_FIGURES: Final[tuple[tuple[str, str, Callable[[PoolStatus], float | None]], ...]] = (
    # Metric, help, and which figure of a pool it is.
    ("ceiling_requests", "Requests that may be in flight to the pool.", lambda one: one.ceiling),
    ("held_requests", "Requests held by engines that are out.", lambda one: one.held),
    ("in_flight_requests", "Requests in flight, as proxies report.", lambda one: one.in_flight),
    ("slots", "Slots of the engines that are in.", lambda one: one.slots),
    ("pressure_ratio", "What is asked of the pool over what it can serve.", lambda one: one.pressure),
    ("utilization_ratio", "Share of the slots in use.", lambda one: one.utilization),
    ("arrivals_per_second", "Requests that arrive for the pool.", lambda one: one.arrivals_per_s),
    ("retries_per_second", "Calls after the first of a request.", lambda one: one.retries_per_s),
    ("kept_in_engines", "Engines somebody wants out and the floor keeps in.", lambda one: one.kept_in),
    ("degradation_level", "Level of the ladder, 0 to 4.", lambda one: one.level),
    ("hedging", "1 while requests are hedged.", lambda one: one.hedging),
)


def pool_metrics(scene: ViewContext) -> Iterator[Metric]:
    """Every pool in figures; a figure nobody knows is left out."""
    rows = pool_rows(scene)
    for name, told, figure in _FIGURES:
        values: dict[tuple[str, ...], float] = {
            (row.pool,): float(value) for row in rows if (value := figure(row)) is not None
        }
        yield gauge(f"switchgear_pool_{name}", told, ("pool",), values)
    yield gauge(
        "switchgear_pool_revisions",
        "How many different revisions the engines of a region serve.",
        ("pool", "region"),
        {(one.pool, region): float(len(counts)) for one in rows for region, counts in one.revisions.items()},
    )
    yield gauge(
        "switchgear_pool_region_share_ratio",
        "Share of the requests of one region's callers that another one, or it itself, is to serve.",
        ("pool", "from", "to"),
        {
            (one.pool, region.region, to): percent / 100
            for one in rows
            for region in one.regions
            for to, percent in region.sends_percent.items()
        },
    )
    yield gauge(
        "switchgear_pool_capacity_ratio",
        "Slots of the engines that are in over the slots of all declared.",
        ("pool",),
        {(pool,): share for pool in scene.decisions.pools if (share := _capacity(pool, scene)) is not None},
    )
    yield gauge(
        "switchgear_pool_capacity_floor_ratio",
        "Share of the slots below which soft evidence takes no engine out.",
        ("pool",),
        {
            (pool,): scene.policies.effective[pool].breaker.capacity_floor_percent / 100
            for pool in scene.decisions.pools
        },
    )
    yield from _engines(scene)
    yield gauge(
        "switchgear_pool_shed_per_second", "Requests refused at the ceiling.", ("pool", "class"), _shed(rows)
    )
    yield gauge(
        "switchgear_pool_degradation_action",
        "1 for what is done because of the level.",
        ("pool", "action"),
        {
            (pool, action): float(done)
            for pool, decided in scene.decisions.pools.items()
            if decided.degradation is not None
            for action, done in _actions(decided.degradation).items()
        },
    )
    yield gauge(
        "switchgear_engines_out", "Engines that are out, by who wants them out.", ("pool", "ejector"), _out(scene)
    )
    yield gauge(
        "switchgear_engine_standings",
        "Engines by what their orchestrator says of them.",
        ("pool", "standing"),
        _standings(scene),
    )


def _capacity(pool: str, scene: ViewContext) -> float | None:
    """Declared slots, so that a capacity that is learned anew does not look like one that is lost."""
    engines = scene.fleet.pools.get(pool, ())
    declared, decided = sum(one.slots for one in engines), scene.decisions.engines
    inside = sum(one.slots for one in engines if one.id in decided and decided[one.id].health is Health.HEALTHY)
    return inside / declared if declared else None


def _engines(scene: ViewContext) -> Iterator[Metric]:
    """Engine by engine, what tells one from its peers."""
    inside: dict[tuple[str, ...], float] = {}
    busy: dict[tuple[str, ...], float] = {}
    failed: dict[tuple[str, ...], float] = {}
    kv: dict[tuple[str, ...], float] = {}
    for pool, engines in scene.fleet.pools.items():
        traffic = scene.fleet.traffic.get(pool)
        for engine in engines:
            key = (pool, engine.id.engine, engine.zone)
            decision = scene.decisions.engines.get(engine.id)
            if decision is not None:
                inside[key] = decision.traffic_percent / 100 if decision.health is Health.HEALTHY else 0.0
            if engine.report is not None and engine.report.kv_cache_usage_ratio is not None:
                kv[key] = engine.report.kv_cache_usage_ratio
            seen = None if traffic is None else traffic.engines.get(engine.id.engine)
            if seen is not None and seen.in_flight is not None:
                busy[key] = float(seen.in_flight)
            if seen is not None and seen.window_calls:
                failed[key] = seen.window_failures / seen.window_calls
    labels = ("pool", "engine", "zone")
    yield gauge(
        "switchgear_engine_admitted_ratio",
        "Share of its normal traffic that an engine may get: 1 in, 0 out, between on trial.",
        labels,
        inside,
    )
    yield gauge("switchgear_engine_in_flight_requests", "Requests in flight, as proxies report.", labels, busy)
    yield gauge(
        "switchgear_engine_failed_ratio", "Failed share of the newest calls, as proxies report.", labels, failed
    )
    yield gauge("switchgear_engine_kv_cache_usage_ratio", "Share of the KV cache in use.", labels, kv)


def _standings(scene: ViewContext) -> dict[tuple[str, ...], float]:
    return {
        (pool, standing.value): float(sum(engine.pod_phase is standing for engine in engines))
        for pool, engines in scene.fleet.pools.items()
        for standing in PodPhase
    }


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
