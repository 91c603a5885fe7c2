"""Which engines take requests: the ejectors ask, the arbitration grants, the memory goes to the next round.

Five ejectors look at each engine: its verdict, the orchestrator, the breaker, the peer comparison, and operators.
The strongest request goes to the arbitration. An ejector in shadow mode keeps its state without effect; what it
would have changed is recorded with the decision.

This runs ten times a second for every pool, so engines without news are skipped. Their decisions stay the same
objects, which is how later steps detect that nothing changed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from engine.report import Verdict
from policies.pool import EnginePoolSpec
from policies.resilience import ResilienceSpec
from xds_server.decide.decision_memory import EjectionMemory, FlapState, PoolMemory
from xds_server.decide.decisions import AFTER_WAIT, BreakerStatus, Ejector, EngineDecision, Health
from xds_server.decide.ejection import flap_damping
from xds_server.decide.ejection.arbitration import (
    NEGLIGIBLE,
    NEGLIGIBLE_OUTSIDE,
    CapacityFloor,
    ZoneRelief,
    credible_requests,
    granted_requests,
    strongest_request,
)
from xds_server.decide.ejection.ejection_requests import (
    EjectionInputs,
    EjectionRequests,
    NextDeadline,
    add_breaker_requests,
    add_operator_requests,
    add_orchestrator_requests,
    add_speed_requests,
    add_straggler_requests,
    verdict_requests,
    watch_moved_requests,
)
from xds_server.decide.ejection.flap_damping import ReturnDelay
from xds_server.decide.ejection.lost_contact import longest_try_s, lost_contact_since_s
from xds_server.decide.ejection.report_evidence import EjectionRequest, report_request
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.memo import reuse_equal
from xds_server.model.order import Order
from xds_server.model.pod_state import PodState
from xds_server.model.pool_traffic import STALE_S, PoolTraffic

_FLAPPING_SEVERITY: Final = 0.1

_OVERLOAD: Final = 1.2
"""Demand over capacity from which slow engines are cut, too: each sixth caller is refused. Two slow ones of eight
at 80 % load make it 1.07: there the answers that they still give are worth more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EjectionOutcome:
    """The decisions for a pool's engines, the next round's state, and until when (monotonic) they hold.

    ``breakers`` and ``slow`` are as in ``PoolDecisions``.
    """

    engines: dict[EngineId, EngineDecision]
    breakers: dict[EngineId, BreakerStatus]
    slow: dict[EngineId, bool]
    memory: EjectionMemory
    until_s: float


def engine_decisions(
    pool: EnginePoolSpec,
    resilience: ResilienceSpec,
    engines: Sequence[Engine],
    traffic: PoolTraffic | None,
    *,
    orders: Mapping[EngineId, Order],
    before: PoolMemory,
    now_s: float,
    relief: Callable[[], ZoneRelief | None] = lambda: None,
) -> EjectionOutcome:
    """The decision for each engine of one pool, given the last round's state. ``relief``: how its zones help."""
    due = NextDeadline()
    fresh = traffic is not None and now_s - traffic.heard_at_s < STALE_S
    if traffic is not None and fresh:
        due.by(traffic.heard_at_s + STALE_S)
    this = EjectionInputs(
        pool=pool,
        resilience=resilience,
        engines=engines,
        calls=traffic.engines if traffic is not None and fresh else {},
        orders=orders,
        known=before.decided.engines,
        memory=before.ejection,
        capacities=before.capacity.capacities,
        now_s=now_s,
        work=before.capacity.work,
        pressure=None if before.decided.admission is None else before.decided.admission.pressure,
        streams=traffic is None or not fresh or traffic.first_byte is not None,
    )
    same = bool(before.inputs) and before.inputs[0] is pool
    asked = verdict_requests(this, before.decided.declared if same else (), due)
    prompts = watch_moved_requests(this, asked, due)
    add_orchestrator_requests(this, asked)
    breakers = add_breaker_requests(this, asked, due)
    stragglers = add_straggler_requests(this, asked, due)
    speeds = add_speed_requests(this, asked, due)
    add_operator_requests(this, asked, due)
    floor = CapacityFloor(
        percent=resilience.breaker.capacity_floor_percent,
        engines=resilience.breaker.capacity_floor_engines,
        relief=relief() if asked.all else None,
    )
    lost = _lost_contact(this, asked, before.ejection.lost_since_s)
    longest_s = longest_try_s(pool, before.decided.limits, before.decided.admission)
    long_lost = _lost_contact_expired(this, lost, longest_s, due)
    wishes = _credible_requests(this, asked.enforced, long_lost)
    comebacks = _flap_states(this, wishes, due)
    granted = granted_requests(engines, wishes, floor, _already_ejected(this, shadow=False))
    shadows: dict[int, EjectionRequest] = {}
    if asked.all != asked.enforced:
        would = dict(wishes)
        for place, one in _credible_requests(this, asked.all, long_lost).items():
            would[place] = strongest_request([one, would[place]]) if place in would else one
        shadows = granted_requests(engines, would, floor, _already_ejected(this, shadow=True))
    decided = {}
    for place, engine in enumerate(engines):
        last, verdict = this.known.get(engine.id), asked.verdicts.get(place)
        if verdict is None:
            if last is not None and place not in granted and place not in shadows:
                decided[engine.id] = last
                continue
            verdict = report_request(engine, pool.probe, last, now_s)
        about = _EngineEvidence(verdict=verdict.verdict, pod_state=engine.pod_state, now_s=now_s)
        decided[engine.id] = _decision(granted.get(place, verdict), shadows.get(place), last, about)
    return EjectionOutcome(
        engines=decided,
        breakers={
            key: BreakerStatus(phase=one.phase, until_s=one.until_s, opens=one.opens)
            for key, one in breakers.items()
        },
        # A slow engine keeps its count of ejections until long after it has recovered.
        slow={key: one.ejected for key, one in stragglers.states.items() if one.ejections},
        memory=EjectionMemory(
            breakers=breakers,
            stragglers=stragglers.states,
            past_speeds=stragglers.past,
            flaps=comebacks,
            lost_since_s=lost,
            prompts=prompts,
            standing=asked.standing,
            speeds=speeds,
        ),
        until_s=due.at_s,
    )


