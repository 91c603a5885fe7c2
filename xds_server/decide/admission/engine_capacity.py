"""What each engine can do at once, and how long a call takes it: declared by the policy, then measured.

**Service time.** An engine that ends X calls per second well and holds L of them open on the mean takes L / X per
call (Little's law). Above its slots the rest of L waits, so what one call holds a slot for is
``min(L, slots) / X``: the mean duration of its calls while there is no queue, and the slots over the throughput
when there is one. Durations alone would take the queue for work: the ceiling, made of them, would then shrink with
every request that waits. ``L`` is the durations of what ended, added up; where calls take about as long as rates
look back, or longer, what proxies report as open. An engine with few calls is taken to be like its peers.

The estimate stays between a tenth and four times what the policy declares. A service time believed to be k times
shorter than it is stretches the promised wait by k, so of an engine that looks many times faster than the others
of its pool nothing is believed; one believed to be longer than it is only refuses earlier.

**Slots.** The declared ones, fewer where the agent says so, and no more than it runs where requests wait although
slots are free because the KV cache is full: such an engine is as wide as what it runs.

What was learned of an engine outlives the silence of proxies for a while, because that says nothing of the engine.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from policies.pool import EnginePoolSpec
from policies.resilience import ResilienceSpec
from xds_server.decide.decision_memory import CapacityEstimate, CapacityMemory
from xds_server.decide.decisions import EngineCapacity, EngineDecision, Health
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.memo import reuse_equal, reuse_mapping
from xds_server.model.pool_traffic import RATE_S, EngineTraffic, PoolTraffic

_MEMORY_S: Final = 10.0
"""Weight of a call falls to 1/e after so long: a change of model or prompts is known within half a minute."""

_MEMORY_CALLS: Final = 40
"""Slow engines remember as long as they need for so many calls: half full they must still come to enough."""

_ENOUGH_CALLS: Final = 20.0
"""An estimate of these is right within about a quarter where times scatter like an exponential distribution."""

_ENOUGH_SPAN_S: Final = 3.0

_LOOK_S: Final = 0.25
"""How often the number of open calls is looked at: as often as few proxies report it."""

_LASTING: Final = 0.5
"""Share of the time rates look back that a call must take for that."""

_FASTEST: Final = 0.1
_SLOWEST: Final = 4.0
"""Bounds, as multiples of the declared service time."""

_UNLIKE_PEERS: Final = 0.25
"""Of its pool's median: below it, what looks fast is more likely not work at all."""

_STEP: Final = 0.03
"""Moves of less are not worth a push to every proxy."""

_FAILING: Final = 0.1
"""Share of failed calls from which an engine's times are not learned from: its slots do other work too."""

_KEPT_S: Final = 600.0
"""Silence after which what was learned is forgotten: another load may run by then."""

_LONGEST_LOOK_S: Final = 1.0
"""A report speaks of the time since the one before, and of no more than this."""

_FULL_KV: Final = 0.95
_NARROWING_S: Final = 5.0
_WIDENING_S: Final = 60.0
"""Slots of a KV-bound engine: down quickly, because too many stretch the wait; up slowly, or they would swing."""


DECLARED: Final = "as declared"
MEASURED: Final = "measured"
AS_PEERS: Final = "as its peers"


