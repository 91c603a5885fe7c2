"""Weights of engines of a zone that differ in speed, relative to their slots.

Between equal weights Envoy evens out requests in flight, so a queue place on an engine that takes twice as long
lasts twice as long. An engine's fair number in flight is its part of the ceiling, ``slots x (1 + W / s)`` for a
service time s and an allowed wait W: then a request waits about W on any engine.

**Factor.** Between unequal weights Envoy picks by weight / (its own requests in flight + 1), and an engine's
long-run rate is what it serves, ``slots / s``. The weight that keeps a number in flight makes both agree: ``slots
/ s x (part / proxies + 1)``. One proxy with many requests gives ``(s + W) / s^2``; many with few each give
``1 / s``, because there the weight alone sets the rate.

**Stability.** Each change makes Envoy rebuild its balancer, and unequal weights cost it its accurate mode. So
speeds are compared with the zone's median in steps of a quarter. An engine leaves its step when it is off by a
whole one, by more than chance explains, for five seconds; within half a step of the others it counts as equal. An
ejected engine, or one on trial, keeps its step: a change of health moves no weight. A *paced* engine is slower
than that for now: its factor follows its share at once.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median_low
from types import MappingProxyType
from typing import Final

from xds_server.decide.decision_memory import CapacityEstimate, EndpointWeight
from xds_server.decide.decisions import MEASURED, EngineCapacity, EngineDecision, Health
from xds_server.decide.pool_inputs import PoolEngines
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.memo import reuse_equal

STEP: Final = 1.25
"""Ratio of service times per step: smaller differences do well enough with equal weights."""

HOLD_S: Final = 5.0
"""A step must be asked for this long, and a pool's weights move at most once in this time."""

SPACING_S: Final = 0.5
"""Distance from moves of zone weights, which happen twice a second: together they must not move more often."""

MIN_FACTOR: Final = 1 / 16
MIN_PACE: Final = 1 / 64

_LONGEST: Final = 1.5
"""Longest calls of an engine, as a multiple of its mean."""

_LEAVE: Final = 1.0
_RETURN: Final = 0.5
"""Distance, in steps, from the present step to leave it, and from the median up to which an engine is equal."""

_CHANCE: Final = 3.0
"""Standard deviations: call times scatter at most exponentially, the mean of n of them by 1 / sqrt(n)."""

_MOST_STEPS: Final = 20

