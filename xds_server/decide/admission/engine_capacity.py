"""The capacity of each engine: concurrent calls and time per call, declared by the policy, then measured.

**Service time.** An engine that completes X calls per second with L in flight takes L / X per call (Little's law).
Above its slots the rest of L waits, so a call holds a slot for ``min(L, slots) / X``: the mean call duration
without a queue, the slots over the throughput with one. Durations alone would count waiting as work, and the
ceiling made of them would shrink with every waiting request. ``L`` is the sum of the durations of completed calls;
where calls take about as long as the rate window, or longer, what proxies report as open. An engine with few calls
is assumed to be like its peers.

At the usual pace, the estimate stays between a tenth and four times the declared value. A service time
underestimated k times stretches the promised wait by k, so an engine that looks many times faster than its pool is
ignored; an overestimate only refuses earlier.

**Pace.** A service time is what calls need at the engine's usual pace times how many times slower it makes tokens
now (``token_pace``), so that it follows a slow engine with its next report. What calls need is learned over ten
seconds, and their work counts as at the usual pace.

**Slots.** The declared ones. Fewer if the agent reports fewer, if data-parallel ranks hang, or if requests wait
although slots are free because the KV cache is full: then as many as it runs.

If most engines end fewer calls at once, and their tokens do not explain it, the averages start again with the
service time of recent work (``pool_slowdown``).

Learned values outlive missing telemetry for a while, because that says nothing about the engine.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from types import MappingProxyType
from typing import Final

from policies.pool import EnginePoolSpec
from policies.resilience import ResilienceSpec
from xds_server.decide.admission.pool_slowdown import next_work_snapshots, slowed_times, slowed_work
from xds_server.decide.admission.token_pace import CallsLately, confirmed, has_new_pace, next_token_pace
from xds_server.decide.decision_memory import CapacityEstimate, CapacityMemory, PastSpeed, TokenPace, WorkSnapshot
from xds_server.decide.decisions import AS_PEERS, DECLARED, MEASURED, EngineCapacity, EngineDecision, Health
from xds_server.decide.recent_work import recent_work
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.memo import reuse_equal, reuse_mapping
from xds_server.model.pool_traffic import RATE_S, EngineTraffic, PoolTraffic

_MEMORY_S: Final = 10.0
"""Time constant of the average (1/e): a change of model or prompts is known within 30 s."""

_MEMORY_CALLS: Final = 40
"""Minimum memory in calls, for slow engines: half full, they must still collect enough."""

_ENOUGH_CALLS: Final = 20.0
"""With this many calls an estimate is right within about a quarter if times are exponentially distributed."""

_ENOUGH_SPAN_S: Final = 3.0

_ENOUGH_WORK_CALLS: Final = 4.0
_ENOUGH_WORK_S: Final = 1.0
"""Minimum work in the memory: that of four calls as declared, or of all slots for a second if that is less.

Without it, 24 calls of a few tokens, a warm-up, raised a ceiling from 321 to 704.
"""

_LOOK_S: Final = 0.25
"""How often the open calls are sampled: as often as few proxies report them."""

_LASTING: Final = 0.5
"""Minimum share of the rate window that a call must take for open calls to be used."""

_FASTEST: Final = 0.1
_SLOWEST: Final = 4.0
"""Upper bound, as a multiple of the declared service time."""

_UNLIKE_PEERS: Final = 0.25
"""Share of its pool's median below which a fast engine is more likely not doing the work at all."""

_STEP: Final = 0.03
"""Smaller moves are not worth a push to every proxy."""

_FAILING: Final = 0.1
"""Share of failed calls from which times are not learned: the slots do other work, too."""

_KEPT_S: Final = 600.0
"""Without telemetry for this long, learned values are dropped: the load may have changed."""

_PACE_S: Final = 0.5
"""Time of recent calls that confirm a pace, and age of a report that tells one."""

_LONGEST_LOOK_S: Final = 1.0
"""A report covers the time since the previous one, but at most this."""

