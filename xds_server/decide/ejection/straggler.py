"""Ejects engines that are clearly slower than their peers: a lower weight would keep the long tail.

``slowness`` compares engines in rotation with others of the same slots and revision in any zone, where enough of
them have work and most are as fast as usual; otherwise ``past_speed`` compares an engine with its own past. An
ejected engine returns by proof, or on trial where its speed cannot be measured.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from engine.report import EngineReport
from policies.resilience import Straggler
from xds_server.decide.decision_memory import PastSpeed, StragglerState, WorkSample
from xds_server.decide.ejection.circuit_breaker import cooldown_s, proofs_needed
from xds_server.decide.ejection.past_speed import (
    CANARY_SLACK_S,
    PastEvidence,
    canary_ratio,
    canary_times_slower,
    next_past_speed,
    past_of_proven,
    slower_than_before,
    times_slower_now,
)
from xds_server.decide.ejection.slowness import (
    FRESH_S,
    MOST_TIMES,
    NO_PEERS,
    NOT_SLOW,
    RECOVERED_RATIO,
    PeerMedians,
    canary_duration_s,
    median_rate,
    next_work_sample,
    peer_medians,
    running_requests,
    slowness,
    tokens_per_running,
)
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pool_traffic import EngineTraffic

COOLDOWN_S: Final = 10.0
MAX_COOLDOWN_S: Final = 600.0
_TRIAL_S: Final = 2.0

_NEWS: Final = 0.5
"""Weight of the newest measurement in an ejected engine's slowness: the first covers calls before the fault."""

_ALIKE: Final = 1.25
"""Smaller changes of that slowness are noise, and would push a new share to every proxy."""

NEW_STRAGGLER: Final = StragglerState()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedEvidence:
    """How many times slower than its peers an ejected engine is, and whether that is as fast as they are.

    ``running`` requests are on it; None if unknown.
    """

    at_s: float
    times: float
    fast: bool
    running: int | None = None


def next_straggler_state(
    before: StragglerState | None,
    *,
    slow: tuple[float, str, float | None],
    book: WorkSample | None,
    speed: SpeedEvidence | None,
    kept_out: bool,
    policy: Straggler,
    now_s: float,
) -> StragglerState | None:
    """The next state of one engine; None when there is nothing to remember.

    ``speed``: evidence on an ejected engine newer than ``proof_at_s``. ``kept_out``: its verdict alone ejects it.
    """
    state = NEW_STRAGGLER if before is None else before
    if state.ejected:
        return _recovering_state(state, speed, kept_out, now_s)
    times, why, evident_s = slow
    if times:
        since_s = min(since_s for since_s in (state.slow_since_s, evident_s, now_s) if since_s is not None)
        if now_s - since_s >= policy.after:
            outs = state.ejections + 1
            return StragglerState(
                ejected=True,
                slow_since_s=since_s,
                since_s=now_s,
                until_s=now_s + cooldown_s(COOLDOWN_S, MAX_COOLDOWN_S, outs),
                ejections=outs,
                times=times,
                running=0 if book is None else book.in_use,
                why=why,
            )
        return replace(state, slow_since_s=since_s, sample=book)
    if state.trial and now_s >= state.until_s:
        state = replace(state, trial=False, since_s=now_s)
    if (
        state.ejections
        and not state.trial
        and now_s - state.since_s >= cooldown_s(COOLDOWN_S, MAX_COOLDOWN_S, state.ejections)
    ):
        state = NEW_STRAGGLER
    if book is None and not state.ejections:
        return None
    if not state.ejections:
        # The common case, ten times a second per engine.
        return state if state.sample is book and state.slow_since_s is None else StragglerState(sample=book)
    return replace(state, slow_since_s=None, sample=book)


def _recovering_state(
    state: StragglerState, speed: SpeedEvidence | None, kept_out: bool, now_s: float
) -> StragglerState:
    if speed is not None:
        times, seen = state.times, min(MOST_TIMES, max(1.0, speed.times))
        if not times <= seen * _ALIKE <= _ALIKE * _ALIKE * times:
            times += _NEWS * (seen - times)
        proofs = state.proofs + 1 if speed.fast else 0
        running = state.running if speed.running is None else speed.running
        state = replace(state, proofs=proofs, proof_at_s=speed.at_s, times=times, running=running)
    if kept_out:
        return state
    if state.proofs >= proofs_needed(state.ejections):
        return StragglerState(ejections=state.ejections, since_s=now_s)
    # While its speed can be measured otherwise, no trial is needed.
    if now_s >= state.until_s and now_s - state.proof_at_s >= FRESH_S:
        return StragglerState(ejections=state.ejections, since_s=now_s, until_s=now_s + _TRIAL_S, trial=True)
    return state