def _lost_contact(
    this: EjectionInputs, asked: EjectionRequests, before: Mapping[EngineId, float]
) -> dict[EngineId, float]:
    """Since when contact has looked lost, for engines with a request against them now or since then."""
    found: dict[EngineId, float] = {}
    if not asked.all and not before:
        return found
    for place, engine in enumerate(this.engines):
        if place not in asked.all and engine.id not in before:
            continue
        known, calls = this.known.get(engine.id), this.calls.get(engine.id.engine)
        since_s = lost_contact_since_s(engine, before, known, calls, probe=this.pool.probe, now_s=this.now_s)
        if since_s is not None:
            found[engine.id] = since_s
    return found


def _lost_contact_expired(
    this: EjectionInputs, since_s: Mapping[EngineId, float], longest_s: float, due: NextDeadline
) -> frozenset[EngineId]:
    """Engines whose requests have looked lost for as long as a try may take."""
    if not this.resilience.breaker.cut_hung:
        return frozenset()
    for moment_s in since_s.values():
        if this.now_s < moment_s + longest_s:
            due.by(moment_s + longest_s)
    return frozenset(key for key, moment_s in since_s.items() if this.now_s >= moment_s + longest_s)


def _credible_requests(
    this: EjectionInputs, wishes: Mapping[int, list[EjectionRequest]], long_lost: frozenset[EngineId]
) -> dict[int, EjectionRequest]:
    """The strongest credible request for each engine that has any."""
    if not wishes:
        return {}

    def heard() -> list[Engine]:
        return [
            engine
            for engine in this.engines
            if engine.report is not None
            and report_request(engine, this.pool.probe, this.known.get(engine.id), this.now_s).reported
        ]

    found = credible_requests(this.engines, wishes, heard)
    useless = _useless_engines(this, wishes) if len(found) < len(this.engines) else frozenset()
    if not long_lost and not useless:
        return found
    return {
        place: replace(one, cut=True)
        if one.health is Health.UNHEALTHY
        and not one.ordered
        and (place in useless or this.engines[place].id in long_lost)
        else one
        for place, one in found.items()
    }


