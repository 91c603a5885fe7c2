"""The total of requests in flight allowed to a pool: the capacity of its engines, and the ceiling from it.

Engines of ``S`` slots with a service time of ``s`` seconds serve ``S / s`` requests per second, so a request that
arrives when ``S x (1 + W / s)`` are in flight waits about ``W``. Only engines in rotation count, one on trial by
its share, so the promise holds at any capacity.

The ceiling moves at once when an engine comes or goes. Small changes of learned values do not move it.
"""

import math
from dataclasses import dataclass
from typing import Final

from policies.pool import EnginePoolSpec
from policies.resilience import Limits
from xds_server.decide.admission.proxy_limits import round_up
from xds_server.decide.admission.requests_in_prefill import PrefillLoad, prefill_places, settled_places
from xds_server.decide.decision_memory import AdmissionMemory
from xds_server.decide.decisions import Health
from xds_server.decide.pool_inputs import PoolEngines
from xds_server.model.pool_traffic import PoolTraffic

ESTIMATE_STEP: Final = 0.03
"""Smaller relative moves of learned values are skipped: following each estimate would push to every proxy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyCapacity:
    """Combined capacity of the engines in rotation: concurrent calls, calls per second; ``by`` has the parts."""

    slots: float
    per_s: float
    count: int
    in_use: float | None
    by: tuple[object, ...]

    @property
    def utilization(self) -> float | None:
        """The share of slots in use; None if unknown."""
        return self.in_use / self.slots if self.in_use is not None and self.slots else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalCeiling:
    """Requests in flight that a pool may have, the formula, and how many of them are for requests in prefill."""

    total: int
    how: str
    prefill_places: int = 0


def ready_capacity(pool: EnginePoolSpec, engines: PoolEngines, traffic: PoolTraffic | None) -> ReadyCapacity:
    """The combined capacity of the engines of ``pool`` in rotation now."""
    slots = per_s = in_use = 0.0
    by: list[object] = [pool.service_time]
    seen = traffic.engines if traffic is not None else {}
    count = 0
    for engine in engines.engines:
        decision = engines.decisions[engine.id]
        if decision.health is not Health.HEALTHY:
            continue
        capacity, part = engines.capacities[engine.id], decision.traffic_percent / 100
        slots += capacity.slots * part
        per_s += engines.able_per_s(engine.id)
        count += 1
        by += (engine.id.engine, engine.slots, part)
        calls = seen.get(engine.id.engine)
        if calls is not None:
            in_use += min(calls.busy if calls.in_flight is None else calls.in_flight, capacity.slots * part)
    return ReadyCapacity(slots=slots, per_s=per_s, count=count, in_use=in_use if seen else None, by=tuple(by))


def pool_ceiling(limits: Limits, service_time_s: float, slots: float) -> tuple[int, str]:
    """Requests in flight that the limits allow for these slots, at least 1, and the formula."""
    if limits.max_concurrent is not None:
        return limits.max_concurrent, f"maxConcurrent {limits.max_concurrent}"
    if limits.concurrent_per_slot is not None:
        allowed = slots * limits.concurrent_per_slot
        how = f"{slots:.4g} slots x {limits.concurrent_per_slot:g} per slot"
    else:
        allowed = slots * (1 + limits.max_wait / service_time_s)
        how = f"{slots:.4g} slots x (1 + {limits.max_wait:g} s wait / {service_time_s:.3g} s service)"
    return max(1, round_up(allowed)), how


def total_ceiling(
    limits: Limits,
    pool: EnginePoolSpec,
    ready: ReadyCapacity,
    before: AdmissionMemory | None,
    *,
    prefill: PrefillLoad | None = None,
    whole: int = 0,
    now_s: float = math.inf,
) -> TotalCeiling:
    """The ceiling and its formula; unchanged if only learned values moved it, and by little.

    ``prefill``: what of ``whole`` requests in flight is in prefill; it has no places besides ``maxConcurrent``.
    """
    service_s = ready.slots / ready.per_s if ready.per_s else pool.service_time
    total, how = pool_ceiling(limits, service_s, ready.slots)
    places = 0
    if limits.max_concurrent is None:
        places = settled_places(
            prefill_places(prefill, whole, (ready.slots, ready.per_s)),
            0 if before is None else before.decided.prefill_places,
            total,
            decoding=whole - (0.0 if prefill is None else min(prefill.in_flight, whole)),
            held=whole,
            age_s=math.inf if before is None else now_s - before.places_at_s,
        )
    if places:
        total, how = total + places, f"{how} + {places} in prefill"
    same = before is not None and before.basis[:1] == ((limits, ready.by),)
    if same and before is not None and abs(total - before.decided.total) < ESTIMATE_STEP * before.decided.total:
        total, places = before.decided.total, before.decided.prefill_places
    return TotalCeiling(total=total, how=how, prefill_places=places)
