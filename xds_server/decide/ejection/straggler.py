"""Ejects engines that are clearly slower than their peers: a lower weight would keep the long tail.

``slowness`` compares engines in rotation with others of the same slots, where enough of them have work. An ejected
engine returns by proof, or on trial where its speed cannot be measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from engine.report import EngineReport
from policies.resilience import Straggler
from xds_server.decide.decision_memory import StragglerState, WorkSample
from xds_server.decide.ejection.circuit_breaker import cooldown_s, proofs_needed
from xds_server.decide.ejection.slowness import (
    FRESH_S,
    NO_PEERS,
    NOT_SLOW,
    RECOVERED_RATIO,
    PeerMedians,
    canary_duration_s,
    median_rate,
    next_work_sample,
    peer_medians,
    slowness,
    tokens_per_running,
)
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pool_traffic import EngineTraffic

CANARY_SLACK_S: Final = 0.03
"""A canary takes milliseconds, and a prober short of CPU adds as many: smaller differences are ignored."""

COOLDOWN_S: Final = 10.0
MAX_COOLDOWN_S: Final = 600.0
_TRIAL_S: Final = 2.0

NEW_STRAGGLER: Final = StragglerState()


def next_straggler_state(
    before: StragglerState | None,
    *,
    slow: tuple[float, str, float | None],
    book: WorkSample | None,
    well_at_s: float | None,
    kept_out: bool,
    policy: Straggler,
    now_s: float,
) -> StragglerState | None:
    """The next state of one engine; None when there is nothing to remember.

    ``well_at_s``: time of evidence newer than ``proof_at_s`` that it is as fast as its peers, negative if the
    evidence says it is not, None without evidence. ``kept_out``: its verdict alone ejects it.
    """
    state = NEW_STRAGGLER if before is None else before
    if state.ejected:
        return _recovering_state(state, well_at_s, kept_out, now_s)
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
    state: StragglerState, well_at_s: float | None, kept_out: bool, now_s: float
) -> StragglerState:
    if well_at_s is not None:
        proofs = 0 if well_at_s < 0 else state.proofs + 1
        state = replace(state, proofs=proofs, proof_at_s=abs(well_at_s))
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
    """One engine as the comparison sees it. ``settled``: hard evidence or an order already decides."""

    engine: Engine
    traffic: EngineTraffic | None
    compared: bool
    settled: bool
    kept_out: bool


def straggler_states(
    candidates: Sequence[StragglerCandidate],
    before: Mapping[EngineId, StragglerState],
    policy: Straggler,
    now_s: float,
) -> dict[EngineId, StragglerState]:
    """The states of a pool's engines after one evaluation."""
    books: dict[EngineId, WorkSample] = {}
    tokens: dict[EngineId, float | None] = {}
    cohorts: dict[int, list[StragglerCandidate]] = {}
    for one in candidates:
        if one.compared:
            cohorts.setdefault(one.engine.slots, []).append(one)
    rates = {slots: _rate_before(cohort, before, policy) for slots, cohort in cohorts.items()}
    for one in (one for cohort in cohorts.values() for one in cohort):
        engine = one.engine
        tokens[engine.id] = tokens_per_running(engine.report, engine.slots, now_s)
        traffic = one.traffic
        in_flight = _in_flight(traffic, engine.report)
        if traffic is not None and in_flight is not None:
            known = before.get(engine.id)
            books[engine.id] = next_work_sample(
                None if known is None else known.sample,
                traffic,
                min(in_flight, engine.slots),
                rates.get(engine.slots),
                after_s=policy.after,
                now_s=now_s,
            )
    medians = {
        slots: peer_medians(
            [books[one.engine.id] for one in cohort if one.engine.id in books],
            [one.traffic for one in cohort if one.traffic is not None],
            [(tokens[one.engine.id], canary_duration_s(one.engine.report)) for one in cohort],
            policy,
        )
        for slots, cohort in cohorts.items()
    }
    states = {}
    for one in candidates:
        key, known = one.engine.id, before.get(one.engine.id)
        if one.settled:
            continue
        cohort = medians.get(one.engine.slots, NO_PEERS)
        book = books.get(key)
        state = next_straggler_state(
            known,
            slow=slowness(book, one.traffic, tokens.get(key), cohort, policy) if one.compared else NOT_SLOW,
            book=book,
            well_at_s=None
            if known is None or not known.ejected
            else _recovery_evidence_at_s(known, one, cohort, now_s),
            kept_out=one.kept_out,
            policy=policy,
            now_s=now_s,
        )
        if state is not None:
            states[key] = state
    return states


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


def _recovery_evidence_at_s(
    state: StragglerState, one: StragglerCandidate, cohort: PeerMedians, now_s: float
) -> float | None:
    """Time of new evidence on an ejected engine, negative if it is still slow; None without."""
    report = one.engine.report
    last_s = max(state.since_s, state.proof_at_s)
    if report is None or report.observed_at_s <= last_s:
        return None
    canary = report.canary
    if canary is not None and canary.at_s > last_s and cohort.canary_s is not None:
        if not canary.in_row:
            return -canary.at_s
        fast = canary.took_s <= RECOVERED_RATIO * cohort.canary_s + CANARY_SLACK_S
        return canary.at_s if fast else -canary.at_s
    running = tokens_per_running(report, one.engine.slots, now_s)
    if running is not None and cohort.tokens_per_s is not None:
        fast = running * RECOVERED_RATIO >= cohort.tokens_per_s
        return report.observed_at_s if fast else -report.observed_at_s
    return None