NO_PAST_SPEEDS: Final[Mapping[EngineId, PastSpeed]] = MappingProxyType({})

_FULL_KV: Final = 0.95
_NARROWING_S: Final = 5.0
_WIDENING_S: Final = 60.0
"""Slots of a KV-bound engine shrink fast, because too many stretch the wait, and grow slowly to avoid swings."""


def engine_capacities(
    pool: EnginePoolSpec,
    resilience: ResilienceSpec,
    engines: Sequence[Engine],
    traffic: PoolTraffic | None,
    *,
    decisions: Mapping[EngineId, EngineDecision],
    before: CapacityMemory,
    past: Mapping[EngineId, PastSpeed] = NO_PAST_SPEEDS,
    now_s: float,
) -> CapacityMemory:
    """The capacity of every engine; ``before`` itself without news. ``past``: how fast each usually is."""
    if not resilience.limits.learn:
        known = before.capacities
        fixed = {engine.id: _declared(engine, pool.service_time, known.get(engine.id)) for engine in engines}
        same = reuse_mapping(known, fixed)
        return before if same is known and not before.estimates else CapacityMemory(capacities=same)
    learned: dict[EngineId, CapacityEstimate] = {}
    seen = traffic.engines if traffic is not None else {}
    work = next_work_snapshots(before.work, engines, seen, decisions, now_s)
    service_s = {key: one.service_s for key, one in before.capacities.items()}
    paces = _next_paces(engines, before, past, work, now_s)
    slowed: Mapping[EngineId, float] = {}
    if work is not before.work:
        slowed = slowed_times(slowed_work(work, service_s), service_s)
    news = len(before.capacities) != len(engines)
    for engine in engines:
        capacity, estimate = before.capacities.get(engine.id), before.estimates.get(engine.id)
        pace, decision = paces.get(engine.id), decisions.get(engine.id)
        one = _estimate(
            engine,
            seen.get(engine.id.engine),
            estimate,
            teaches=_teaches(decision, pace),
            slowdown=1.0 if pace is None else pace.slowdown,
            declared_s=pool.service_time,
            now_s=now_s,
        )
        if engine.id in slowed and capacity is not None and not _shows_pace(pace, now_s):
            one = _slowed(one, capacity.usual_s * slowed[engine.id], now_s)
        if one is not None:
            learned[engine.id] = one
        fits = capacity is not None and _fits(capacity, estimate, engine, pool.service_time)
        slowdown = _slowdown(pace, decision)
        news = news or estimate is not one or not fits or (capacity is not None and capacity.slowdown != slowdown)
    if not news:
        if work is before.work and paces is before.paces:
            return before
        return replace(before, work=work, paces=paces)
    needed_s = {engine.id: _least_work_s(float(engine.slots), pool.service_time) for engine in engines}
    own_s = {key: one.busy / one.done for key, one in learned.items() if _enough(one, needed_s[key])}
    peers_s = median(own_s.values()) if own_s else _pooled_service_time_s(learned.values(), needed_s.values())
    capacities = {
        engine.id: _capacity(
            engine,
            pool,
            learned.get(engine.id),
            own_s=own_s.get(engine.id),
            peers_s=peers_s,
            slowdown=_slowdown(paces.get(engine.id), decisions.get(engine.id)),
            before=before.capacities.get(engine.id),
        )
        for engine in engines
    }
    return CapacityMemory(capacities=capacities, estimates=learned, work=work, paces=paces)


