"""Which engines take requests: what the ejectors ask for, weighed by the governor, remembered for the next round.

Five ejectors look at each engine: its verdict, the orchestrator, the breaker, the comparison with its peers, and
the operator. The
worst of what they ask is put before the governor. An ejector in shadow mode keeps its books and is not asked;
what would have been decided with it is put beside the decision.

Called ten times a second for every pool, this passes over engines of which nothing new is known: their decisions
stay the same objects, which is also how everyone after it sees that nothing has changed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from engine.report import Verdict
from policies.pool import EnginePoolSpec
from policies.resilience import ResilienceSpec
from xds_server.decide.decisions import Ejector, EngineDecision, Health, PoolDecisions
from xds_server.decide.engines import comeback
from xds_server.decide.engines.asking import (
    Asked,
    Due,
    Round,
    ask_breakers,
    ask_operators,
    ask_orchestrator,
    ask_stragglers,
    ask_verdicts,
)
from xds_server.decide.engines.comeback import Wait
from xds_server.decide.engines.governor import Floor, believed, combined, governed
from xds_server.decide.engines.health import Wish, wish
from xds_server.decide.engines.lost import longest_try_s, lost_since_s
from xds_server.decide.remembered import BreakerState, Comeback, StragglerState
from xds_server.fleet import Engine, EngineId
from xds_server.fleet.orchestrator import OrchestratorWord
from xds_server.fleet.override import Override
from xds_server.fleet.traffic import STALE_S, PoolTraffic

_FLAPPING_SEVERITY: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOutcome:
    """What was decided for the engines of a pool, what must be remembered, and until when that is so."""

    engines: dict[EngineId, EngineDecision]
    breakers: dict[EngineId, BreakerState]
    stragglers: dict[EngineId, StragglerState]
    comebacks: dict[EngineId, Comeback]
    lost_since_s: dict[EngineId, float]
    until_s: float


def engine_decisions(
    pool: EnginePoolSpec,
    resilience: ResilienceSpec,
    engines: Sequence[Engine],
    traffic: PoolTraffic | None,
    *,
    overrides: Mapping[EngineId, Override],
    before: PoolDecisions,
    now_s: float,
) -> EngineOutcome:
    """The decision for each engine of one pool, given what was decided ``before``."""
    due = Due()
    fresh = traffic is not None and now_s - traffic.heard_at_s < STALE_S
    if traffic is not None and fresh:
        due.by(traffic.heard_at_s + STALE_S)
    this = Round(
        pool=pool,
        resilience=resilience,
        engines=engines,
        calls=traffic.engines if traffic is not None and fresh else {},
        sampled=traffic.sampled if traffic is not None else 1.0,
        overrides=overrides,
        known=before.engines,
        breakers=before.breakers,
        stragglers=before.stragglers,
        comebacks=before.comebacks,
        now_s=now_s,
    )
    same = bool(before.made_of) and before.made_of[0] is pool
    asked = ask_verdicts(this, before.declared if same else (), due)
    ask_orchestrator(this, asked)
    breakers = ask_breakers(this, asked, due)
    stragglers = ask_stragglers(this, asked, due)
    ask_operators(this, asked, due)
    floor = Floor(
        percent=resilience.breaker.capacity_floor_percent, engines=resilience.breaker.capacity_floor_engines
    )
    lost = _lost(this, asked, before.lost_since_s)
    long_lost = _long_lost(this, lost, longest_try_s(pool, before.limits, before.admission), due)
    wishes = _believed(this, asked.enforced, long_lost)
    comebacks = _comebacks(this, wishes, due)
    granted = governed(engines, wishes, floor, _out(this, shadow=False))
    shadows: dict[int, Wish] = {}
    if asked.all != asked.enforced:
        would = dict(wishes)
        for place, one in _believed(this, asked.all, long_lost).items():
            would[place] = combined([one, would[place]]) if place in would else one
        shadows = governed(engines, would, floor, _out(this, shadow=True))
    decided = {}
    for place, engine in enumerate(engines):
        last, verdict = this.known.get(engine.id), asked.verdicts.get(place)
        if verdict is None:
            if last is not None and place not in granted and place not in shadows:
                decided[engine.id] = last
                continue
            verdict = wish(engine, pool.probe, last, now_s)
        about = _About(verdict=verdict.verdict, word=engine.orchestrator, now_s=now_s)
        decided[engine.id] = _decision(granted.get(place, verdict), shadows.get(place), last, about)
    return EngineOutcome(
        engines=decided,
        breakers=breakers,
        stragglers=stragglers,
        comebacks=comebacks,
        lost_since_s=lost,
        until_s=due.at_s,
    )


def _lost(this: Round, asked: Asked, before: Mapping[EngineId, float]) -> dict[EngineId, float]:
    """Since when what they hold has looked lost, of engines against which anything is asked, or was since then."""
    found: dict[EngineId, float] = {}
    if not asked.all and not before:
        return found
    for place, engine in enumerate(this.engines):
        if place not in asked.all and engine.id not in before:
            continue
        known, calls = this.known.get(engine.id), this.calls.get(engine.id.engine)
        since_s = lost_since_s(engine, before, known, calls, probe=this.pool.probe, now_s=this.now_s)
        if since_s is not None:
            found[engine.id] = since_s
    return found


def _long_lost(this: Round, since_s: Mapping[EngineId, float], longest_s: float, due: Due) -> frozenset[EngineId]:
    """Engines whose requests have looked lost for as long as a try may take."""
    if not this.resilience.breaker.cut_hung:
        return frozenset()
    for moment_s in since_s.values():
        if this.now_s < moment_s + longest_s:
            due.by(moment_s + longest_s)
    return frozenset(key for key, moment_s in since_s.items() if this.now_s >= moment_s + longest_s)


def _believed(this: Round, wishes: Mapping[int, list[Wish]], long_lost: frozenset[EngineId]) -> dict[int, Wish]:
    """The wish that decides for each engine against which anything is asked, as far as it is to be believed."""
    if not wishes:
        return {}

    def heard() -> int:
        return sum(
            engine.report is not None
            and wish(engine, this.pool.probe, this.known.get(engine.id), this.now_s).heard
            for engine in this.engines
        )

    found = believed(this.engines, {place: combined(those) for place, those in wishes.items()}, heard)
    if not long_lost:
        return found
    return {
        place: replace(one, cut=True)
        if one.health is Health.UNHEALTHY and not one.ordered and this.engines[place].id in long_lost
        else one
        for place, one in found.items()
    }


def _comebacks(this: Round, wishes: dict[int, Wish], due: Due) -> dict[EngineId, Comeback]:
    """Memories of leaving and returning after this round; who has to wait is added to the ``wishes``."""
    states: dict[EngineId, Comeback] = {}
    for place, engine in enumerate(this.engines):
        memory, before = this.comebacks.get(engine.id), this.known.get(engine.id)
        if before is None or (memory is None and before.health is Health.HEALTHY):
            continue
        one = wishes.get(place)
        uncut = before.cut and not (one is not None and one.cut)
        state: Comeback | None
        if one is not None and one.health is not Health.HEALTHY:
            state = comeback.away(memory, uncut=uncut, now_s=this.now_s)
        elif before.health is Health.UNHEALTHY and (before.ejector is not Ejector.OPERATOR or uncut):
            ordered = one is not None and one.ordered
            state, wait = comeback.returning(memory, uncut=uncut, patient=not ordered, now_s=this.now_s)
            if wait is not None:
                due.by(wait.until_s)
                wishes[place] = _waiting(wait, engine, before)
        else:
            state = None if memory is None else comeback.settled(memory, this.now_s)
        if state is not None:
            states[engine.id] = state
    return states


def _waiting(wait: Wait, engine: Engine, before: EngineDecision) -> Wish:
    return Wish(
        health=Health.UNHEALTHY,
        reason=wait.reason,
        verdict=None if engine.report is None else engine.report.verdict,
        until_s=wait.until_s,
        due_s=wait.until_s,
        # The pool may need one that flaps; one whose way is shut serves nobody.
        soft=wait.flapping,
        ejector=before.ejector,
        severity=_FLAPPING_SEVERITY,
        returns="time alone, if it stays well",
    )


def _out(this: Round, *, shadow: bool) -> Callable[[EngineId], bool]:
    """Which engines are out already, really or as it would be."""

    def out(key: EngineId) -> bool:
        decision = this.known.get(key)
        if decision is not None and shadow and decision.shadow is not None:
            decision = decision.shadow
        return decision is not None and decision.health is not Health.HEALTHY

    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class _About:
    """What is said of an engine now, whatever is decided."""

    verdict: Verdict | None
    word: OrchestratorWord | None
    now_s: float


def _decision(granted: Wish, shadow: Wish | None, before: EngineDecision | None, about: _About) -> EngineDecision:
    """The decision; the very same object as before when it says the same."""
    known = None if before is None else before.shadow
    would: EngineDecision | None = None
    if shadow is not None and (shadow.health, shadow.traffic_percent, shadow.cut) != (
        granted.health,
        granted.traffic_percent,
        granted.cut,
    ):
        would = _made(shadow, None, known, about)
        would = known if would == known else would
    made = _made(granted, would, before, about)
    return before if before is not None and before == made else made


def _made(
    one: Wish, shadow: EngineDecision | None, before: EngineDecision | None, about: _About
) -> EngineDecision:
    since_s = about.now_s if before is None or before.health is not one.health else before.since_s
    return EngineDecision(
        health=one.health,
        reason=one.reason,
        since_s=since_s,
        verdict=about.verdict,
        orchestrator=about.word,
        ejector=one.ejector,
        floor=one.floor,
        traffic_percent=one.traffic_percent,
        cut=one.cut and one.health is Health.UNHEALTHY,
        until_s=one.due_s,
        returns=one.returns,
        shadow=shadow,
    )