def recovery_condition(state: StragglerState, trial_share_percent: float) -> str:
    """What returns the engine to rotation, in words."""
    if state.trial:
        return "it keeps up with its peers during the trial"
    return (
        f"{proofs_needed(state.ejections)} measurements in a row of at most {RECOVERED_RATIO:g} times its peers' "
        f"time; if its speed cannot be measured, a trial with {trial_share_percent:g} % of its traffic "
        f"{cooldown_s(COOLDOWN_S, MAX_COOLDOWN_S, state.ejections):g} s after its ejection"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerCandidate:
    """One engine as the comparison sees it.

    ``settled``: hard evidence or an order already decides; ``hung`` if that is its verdict.
    """

    engine: Engine
    traffic: EngineTraffic | None
    compared: bool
    settled: bool
    hung: bool
    kept_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerRound:
    """The states of a pool's engines, and what is usual for each; also the memory of the next evaluation."""

    states: Mapping[EngineId, StragglerState]
    past: Mapping[EngineId, PastSpeed]


_CohortKey = tuple[int, str]
"""Slots and revision; no revision where too few engines have it."""


def straggler_states(
    candidates: Sequence[StragglerCandidate], before: StragglerRound, policy: Straggler, now_s: float
) -> StragglerRound:
    """The states after one evaluation."""
    keys = _cohort_keys(candidates, policy)
    books, cohorts = _measured_cohorts(candidates, keys, before, policy, now_s)
    states: dict[EngineId, StragglerState] = {}
    past: dict[EngineId, PastSpeed] = {}
    for one in candidates:
        key = one.engine.id
        known, usual = before.states.get(key), before.past.get(key)
        peers, book = cohorts.get(keys[key], NO_PEERS), books.get(key)
        seen = PastEvidence(report=one.engine.report, book=book, slots=one.engine.slots, peers=peers, now_s=now_s)
        if one.compared and not (known is not None and known.trial):
            usual = next_past_speed(usual, seen, policy)
        if usual is not None:
            past[key] = usual
        if one.settled:
            # A slow engine may look hung for a moment. What proves its recovery stays the same.
            if one.hung and known is not None and known.ejections:
                states[key] = replace(known, slow_since_s=None, sample=None)
            continue
        slow = NOT_SLOW
        if one.compared:
            tokens = tokens_per_running(seen.report, seen.slots, now_s)
            slow = NOT_SLOW if peers.most_slow else slowness(book, one.traffic, tokens, peers, policy)
            if not slow[0]:
                slow = slower_than_before(usual, seen, policy)
        state = next_straggler_state(
            known,
            slow=slow,
            book=book,
            speed=None
            if known is None or not known.ejected
            else _recovery_evidence(known, one, peers, usual, now_s),
            kept_out=one.kept_out,
            policy=policy,
            now_s=now_s,
        )
        if state is not None:
            states[key] = state
            if usual is not None and known is not None and known.ejected and not (state.ejected or state.trial):
                past[key] = past_of_proven(usual)
    return StragglerRound(states=states, past=past)


def _cohort_keys(candidates: Sequence[StragglerCandidate], policy: Straggler) -> dict[EngineId, _CohortKey]:
    """The peers of each engine: those of its slots and revision, or of its slots if these are too few."""
    counts = Counter((one.engine.slots, one.engine.revision) for one in candidates if one.compared)
    return {
        one.engine.id: (
            one.engine.slots,
            one.engine.revision if counts[one.engine.slots, one.engine.revision] >= policy.min_peers else "",
        )
        for one in candidates
    }


def _measured_cohorts(
    candidates: Sequence[StragglerCandidate],
    keys: Mapping[EngineId, _CohortKey],
    before: StragglerRound,
    policy: Straggler,
    now_s: float,
) -> tuple[dict[EngineId, WorkSample], dict[_CohortKey, PeerMedians]]:
    """The work of each compared engine, and the medians of each cohort."""
    members: dict[_CohortKey, list[StragglerCandidate]] = {}
    for one in candidates:
        if one.compared:
            for key in {keys[one.engine.id], (one.engine.slots, "")}:
                members.setdefault(key, []).append(one)
    rates = {key: _rate_before(cohort, before.states, policy) for key, cohort in members.items()}
    books: dict[EngineId, WorkSample] = {}
    for one in candidates:
        engine, traffic = one.engine, one.traffic
        in_flight = _in_flight(traffic, engine.report)
        if one.compared and traffic is not None and in_flight is not None:
            known = before.states.get(engine.id)
            books[engine.id] = next_work_sample(
                None if known is None else known.sample,
                traffic,
                min(in_flight, engine.slots),
                rates[keys[engine.id]],
                after_s=policy.after,
                now_s=now_s,
            )
    medians = {}
    for key, cohort in members.items():
        usual = _at_their_usual_pace(cohort, before.past, policy, now_s)
        peers = cohort if usual is None else usual
        medians[key] = replace(
            peer_medians(
                [books[one.engine.id] for one in peers if one.engine.id in books],
                [one.traffic for one in peers if one.traffic is not None],
                [
                    (
                        tokens_per_running(one.engine.report, one.engine.slots, now_s),
                        canary_duration_s(one.engine.report),
                    )
                    for one in peers
                ],
                policy,
            ),
            heard=len(cohort),
            canary_ratio=canary_ratio((one.engine.report, before.past.get(one.engine.id)) for one in peers),
            most_slow=usual is not None,
        )
    return books, medians


def _at_their_usual_pace(
    cohort: Sequence[StragglerCandidate],
    past: Mapping[EngineId, PastSpeed],
    policy: Straggler,
    now_s: float,
) -> list[StragglerCandidate] | None:
    """The engines that make tokens as usual while most do not; None if most do, or too few to tell.

    Idle ones make none: their canaries count. Otherwise the few good engines of a pool with little traffic would
    hardly ever prove their pace.
    """
    times = [
        (one, now)
        for one in cohort
        if (usual := past.get(one.engine.id)) is not None
        and (now := _times_slower(usual, one.engine, policy, now_s)) is not None
    ]
    slow = sum(now >= policy.slower_than for _, now in times)
    found = [one for one, now in times if now < RECOVERED_RATIO]
    return found if 2 * slow >= len(times) and len(found) >= policy.min_peers - 1 else None


def _times_slower(usual: PastSpeed, engine: Engine, policy: Straggler, now_s: float) -> float | None:
    """How many times slower than usual the engine is, by its tokens or its canary; None if unknown."""
    tokens = times_slower_now(usual, engine.report, engine.slots, policy, now_s)
    return canary_times_slower(usual, engine.report, policy, now_s) if tokens is None else tokens


def _rate_before(
    cohort: Sequence[StragglerCandidate], before: Mapping[EngineId, StragglerState], policy: Straggler
) -> float | None:
    """Median calls per slot in use and second that a cohort finished at the last evaluation."""
    known = [state.sample for one in cohort if (state := before.get(one.engine.id)) is not None and state.sample]
    return median_rate(known, policy)


def _in_flight(traffic: EngineTraffic | None, report: EngineReport | None) -> int | None:
    """Calls on the engine: as reported by proxies, otherwise by the engine."""
    if traffic is not None and traffic.in_flight is not None:
        return traffic.in_flight
    return None if report is None else report.requests_in_flight


def _recovery_evidence(
    state: StragglerState, one: StragglerCandidate, cohort: PeerMedians, usual: PastSpeed | None, now_s: float
) -> SpeedEvidence | None:
    """New evidence on an ejected engine; None without."""
    usual_s = max(cohort.quick_canary_s or 0.0, 0.0 if usual is None else usual.canary_s or 0.0)
    report = one.engine.report
    last_s = max(state.since_s, state.proof_at_s)
    if report is None or report.observed_at_s <= last_s:
        return None
    canary = report.canary
    if canary is not None and canary.at_s > last_s and usual_s:
        fast = bool(canary.in_row) and canary.took_s <= RECOVERED_RATIO * usual_s + CANARY_SLACK_S
        return SpeedEvidence(
            at_s=canary.at_s, times=canary.took_s / usual_s if canary.in_row else state.times, fast=fast
        )
    # While it drains, few requests are left of those that made its tokens.
    tokens_per_s = tokens_per_running(report, one.engine.slots, now_s, ran=state.running)
    peers_per_s = cohort.quick_tokens_per_s
    if tokens_per_s is not None and peers_per_s is not None:
        return SpeedEvidence(
            at_s=report.observed_at_s,
            times=peers_per_s / max(tokens_per_s, 1e-9),
            fast=tokens_per_s * RECOVERED_RATIO >= peers_per_s,
            running=running_requests(report, one.engine.slots, now_s),
        )
    return None