def _next_paces(
    engines: Sequence[Engine],
    before: CapacityMemory,
    past: Mapping[EngineId, PastSpeed],
    work: Sequence[WorkSnapshot],
    now_s: float,
) -> Mapping[EngineId, TokenPace]:
    """The pace of each engine that an agent reports on; the same mapping without news."""
    paces, recent = {}, None
    for engine in engines:
        known = before.paces.get(engine.id)
        news = has_new_pace(known, engine, now_s)
        if news or (known is not None and known.asked is not None):
            if recent is None:
                service_s = {key: one.service_s for key, one in before.capacities.items()}
                recent = recent_work(work, service_s, _PACE_S)
            calls, capacity = recent.get(engine.id), before.capacities.get(engine.id)
            lately = CallsLately(work=calls, service_s=capacity.service_s) if calls and capacity else None
            if news:
                known = next_token_pace(known, engine, past.get(engine.id), lately, now_s)
            elif known is not None:
                known = confirmed(known, lately, now_s)
        if known is not None:
            paces[engine.id] = known
    return before.paces if recent is None and len(paces) == len(before.paces) else paces


def _shows_pace(pace: TokenPace | None, now_s: float) -> bool:
    """Whether the engine's tokens will show a slowdown that its calls show now, with its next report."""
    return pace is not None and bool(pace.usual) and now_s - pace.at_s > _PACE_S


def _slowdown(pace: TokenPace | None, decision: EngineDecision | None) -> float:
    """The slowdown of an engine's capacity: of a paced engine, the part that its share of traffic leaves."""
    if pace is None:
        return 1.0
    share = decision.traffic_percent / 100 if decision is not None and decision.paced else 1.0
    return max(1.0, pace.slowdown * share)


def _slowed(known: CapacityEstimate | None, service_s: float, now_s: float) -> CapacityEstimate:
    """The estimate that begins again with this service time: the pool became slower."""
    return replace(
        known or CapacityEstimate(),
        done=_ENOUGH_CALLS,
        busy=_ENOUGH_CALLS * service_s,
        span_s=_ENOUGH_SPAN_S,
        at_s=now_s,
    )


def _fits(known: EngineCapacity, estimate: CapacityEstimate | None, engine: Engine, declared_s: float) -> bool:
    """Whether the known capacity is compatible with what is declared and reported now."""
    if estimate is None or estimate.slots is None:
        slots_fit = known.slots == max_slots(engine)
    else:
        slots_fit = known.slots <= max_slots(engine)
    if known.source == DECLARED:
        return slots_fit and known.service_s == declared_s * known.slowdown
    return slots_fit and _FASTEST * declared_s <= known.usual_s <= _SLOWEST * declared_s


def _declared(engine: Engine, service_s: float, before: EngineCapacity | None) -> EngineCapacity:
    fresh = EngineCapacity(slots=float(engine.slots), service_s=service_s, source=DECLARED)
    return reuse_equal(before, fresh)


def _teaches(decision: EngineDecision | None, pace: TokenPace | None) -> bool:
    """Whether the engine's times are representative: it gets its full share, or less only for a known slowdown."""
    if decision is None:
        return True
    slow = decision.paced and pace is not None and pace.slowdown > 1
    return decision.health is Health.HEALTHY and (decision.traffic_percent >= 100 or slow)


def _estimate(
    engine: Engine,
    seen: EngineTraffic | None,
    known: CapacityEstimate | None,
    *,
    teaches: bool,
    slowdown: float,
    declared_s: float,
    now_s: float,
) -> CapacityEstimate | None:
    """The estimate, updated with the newest telemetry and report."""
    if known is not None and now_s - max(known.at_s, known.looked_at_s) > _KEPT_S:
        known = None
    if seen is not None and teaches:
        lasting = _lasting(known, seen, slowdown)
        if known is None or (now_s - _LOOK_S if lasting else seen.heard_at_s) > known.at_s:
            open_at_s = now_s if lasting else None
            known = _with_calls(known, engine, seen, declared_s, slowdown=slowdown, open_at_s=open_at_s)
    if engine.received_at_s is not None and (known is None or engine.received_at_s > known.looked_at_s):
        known = _with_report(known, engine, engine.received_at_s)
    return known


def _lasting(known: CapacityEstimate | None, seen: EngineTraffic, slowdown: float) -> bool:
    """Whether calls are so long that they end rarely and in bursts, and open calls show the load better.

    Durations summed as calls end are then zero for a while and far above the slots for a moment.
    """
    if seen.in_flight is None:
        return False
    takes_s = slowdown * known.busy / known.done if known is not None and known.done else seen.service_s
    return takes_s is not None and takes_s > _LASTING * RATE_S