NO_WEIGHTS: Final[Mapping[EngineId, EndpointWeight]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class _EngineSpeed:
    """The steps by which an engine is slower than its zone's median; None if its service time is unknown.

    ``calls`` is the number of calls measured; None if the service time is not its own.
    """

    off: float | None
    calls: float | None
    full_share: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Zone:
    """Engines of one zone, in stable order, with their median service time and the time a place is held."""

    engines: Mapping[EngineId, _EngineSpeed]
    median_s: float
    slots_of_proxy: float
    wait_s: float

    def factors(self, steps: Mapping[EngineId, int]) -> dict[EngineId, float]:
        """The factor of each engine at these steps; the fastest has 1."""
        weights = {step: self._weight(step) for step in set(steps.values())}
        most = max(weights.values())
        factors = {step: round(max(MIN_FACTOR, weight / most), 4) for step, weight in weights.items()}
        return {key: factors[step] for key, step in steps.items()}

    def _weight(self, step: int) -> float:
        service_s = self.median_s * STEP**step
        return (self.slots_of_proxy * (1 + self.wait_s / service_s) + 1) / service_s


def endpoint_weights(
    engines: PoolEngines,
    estimates: Mapping[EngineId, CapacityEstimate],
    *,
    learn: bool,
    wait_s: float,
    proxies: int,
    zones_moved_s: float,
    before: Mapping[EngineId, EndpointWeight],
    now_s: float,
) -> Mapping[EngineId, EndpointWeight]:
    """The factor of each engine; empty if all are 1 and no step is asked for, the same object if nothing moved.

    ``wait_s`` is the allowed wait, ``proxies`` how many share the engines, ``zones_moved_s`` (monotonic) when a
    zone weight last moved. Without ``learn`` measured times are ignored.
    """
    if not learn:
        return before if not before else NO_WEIGHTS
    if not any(_gets_full_share(engines.decisions[engine.id]) for engine in engines.engines):
        return before
    measured_s = {key: one.service_s for key, one in engines.capacities.items() if one.source == MEASURED}
    if not before and (not measured_s or max(measured_s.values()) <= STEP * min(measured_s.values())):
        return before
    typical_s = median_low(measured_s.values()) if measured_s else None
    zones: dict[tuple[str, str], list[Engine]] = {}
    for engine in engines.engines:
        zones.setdefault((engine.region, engine.zone), []).append(engine)
    may_move = now_s - zones_moved_s >= SPACING_S and now_s - weights_moved_at_s(before) >= HOLD_S
    chosen: dict[EngineId, EndpointWeight] = {}
    for there in zones.values():
        found_s = {one.id: measured_s.get(one.id, typical_s) for one in there}
        known_s = [value for value in found_s.values() if value is not None]
        median_s = median_low(known_s) if known_s else 1.0
        zone = _Zone(
            engines={
                key: _EngineSpeed(
                    off=_steps_off_median(service_s, median_s),
                    calls=_measured_calls(estimates.get(key)) if key in measured_s else None,
                    full_share=_gets_full_share(engines.decisions[key]),
                )
                for key, service_s in found_s.items()
            },
            median_s=median_s,
            slots_of_proxy=median_low([engines.capacities[one.id].slots for one in there]) / max(1, proxies),
            wait_s=wait_s,
        )
        chosen.update(_zone_weights(zone, before, may_move=may_move, now_s=now_s))
    if all(one.step == 0 and one.factor == 1 and one.towards_s is None for one in chosen.values()) and (
        now_s - weights_moved_at_s(chosen) >= HOLD_S
    ):
        return before if not before else NO_WEIGHTS
    return reuse_equal(before, chosen)


def endpoint_weights_due_s(known: Mapping[EngineId, EndpointWeight]) -> float:
    """When the earliest step asked for is due; infinite without one."""
    return min((one.towards_s + HOLD_S for one in known.values() if one.towards_s is not None), default=math.inf)


def weights_moved_at_s(known: Mapping[EngineId, EndpointWeight]) -> float:
    """When a weight last moved; minus infinity if none did lately."""
    return max((one.moved_at_s for one in known.values() if one.moved_at_s is not None), default=-math.inf)


def weight_factors(
    known: Mapping[EngineId, EndpointWeight], engines: PoolEngines, *, wait_s: float, proxies: int
) -> dict[EngineId, float]:
    """The factors other than 1; those of paced engines are lower."""
    factors = {key: one.factor for key, one in known.items()}
    for engine in engines.engines:
        decision = engines.decisions[engine.id]
        if decision.paced and decision.health is Health.HEALTHY:
            pace = _pace_factor(engines.capacities[engine.id], decision.traffic_percent / 100, wait_s, proxies)
            factors[engine.id] = round(max(MIN_PACE, factors.get(engine.id, 1.0) * pace), 4)
    return {key: factor for key, factor in factors.items() if factor != 1}


def _pace_factor(capacity: EngineCapacity, share: float, wait_s: float, proxies: int) -> float:
    """The factor, in steps, that gives an engine this share of requests.

    Of requests in flight it gets at most as large a part, so its callers spend no longer there than elsewhere. Its
    longest calls are longer by more than its mean: for them, fewer wait, down to its slots.
    """
    each = max(1, proxies)
    held = capacity.slots * (1 + wait_s / capacity.service_s) / each
    longest_s = _LONGEST * capacity.service_s
    left_s = max(0.0, wait_s + longest_s - longest_s / share)
    fewer = capacity.slots * (1 + left_s * share / capacity.service_s) / each
    wanted = share * (min(share * held, fewer) + 1) / (held + 1)
    return float(STEP ** round(math.log(wanted) / math.log(STEP)))


def _zone_weights(
    zone: _Zone, before: Mapping[EngineId, EndpointWeight], *, may_move: bool, now_s: float
) -> dict[EngineId, EndpointWeight]:
    at = {
        key: _first_step(engine, before) if (last := before.get(key)) is None else last.step
        for key, engine in zone.engines.items()
    }
    now = zone.factors(at)
    known = {key: before.get(key) or EndpointWeight(step=step, factor=now[key]) for key, step in at.items()}
    steps = {
        key: _wanted(known[key].step, engine) if engine.full_share else known[key].step
        for key, engine in zone.engines.items()
    }
    # Drift of the wait, the proxies or the median moves factors, too, where engines differ.
    stale = {key for key, one in known.items() if not 1 / STEP <= now[key] / one.factor <= STEP}
    asked = {
        key: one
        if (one.towards_s is not None) == (steps[key] != one.step or key in stale)
        else replace(one, towards_s=now_s if one.towards_s is None else None)
        for key, one in known.items()
    }
    due = {key for key, one in asked.items() if one.towards_s is not None and now_s - one.towards_s >= HOLD_S}
    if not due or not may_move:
        return asked
    moved = {key: steps[key] if key in due else one.step for key, one in known.items()}
    factors = zone.factors(moved)
    return {
        key: EndpointWeight(
            step=moved[key],
            factor=factors[key],
            towards_s=None if key in due else one.towards_s,
            moved_at_s=now_s,
        )
        for key, one in asked.items()
    }


def _first_step(engine: _EngineSpeed, before: Mapping[EngineId, EndpointWeight]) -> int:
    """The step of an engine without one: where others differ, an unmeasured one gets the pool's median."""
    if not before or engine.calls is not None or engine.off is None or abs(engine.off) <= _LEAVE:
        return 0
    return round(engine.off)


def _wanted(step: int, engine: _EngineSpeed) -> int:
    """The step for an engine of this speed; the present one if it is close enough."""
    off = engine.off
    if off is None or (step == 0 and abs(off) <= _LEAVE):
        return step
    if abs(off) <= _RETURN:
        return 0
    chance = _CHANCE / math.sqrt(engine.calls) / math.log(STEP) if engine.calls else 0.0
    return round(off) if abs(off - step) > max(_LEAVE, chance) else step


def _measured_calls(estimate: CapacityEstimate | None) -> float:
    return estimate.done if estimate is not None else 0.0


def _steps_off_median(service_s: float | None, median_s: float) -> float | None:
    """Steps by which an engine is slower than the median; None if unknown."""
    if service_s is None:
        return None
    return min(max(math.log(service_s / median_s) / math.log(STEP), -_MOST_STEPS), _MOST_STEPS)


def _gets_full_share(decision: EngineDecision) -> bool:
    return decision.health is Health.HEALTHY and decision.traffic_percent >= 100