def engine_capacities(
    pool: EnginePoolSpec,
    resilience: ResilienceSpec,
    engines: Sequence[Engine],
    traffic: PoolTraffic | None,
    *,
    decisions: Mapping[EngineId, EngineDecision],
    before: CapacityMemory,
    now_s: float,
) -> CapacityMemory:
    """The capacity of every engine; ``before`` itself where nothing new is known."""
    if not resilience.limits.learn:
        known = before.capacities
        fixed = {engine.id: _declared(engine, pool.service_time, known.get(engine.id)) for engine in engines}
        same = reuse_mapping(known, fixed)
        return before if same is known and not before.estimates else CapacityMemory(capacities=same)
    learned: dict[EngineId, CapacityEstimate] = {}
    seen = traffic.engines if traffic is not None else {}
    news = len(before.capacities) != len(engines)
    for engine in engines:
        capacity, estimate = before.capacities.get(engine.id), before.estimates.get(engine.id)
        one = _estimate(
            engine,
            seen.get(engine.id.engine),
            estimate,
            teaches=_gets_full_share(decisions.get(engine.id)),
            declared_s=pool.service_time,
            now_s=now_s,
        )
        if one is not None:
            learned[engine.id] = one
        fits = capacity is not None and _fits(capacity, estimate, engine, pool.service_time)
        news = news or estimate is not one or not fits
    if not news:
        return before
    own_s = {key: one.busy / one.done for key, one in learned.items() if _enough(one)}
    peers_s = median(own_s.values()) if own_s else _pooled_service_time_s(learned.values())
    capacities = {
        engine.id: _capacity(
            engine,
            pool,
            learned.get(engine.id),
            own_s=own_s.get(engine.id),
            peers_s=peers_s,
            before=before.capacities.get(engine.id),
        )
        for engine in engines
    }
    return CapacityMemory(capacities=capacities, estimates=learned)


def _fits(known: EngineCapacity, estimate: CapacityEstimate | None, engine: Engine, declared_s: float) -> bool:
    """Whether what is known of the engine is not ruled out by what is declared and said of it now."""
    if estimate is None or estimate.slots is None:
        slots_fit = known.slots == max_slots(engine)
    else:
        slots_fit = known.slots <= max_slots(engine)
    if known.source == DECLARED:
        return slots_fit and known.service_s == declared_s
    return slots_fit and _FASTEST * declared_s <= known.service_s <= _SLOWEST * declared_s


def _declared(engine: Engine, service_s: float, before: EngineCapacity | None) -> EngineCapacity:
    fresh = EngineCapacity(slots=float(engine.slots), service_s=service_s, source=DECLARED)
    return reuse_equal(before, fresh)


def _gets_full_share(decision: EngineDecision | None) -> bool:
    """Whether the engine gets its whole share of the traffic, so that its times are those of a working engine."""
    return decision is None or (decision.health is Health.HEALTHY and decision.traffic_percent >= 100)


def _estimate(
    engine: Engine,
    seen: EngineTraffic | None,
    known: CapacityEstimate | None,
    *,
    teaches: bool,
    declared_s: float,
    now_s: float,
) -> CapacityEstimate | None:
    """What is known of the engine with its newest telemetry and its newest report folded in."""
    if known is not None and now_s - max(known.at_s, known.looked_at_s) > _KEPT_S:
        known = None
    if seen is not None and teaches:
        lasting = _lasting(known, seen)
        if known is None or (now_s - _LOOK_S if lasting else seen.heard_at_s) > known.at_s:
            known = _with_calls(known, engine, seen, declared_s, now_s if lasting else None)
    if engine.received_at_s is not None and (known is None or engine.received_at_s > known.looked_at_s):
        known = _with_report(known, engine, engine.received_at_s)
    return known


def _lasting(known: CapacityEstimate | None, seen: EngineTraffic) -> bool:
    """Whether calls last so long that they end seldom and in lumps, and those that are open say more of the load.

    Durations added up as calls end are then nothing for a while and far above the slots for a moment.
    """
    if seen.in_flight is None:
        return False
    takes_s = known.busy / known.done if known is not None and known.done else seen.service_s
    return takes_s is not None and takes_s > _LASTING * RATE_S


def _with_calls(
    known: CapacityEstimate | None, engine: Engine, seen: EngineTraffic, declared_s: float, open_at_s: float | None
) -> CapacityEstimate | None:
    """``open_at_s``: the moment at which what is open is looked at; None: what has ended is."""
    idle = seen.done_per_s <= 0 and (open_at_s is None or not seen.in_flight)
    if idle or seen.window_failures > _FAILING * seen.window_calls:
        return known
    known = known or CapacityEstimate()
    at_s = seen.heard_at_s if open_at_s is None else open_at_s
    # Rates say nothing of what was before them.
    passed_s = min(at_s - known.at_s, RATE_S) if known.at_s else RATE_S
    slots = known.slots or float(engine.slots)
    busy = seen.busy if open_at_s is None else float(seen.in_flight or 0)
    takes_s = max(declared_s, known.busy / known.done if known.done else 0.0)
    kept = math.exp(-passed_s / max(_MEMORY_S, _MEMORY_CALLS * takes_s / slots))
    return CapacityEstimate(
        done=kept * known.done + seen.done_per_s * passed_s,
        busy=kept * known.busy + min(busy, slots) * passed_s,
        span_s=kept * known.span_s + passed_s,
        at_s=at_s,
        slots=known.slots,
        looked_at_s=known.looked_at_s,
    )