def _useless_engines(this: EjectionInputs, wishes: Mapping[int, list[EjectionRequest]]) -> frozenset[int]:
    """Engines, by place, that fail nearly every call: those that they hold are better tried elsewhere.

    Slow ones finish theirs, late. If they are fewer than the good ones they count, too, while the pool refuses
    many callers: a late answer is then worth no more than one of those. Not where answers are streams: a retry
    cannot continue one that has begun.
    """
    if this.streams or not this.resilience.breaker.cut_hung or not this.resilience.retries.attempts:
        return frozenset()

    def useless(one: EjectionRequest, key: EngineId) -> bool:
        known = this.known.get(key)
        least = NEGLIGIBLE_OUTSIDE if known is not None and known.cut else NEGLIGIBLE
        return one.soft and one.ability <= least

    found = {
        place: {one.ejector for one in those if useless(one, this.engines[place].id)}
        for place, those in wishes.items()
    }
    slow = {place for place, why in found.items() if why == {Ejector.SLOWNESS}}
    overload = this.pressure is not None and this.pressure >= _OVERLOAD
    if not (overload and len(slow) < len(this.engines) - len(wishes)):
        # Those that are cut stay so.
        known = this.known
        slow = {p for p in slow if (last := known.get(this.engines[p].id)) is not None and last.cut}
    return frozenset(place for place, why in found.items() if why - {Ejector.SLOWNESS} or place in slow)


def _flap_states(
    this: EjectionInputs, wishes: dict[int, EjectionRequest], due: NextDeadline
) -> dict[EngineId, FlapState]:
    """Flap states after this round; engines that must wait are added to ``wishes``."""
    states: dict[EngineId, FlapState] = {}
    for place, engine in enumerate(this.engines):
        memory, before = this.memory.flaps.get(engine.id), this.known.get(engine.id)
        if before is None or (memory is None and before.health is Health.HEALTHY):
            continue
        one = wishes.get(place)
        uncut = before.cut and not (one is not None and one.cut)
        state: FlapState | None
        if one is not None and one.health is not Health.HEALTHY:
            state = flap_damping.while_ejected(memory, uncut=uncut, now_s=this.now_s)
        elif before.health is Health.UNHEALTHY and (before.ejector is not Ejector.OPERATOR or uncut):
            ordered = one is not None and one.ordered
            state, wait = flap_damping.while_returning(memory, uncut=uncut, patient=not ordered, now_s=this.now_s)
            if wait is not None:
                due.by(wait.until_s)
                wishes[place] = _return_delay_request(wait, engine, before)
        else:
            state = None if memory is None else flap_damping.while_admitted(memory, this.now_s)
        if state is not None:
            states[engine.id] = state
    return states


def _return_delay_request(wait: ReturnDelay, engine: Engine, before: EngineDecision) -> EjectionRequest:
    return EjectionRequest(
        health=Health.UNHEALTHY,
        reason=wait.reason,
        verdict=None if engine.report is None else engine.report.verdict,
        until_s=wait.until_s,
        due_s=wait.until_s,
        # The pool may need a flapping engine; an unreachable one serves nothing.
        soft=wait.flapping,
        ejector=before.ejector,
        severity=_FLAPPING_SEVERITY,
        returns=AFTER_WAIT,
    )


def _already_ejected(this: EjectionInputs, *, shadow: bool) -> Callable[[EngineId], bool]:
    """Which engines are already ejected, really or in shadow mode."""

    def out(key: EngineId) -> bool:
        decision = this.known.get(key)
        if decision is not None and shadow and decision.shadow is not None:
            decision = decision.shadow
        return decision is not None and decision.health is not Health.HEALTHY

    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class _EngineEvidence:
    """The evidence on an engine now, whatever is decided."""

    verdict: Verdict | None
    pod_state: PodState | None
    now_s: float


def _decision(
    granted: EjectionRequest, shadow: EjectionRequest | None, before: EngineDecision | None, about: _EngineEvidence
) -> EngineDecision:
    """The decision; the previous object if it is equal."""
    known = None if before is None else before.shadow
    would: EngineDecision | None = None
    if shadow is not None and (shadow.health, shadow.traffic_percent, shadow.cut) != (
        granted.health,
        granted.traffic_percent,
        granted.cut,
    ):
        would = _engine_decision(shadow, None, known, about)
        would = reuse_equal(known, would)
    made = _engine_decision(granted, would, before, about)
    return reuse_equal(before, made)


def _engine_decision(
    one: EjectionRequest, shadow: EngineDecision | None, before: EngineDecision | None, about: _EngineEvidence
) -> EngineDecision:
    since_s = about.now_s if before is None or before.health is not one.health else before.since_s
    return EngineDecision(
        health=one.health,
        reason=one.reason,
        since_s=since_s,
        verdict=about.verdict,
        pod_state=about.pod_state,
        ejector=one.ejector,
        floor=one.floor,
        traffic_percent=one.traffic_percent,
        paced=one.paced,
        cut=one.cut and one.health is Health.UNHEALTHY,
        until_s=one.due_s,
        returns=one.returns,
        shadow=shadow,
    )
