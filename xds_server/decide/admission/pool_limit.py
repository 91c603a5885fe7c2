"""How much may be in flight to a pool in all, whoever asks: what its engines can do, and the ceiling that follows.

Engines of ``S`` slots whose requests take ``s`` seconds serve ``S / s`` of them per second, so one that arrives
when ``S x (1 + W / s)`` are in flight waits about ``W``. Only engines that are in count, one on trial by the share
it gets, so the promise holds at any capacity.

The ceiling moves at once, down and up, when an engine comes or goes. What is only learned a little differently
moves nothing.
"""

from dataclasses import dataclass
from typing import Final

from policies.pool import EnginePoolSpec
from policies.resilience import Limits
from xds_server.decide.admission.proxy_limits import round_up
from xds_server.decide.decision_memory import AdmissionMemory
from xds_server.decide.decisions import Health
from xds_server.decide.pool_inputs import PoolEngines
from xds_server.model.pool_traffic import PoolTraffic

ESTIMATE_STEP: Final = 0.03
"""A total that learned numbers move by less stays: one that follows every estimate is a push to every proxy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyCapacity:
    """What engines that are in can do together: calls at once and per second; ``by`` names what it is made of."""

    slots: float
    per_s: float
    count: int
    in_use: float | None
    by: tuple[object, ...]

    @property
    def utilization(self) -> float | None:
        """The share of their slots in use; None where nobody tells."""
        return self.in_use / self.slots if self.in_use is not None and self.slots else None


def ready_capacity(pool: EnginePoolSpec, engines: PoolEngines, traffic: PoolTraffic | None) -> ReadyCapacity:
    """What the engines of ``pool`` that are in can do together now."""
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
        per_s += capacity.slots * part / capacity.service_s
        count += 1
        by += (engine.id.engine, engine.slots, part)
        calls = seen.get(engine.id.engine)
        if calls is not None:
            in_use += min(calls.busy if calls.in_flight is None else calls.in_flight, capacity.slots * part)
    return ReadyCapacity(slots=slots, per_s=per_s, count=count, in_use=in_use if seen else None, by=tuple(by))


def pool_ceiling(limits: Limits, service_time_s: float, slots: float) -> tuple[int, str]:
    """Requests in flight to engines of so many slots that the limits allow, at least 1, and how it came about."""
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
    limits: Limits, pool: EnginePoolSpec, ready: ReadyCapacity, before: AdmissionMemory | None
) -> tuple[int, str]:
    """The ceiling, and how it came about; as it was where only learned numbers moved it, and by little."""
    total, how = pool_ceiling(limits, ready.slots / ready.per_s if ready.per_s else pool.service_time, ready.slots)
    same = before is not None and before.basis[:1] == ((limits, ready.by),)
    if same and before is not None and abs(total - before.decided.total) < ESTIMATE_STEP * before.decided.total:
        return before.decided.total, how
    return total, how