def _with_calls(
    known: CapacityEstimate | None,
    engine: Engine,
    seen: EngineTraffic,
    declared_s: float,
    *,
    slowdown: float,
    open_at_s: float | None,
) -> CapacityEstimate | None:
    """The estimate with newer calls, whose work counts as at the usual pace.

    ``open_at_s``: when open calls are sampled; None: completed calls are used.
    """
    idle = seen.done_per_s <= 0 and (open_at_s is None or not seen.in_flight)
    if idle or seen.window_failures > _FAILING * seen.window_calls:
        return known
    known = known or CapacityEstimate()
    at_s = seen.heard_at_s if open_at_s is None else open_at_s
    # Rates do not cover the time before their window.
    passed_s = min(at_s - known.at_s, RATE_S) if known.at_s else RATE_S
    slots = known.slots or float(engine.slots)
    busy = seen.busy if open_at_s is None else float(seen.in_flight or 0)
    takes_s = slowdown * max(declared_s, known.busy / known.done if known.done else 0.0)
    kept = math.exp(-passed_s / max(_MEMORY_S, _MEMORY_CALLS * takes_s / slots))
    return CapacityEstimate(
        done=kept * known.done + seen.done_per_s * passed_s,
        busy=kept * known.busy + min(busy, slots) * passed_s / slowdown,
        span_s=kept * known.span_s + passed_s,
        at_s=at_s,
        slots=known.slots,
        looked_at_s=known.looked_at_s,
    )


def _with_report(known: CapacityEstimate | None, engine: Engine, at_s: float) -> CapacityEstimate | None:
    """The estimate, updated with what the agent or the prober reports on slots."""
    report = engine.report
    if report is None or report.requests_waiting is None or report.requests_in_flight is None:
        return known
    # The two counts are of different moments: right after many calls end, waiting may exceed in flight.
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
    """The declared slots, or those its agent reports if fewer, without those of hung data-parallel ranks."""
    if engine.report is None:
        return engine.slots
    slots = min(engine.slots, engine.report.slots or engine.slots)
    return max(1, int(slots * engine.report.working_share))


def _least_work_s(slots: float, declared_s: float) -> float:
    """Slot-seconds of work from which calls are representative."""
    return min(_ENOUGH_WORK_CALLS * declared_s, _ENOUGH_WORK_S * slots)


def _enough(one: CapacityEstimate, needed_s: float) -> bool:
    return one.done >= _ENOUGH_CALLS and one.span_s >= _ENOUGH_SPAN_S and one.busy >= needed_s


def _pooled_service_time_s(learned: Iterable[CapacityEstimate], needed_s: Iterable[float]) -> float | None:
    """The common service time of engines without enough calls each; None if they have too few together."""
    calls = spent_s = 0.0
    for one in learned:
        calls, spent_s = calls + one.done, spent_s + one.busy
    return spent_s / calls if calls >= _ENOUGH_CALLS and spent_s >= min(needed_s, default=0.0) else None


def _capacity(
    engine: Engine,
    declared: EnginePoolSpec,
    learned: CapacityEstimate | None,
    *,
    own_s: float | None,
    peers_s: float | None,
    slowdown: float,
    before: EngineCapacity | None,
) -> EngineCapacity:
    """The capacity in use: measured, within bounds and in steps; otherwise declared."""
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
    service_s *= slowdown
    if before is not None:
        if narrowed is not None and _is_negligible(slots, before.slots):
            slots = before.slots
        if DECLARED not in (source, before.source) and _is_negligible(service_s, before.service_s):
            service_s, source = before.service_s, before.source
    return reuse_equal(before, EngineCapacity(slots=slots, service_s=service_s, source=source, slowdown=slowdown))


def _is_negligible(value: float, known: float) -> bool:
    return abs(value - known) < _STEP * known
