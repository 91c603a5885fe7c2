"""Ejection requests for a pool's engines: from verdicts, the orchestrator, the breaker, peers, and operators.

All ejectors read the same frozen round and add requests to the same collection. They ignore each other, with two
exceptions: the breaker and the peer comparison skip what a verdict or the orchestrator explains, and an operator
may overrule soft evidence. ``engine_decisions`` and the arbitration decide.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from engine.report import ReportSource, Verdict
from policies.pool import EnginePoolSpec
from policies.resilience import ResilienceSpec
from xds_server.decide.decision_memory import (
    BreakerState,
    EjectionMemory,
    JointStandstill,
    PresentSpeed,
    PromptWatch,
    WorkSnapshot,
)
from xds_server.decide.decisions import BreakerPhase, Ejector, EngineCapacity, EngineDecision, Health
from xds_server.decide.ejection import circuit_breaker, peer_failures, straggler
from xds_server.decide.ejection.arbitration import share_percent, strongest_request
from xds_server.decide.ejection.joint_standstill import joint_standstills, standstill_since_s
from xds_server.decide.ejection.moved_requests import NO_WATCH, prefill_stalled_since_s, watched_engines
from xds_server.decide.ejection.peer_failures import PeerFailures
from xds_server.decide.ejection.pod_evidence import orchestrator_requests
from xds_server.decide.ejection.present_speed import CONFIRM_S, RISES_S, present_speeds
from xds_server.decide.ejection.report_evidence import EjectionRequest, fresh_for_s, report_request
from xds_server.decide.ejection.straggler import StragglerRound
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.order import Order, OrderAction
from xds_server.model.pod_state import PodPhase
from xds_server.model.pool_traffic import EngineTraffic

_NEVER: Final = float("inf")
_SLOW_SEVERITY: Final = 0.4
_WORKING_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class EjectionInputs:
    """One pool's inputs of a round.

    ``calls``: fresh traffic by engine name; ``capacities`` and ``work``: of the last round. ``streams``: some
    recent answers were streams, or that is unknown. ``pressure``: demand over capacity at the last round.
    """

    pool: EnginePoolSpec
    resilience: ResilienceSpec
    engines: Sequence[Engine]
    calls: Mapping[str, EngineTraffic]
    orders: Mapping[EngineId, Order]
    known: Mapping[EngineId, EngineDecision]
    memory: EjectionMemory
    capacities: Mapping[EngineId, EngineCapacity]
    now_s: float
    work: Sequence[WorkSnapshot] = ()
    streams: bool = True
    pressure: float | None = None


@dataclass(slots=True)
class NextDeadline:
    """The earliest time at which time alone changes something."""

    at_s: float = _NEVER

    def by(self, at_s: float | None) -> None:
        if at_s is not None and at_s < self.at_s:
            self.at_s = at_s


@dataclass(slots=True, kw_only=True)
class EjectionRequests:
    """Requests of the enforced ejectors, and of all of them; by place in the pool.

    ``standing``: engines that stand still with work.
    """

    verdicts: dict[int, EjectionRequest] = field(default_factory=dict)
    enforced: dict[int, list[EjectionRequest]] = field(default_factory=dict)
    all: dict[int, list[EjectionRequest]] = field(default_factory=dict)
    standing: JointStandstill = field(default_factory=JointStandstill)

    def add(self, place: int, one: EjectionRequest, *, shadowed: bool) -> None:
        self.all.setdefault(place, []).append(one)
        if not shadowed:
            self.enforced.setdefault(place, []).append(one)


def verdict_requests(this: EjectionInputs, declared: Sequence[Engine], due: NextDeadline) -> EjectionRequests:
    """What reports ask for. Engines without news and without evidence against them are skipped."""
    asked = EjectionRequests()
    probe, now_s, known = this.pool.probe, this.now_s, this.known
    fresh_s = {source: fresh_for_s(source, probe) for source in ReportSource}
    stalls: dict[EngineId, float] = {}
    places: dict[EngineId, int] = {}
    same = len(declared) == len(this.engines)
    for place, engine in enumerate(this.engines):
        before = known.get(engine.id)
        quiet = before is not None and _unsuspected(before) and not _stood_still(this.memory, engine.id)
        if same and quiet and declared[place] is engine:
            if engine.report is None or engine.received_at_s is None:
                continue
            fresh_until_s = engine.received_at_s + fresh_s[engine.report.source]
            if now_s < fresh_until_s:
                due.by(fresh_until_s)
                continue
        one = report_request(engine, probe, before, now_s)
        due.by(one.until_s)
        asked.verdicts[place] = one
        if one.reported and (since_s := standstill_since_s(engine)) is not None:
            stalls[engine.id], places[engine.id] = since_s, place
        if one.health is not Health.HEALTHY or one.traffic_percent != 100:
            _add_verdict(this, asked, place, one)
    prompts = this.memory.prompts
    moved_s = None if prompts.origin is None else prompts.origin_began_s
    asked.standing = joint_standstills(this.memory.standing, stalls, len(this.engines), moved_s=moved_s)
    together = asked.standing.together
    for key in together:
        one = asked.verdicts[places[key]]
        if one.health is Health.HEALTHY and one.verdict is not None and one.verdict.good:
            _add_verdict(this, asked, places[key], _hung_together(one, len(together)))
    return asked


def _stood_still(memory: EjectionMemory, key: EngineId) -> bool:
    return key in memory.prompts.began_s or key in memory.standing.since_s


def _hung_together(one: EjectionRequest, engines: int) -> EjectionRequest:
    """The request for an engine that stands still with others, and would count as busy alone."""
    reason = one.reason.removeprefix(f"{one.verdict}: ")
    return replace(
        one,
        health=Health.UNHEALTHY,
        verdict=Verdict.HUNG,
        reason=f"{Verdict.HUNG}: {engines} engines stand still since the same moment; {reason}",
        ejector=Ejector.VERDICT,
        returns="a token",
    )


def _add_verdict(this: EjectionInputs, asked: EjectionRequests, place: int, one: EjectionRequest) -> None:
    """Add what a report asks for; shadow mode enforces only orders."""
    if one.verdict is Verdict.HUNG and not one.soft and this.resilience.breaker.cut_hung:
        one = replace(one, cut=one.health is Health.UNHEALTHY and _is_mostly_hung(this.engines[place]))
    report = this.engines[place].report
    if one.soft and report is not None and report.fails_probe:
        one = replace(one, ability=_ability_with_probe(this.calls.get(this.engines[place].id.engine)))
    unenforced = this.resilience.shadowed(None) and not one.ordered
    asked.add(place, one, shadowed=unenforced)
    asked.verdicts[place] = replace(
        one,
        health=Health.HEALTHY,
        soft=False,
        ejector=None,
        cut=False,
        doubt=None,
        returns="",
        traffic_percent=100.0,
        reason=f"kept in rotation: shadow mode; {one.reason}" if unenforced else one.reason,
    )


def _ability_with_probe(calls: EngineTraffic | None) -> float:
    """Ability of an engine that fails its probe: its newest answers, and the probe as one that failed.

    Sheds count, too: an engine that does nothing else yields nothing, whatever it answered before.
    """
    answers, spoiled = (0, 0) if calls is None else (calls.newest_answers, calls.newest_spoiled)
    return (answers - spoiled) / (answers + 1)


def watch_moved_requests(this: EjectionInputs, asked: EjectionRequests, due: NextDeadline) -> PromptWatch:
    """The watch after this round; engines that a moved request may have stopped keep their place."""
    stalls: dict[EngineId, float] = {}
    places: dict[EngineId, int] = {}
    for place, one in asked.verdicts.items():
        began_s = prefill_stalled_since_s(this.engines[place])
        explained = this.engines[place].id in asked.standing.together
        if one.verdict is Verdict.HUNG and place in asked.all and began_s is not None and not explained:
            stalls[this.engines[place].id], places[this.engines[place].id] = began_s, place
    if not stalls and this.memory.prompts == NO_WATCH:
        return NO_WATCH
    watch, watched = watched_engines(
        this.memory.prompts, stalls, together_s=this.pool.probe.interval, now_s=this.now_s
    )
    for key, kept in watched.items():
        place = places[key]
        due.by(kept.until_s)
        asked.enforced.pop(place, None)
        asked.all.pop(place, None)
        one = asked.verdicts[place]
        reason = f"kept in rotation: may hold a request that moved from {kept.origin.engine}; {one.reason}"
        asked.verdicts[place] = replace(one, reason=reason, due_s=kept.until_s)
    return watch


def _is_mostly_hung(engine: Engine) -> bool:
    """Whether cutting its requests frees more than it breaks: at least half of its data-parallel ranks hang."""
    return engine.report is None or not engine.report.hung_ranks or engine.report.working_share <= _WORKING_SHARE


def _unsuspected(decision: EngineDecision) -> bool:
    """Whether nothing suggests that the engine is bad."""
    return (
        decision.health is Health.HEALTHY
        and decision.ejector is None
        and decision.shadow is None
        and decision.traffic_percent == 100
    )


def add_orchestrator_requests(this: EjectionInputs, asked: EjectionRequests) -> None:
    """What the orchestrator asks for. A deletion is a fact, and holds in shadow mode, too."""
    shadowed = this.resilience.shadowed(None)
    for place, one in orchestrator_requests(this.engines).items():
        if this.engines[place].pod_phase is PodPhase.NOT_READY and _keeps_hung(asked, place):
            # Its agent's readiness fails for the same reason.
            continue
        asked.add(place, one, shadowed=shadowed and not this.engines[place].pod_phase.final)


def _keeps_hung(asked: EjectionRequests, place: int) -> bool:
    """Whether a hung engine stays in rotation: some of its ranks work, or it is watched."""
    verdict, wishes = asked.verdicts.get(place), asked.all.get(place, ())
    hung = verdict is not None and verdict.verdict is Verdict.HUNG and verdict.reported
    return hung and all(one.health is Health.HEALTHY for one in wishes)


def _evidence_request(asked: EjectionRequests, place: int) -> EjectionRequest | None:
    """What reports or the orchestrator ask for an engine, enforced or not; None without a request."""
    wishes = [
        one
        for one in asked.all.get(place, ())
        if one.ejector in {Ejector.VERDICT, Ejector.ORCHESTRATOR} and one.health is not Health.HEALTHY
    ]
    return strongest_request(wishes) if wishes else None


def _is_conclusive(one: EjectionRequest | None) -> bool:
    """Whether the request explains failures and slowness, so that nothing else needs to decide."""
    return one is not None and not one.soft


def add_breaker_requests(
    this: EjectionInputs, asked: EjectionRequests, due: NextDeadline
) -> dict[EngineId, BreakerState]:
    """The breakers after this round; adds their requests."""
    policy, states = this.resilience.breaker, {}
    shadowed = this.resilience.shadowed(policy.mode)
    expected_per_s = circuit_breaker.expected_per_s(this.calls, len(this.engines)) if this.memory.breakers else 0.0
    elsewhere: PeerFailures | None = None
    for place, engine in enumerate(this.engines):
        before, calls = this.memory.breakers.get(engine.id), this.calls.get(engine.id.engine)
        if circuit_breaker.has_no_failures(before, calls):
            continue
        if elsewhere is None:
            elsewhere = peer_failures.peer_failures(_admitted_traffic(this))
        said = _evidence_request(asked, place)
        state = circuit_breaker.next_breaker_state(
            before,
            policy,
            circuit_breaker.BreakerInputs(
                traffic=calls,
                report=engine.report,
                settled=_is_conclusive(said),
                kept_out=said is not None,
                expected_per_s=expected_per_s,
                name=engine.id.engine,
                peers=elsewhere,
            ),
            this.now_s,
        )
        if state is None:
            continue
        states[engine.id] = state
        if state.phase is BreakerPhase.CLOSED:
            continue
        due.by(state.until_s if state.phase is BreakerPhase.OPEN else state.since_s + circuit_breaker.TRIAL_S)
        verdict = None if engine.report is None else engine.report.verdict
        if state.phase is BreakerPhase.OPEN:
            one = EjectionRequest(
                health=Health.UNHEALTHY,
                reason=f"{Ejector.ERRORS}: {state.why}",
                verdict=verdict,
                until_s=state.until_s,
                due_s=state.until_s,
                soft=True,
                ejector=Ejector.ERRORS,
                severity=0.5 + 0.4 * state.failing,
                ability=circuit_breaker.ability(state, calls),
                returns=circuit_breaker.recovery_condition(state, policy),
            )
        else:
            proved = state.proofs >= circuit_breaker.proofs_needed(state.opens)
            how = f"after {state.proofs} canaries" if proved else "after its cooldown"
            one = EjectionRequest(
                health=Health.HEALTHY,
                reason=f"on trial {how} with {policy.trial_share_percent:g} % of its traffic; {state.why}",
                verdict=verdict,
                until_s=state.until_s,
                due_s=state.until_s,
                ejector=Ejector.ERRORS,
                traffic_percent=policy.trial_share_percent,
                returns=circuit_breaker.recovery_condition(state, policy),
            )
        asked.add(place, one, shadowed=shadowed)
    return states


def _admitted_traffic(this: EjectionInputs) -> dict[str, EngineTraffic]:
    """Calls to engines in rotation and not on trial: results of others say nothing about chance."""
    found = {}
    for engine in this.engines:
        calls, known = this.calls.get(engine.id.engine), this.known.get(engine.id)
        state = this.memory.breakers.get(engine.id)
        closed = state is None or state.phase is BreakerPhase.CLOSED
        if calls is not None and closed and (known is None or known.health is Health.HEALTHY):
            found[engine.id.engine] = calls
    return found


def add_straggler_requests(this: EjectionInputs, asked: EjectionRequests, due: NextDeadline) -> StragglerRound:
    """The slowness states after this round; adds their requests."""
    policy = this.resilience.straggler
    if not policy.enabled:
        return StragglerRound(states={}, past={})
    shadowed, share = this.resilience.shadowed(policy.mode), this.resilience.breaker.trial_share_percent
    candidates = []
    for place, engine in enumerate(this.engines):
        before, said = this.known.get(engine.id), _evidence_request(asked, place)
        known = this.memory.stragglers.get(engine.id)
        failing = place in asked.all and any(one.health is Health.UNHEALTHY for one in asked.all[place])
        candidates.append(
            straggler.StragglerCandidate(
                engine=engine,
                traffic=this.calls.get(engine.id.engine),
                # An ejected or just returned engine has other work than its peers.
                compared=(
                    not (failing or (known is not None and known.ejected))
                    and before is not None
                    and before.health is Health.HEALTHY
                ),
                settled=_is_conclusive(said),
                hung=said is not None and said.verdict is Verdict.HUNG,
                kept_out=said is not None,
            )
        )
    known_round = StragglerRound(states=this.memory.stragglers, past=this.memory.past_speeds)
    found = straggler.straggler_states(candidates, known_round, policy, this.now_s)
    for place, engine in enumerate(this.engines):
        state = found.states.get(engine.id)
        if state is None or not (state.ejected or state.trial):
            if state is not None and state.slow_since_s is not None:
                due.by(state.slow_since_s + policy.after)
            continue
        due.by(state.until_s)
        verdict = None if engine.report is None else engine.report.verdict
        one = EjectionRequest(
            health=Health.UNHEALTHY if state.ejected else Health.HEALTHY,
            reason=f"{Ejector.SLOWNESS}: {state.why}"
            if state.ejected
            else f"on trial after its cooldown with {share:g} % of its traffic: it was slow",
            verdict=verdict,
            until_s=state.until_s,
            due_s=state.until_s,
            soft=state.ejected,
            ejector=Ejector.SLOWNESS,
            severity=_SLOW_SEVERITY * min(1.0, state.times / 10),
            traffic_percent=100.0 if state.ejected else share,
            ability=1 / max(1.0, state.times) if state.ejected else 1.0,
            returns=straggler.recovery_condition(state, share),
        )
        asked.add(place, one, shadowed=shadowed)
    return found


def add_speed_requests(
    this: EjectionInputs, asked: EjectionRequests, due: NextDeadline
) -> dict[EngineId, PresentSpeed]:
    """The engines that are slower now; adds requests for their shares."""
    policy = this.resilience.straggler
    if not policy.enabled:
        return {}
    shadowed = this.resilience.shadowed(policy.mode)
    compared = {
        place: engine
        for place, engine in enumerate(this.engines)
        if (before := this.known.get(engine.id)) is not None
        and before.health is Health.HEALTHY
        and not any(one.health is not Health.HEALTHY for one in asked.all.get(place, ()))
    }
    speeds: dict[EngineId, PresentSpeed] = {}
    for slots in {engine.slots for engine in compared.values()}:
        speeds |= present_speeds(
            [engine for engine in compared.values() if engine.slots == slots],
            this.calls,
            this.capacities,
            min_peers=policy.min_peers,
            work=this.work,
            before=this.memory.speeds,
            now_s=this.now_s,
        )
    for place, engine in compared.items():
        state = speeds.get(engine.id)
        if state is None:
            continue
        if not state.confirmed:
            due.by(state.began_s + CONFIRM_S)
            continue
        due.by(this.now_s + RISES_S)
        percent = share_percent(1 / state.times)
        one = EjectionRequest(
            health=Health.HEALTHY,
            reason=f"{Ejector.SLOWNESS}: gets {percent:g} % of its traffic while it makes tokens "
            f"{state.times:.1f} times more slowly than its peers",
            verdict=None if engine.report is None else engine.report.verdict,
            until_s=_NEVER,
            ejector=Ejector.SLOWNESS,
            traffic_percent=percent,
            paced=True,
            returns="it is as fast as its peers",
        )
        asked.add(place, one, shadowed=shadowed)
    return speeds


def add_operator_requests(this: EjectionInputs, asked: EjectionRequests, due: NextDeadline) -> None:
    """What operators ask for. Orders are followed in shadow mode, too: they are not evidence."""
    if not this.orders:
        return
    for place, engine in enumerate(this.engines):
        order = this.orders.get(engine.id)
        if order is None or order.until_s <= this.now_s:
            continue
        due.by(order.until_s)
        by = f" by {order.by}" if order.by else ""
        said = f"operator order{by}: {order.action} ({order.reason})"
        if order.action is OrderAction.RESTORE:
            _restore(asked, place, said)
            continue
        before = this.known.get(engine.id)
        # An order stays carried out: its reason continues outside our view.
        carried_out = before is not None and before.ejector is Ejector.OPERATOR and not before.floor
        one = EjectionRequest(
            health=Health.UNHEALTHY if order.action is OrderAction.EJECT else Health.DRAINING,
            reason=said,
            verdict=None if engine.report is None else engine.report.verdict,
            until_s=order.until_s,
            due_s=order.until_s,
            soft=not (order.force or carried_out),
            ordered=True,
            ejector=Ejector.OPERATOR,
            severity=1.0,
            returns="the order ends or is cancelled",
        )
        asked.add(place, one, shadowed=False)


def _restore(asked: EjectionRequests, place: int, said: str) -> None:
    """Overrule soft evidence against an engine, as the operator ordered."""
    for wishes in (asked.enforced, asked.all):
        against = wishes.get(place, [])
        kept = [one for one in against if not (one.soft or one.traffic_percent < 100)]
        beaten = [one for one in against if one not in kept]
        if kept:
            wishes[place] = kept
        elif beaten:
            worst = strongest_request(beaten)
            wishes[place] = [
                replace(
                    worst,
                    health=Health.HEALTHY,
                    soft=False,
                    doubt=None,
                    ordered=True,
                    ejector=Ejector.OPERATOR,
                    traffic_percent=100.0,
                    reason=f"{said}; overruled: {worst.reason}",
                    returns="the order ends, or hard evidence arrives",
                )
            ]