def _with_report(known: CapacityEstimate | None, engine: Engine, at_s: float) -> CapacityEstimate | None:
    """With what the engine's agent, or the prober, says of its slots."""
    report = engine.report
    if report is None or report.requests_waiting is None or report.requests_in_flight is None:
        return known
    # Counted at two moments: where many have just left, more seem to wait than are there.
    running = float(max(0, report.requests_in_flight - report.requests_waiting))
    most = float(max_slots(engine))
    narrow = (report.kv_cache_usage_ratio or 0.0) >= _FULL_KV and report.requests_waiting > 0 and running < most
    slots = known.slots if known is not None else None
    if slots is None and not narrow:
        return known
    known = known or CapacityEstimate()
    passed_s = min(at_s - known.looked_at_s, _LONGEST_LOOK_S) if known.looked_at_s else _LONGEST_LOOK_S
    if narrow:
        slots = _moved(most if slots is None else slots, running, passed_s / _NARROWING_S)
    elif slots is not None:
        slots = max(running, _moved(slots, most, passed_s / _WIDENING_S))
        slots = None if slots > (1 - _STEP) * most else slots
    return replace(known, slots=slots, looked_at_s=at_s)


def _moved(value: float, towards: float, share: float) -> float:
    return value + (towards - value) * (1 - math.exp(-share))


def max_slots(engine: Engine) -> int:
    """The declared slots, or those its agent says it has where they are fewer."""
    said = engine.report.slots if engine.report is not None else None
    return max(1, min(engine.slots, said)) if said else engine.slots


def _enough(one: CapacityEstimate) -> bool:
    return one.done >= _ENOUGH_CALLS and one.span_s >= _ENOUGH_SPAN_S


def _pooled_service_time_s(learned: Iterable[CapacityEstimate]) -> float | None:
    """The service time of engines none of which has enough calls alone; None where they have not together."""
    calls = spent_s = 0.0
    for one in learned:
        calls, spent_s = calls + one.done, spent_s + one.busy
    return spent_s / calls if calls >= _ENOUGH_CALLS else None


def _capacity(
    engine: Engine,
    declared: EnginePoolSpec,
    learned: CapacityEstimate | None,
    *,
    own_s: float | None,
    peers_s: float | None,
    before: EngineCapacity | None,
) -> EngineCapacity:
    """The numbers to go by: what was measured within its bounds, in steps, and else what is declared."""
    most, narrowed = float(max_slots(engine)), learned.slots if learned is not None else None
    slots = most if narrowed is None else max(1.0, min(most, narrowed))
    measured_s, source = own_s, MEASURED
    if measured_s is None or (peers_s is not None and measured_s < _UNLIKE_PEERS * peers_s):
        measured_s, source = peers_s, AS_PEERS
    service_s, least_s = declared.service_time, _FASTEST * declared.service_time
    if measured_s is None:
        source = DECLARED
    else:
        service_s = min(max(measured_s, least_s), _SLOWEST * declared.service_time)
    if before is not None:
        if narrowed is not None and _is_negligible(slots, before.slots):
            slots = before.slots
        if DECLARED not in (source, before.source) and _is_negligible(service_s, before.service_s):
            service_s, source = before.service_s, before.source
        if (slots, service_s, source) == (before.slots, before.service_s, before.source):
            return before
    return EngineCapacity(slots=slots, service_s=service_s, source=source)


def _is_negligible(value: float, known: float) -> bool:
    return abs(value - known) < _STEP * known
