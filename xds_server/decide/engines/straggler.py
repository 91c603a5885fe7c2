"""Engines that are clearly slower than their peers: out, because a low weight keeps the tail long.

Compared (``slowness``) are engines that are in, with others of as many slots, and only where enough of them have
work. An engine that is out comes back by proof, or on trial where no look shows its speed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from engine.report import EngineReport
from policies.resilience import Straggler
from xds_server.decide.engines.breaker import cooldown_s, proofs_needed
from xds_server.decide.engines.slowness import (
    FRESH_S,
    NOBODY,
    NOT_SLOW,
    WELL_AGAIN,
    Peers,
    booked,
    canary_took_s,
    median_rate,
    peers,
    slowness,
    tokens_per_running,
)
from xds_server.decide.remembered import Book, StragglerState
from xds_server.fleet import Engine, EngineId
from xds_server.fleet.traffic import EngineTraffic

CANARY_SLACK_S: Final = 0.03
"""A canary takes milliseconds, and a judge short of CPU adds as many: so much is no difference."""

COOLDOWN_S: Final = 10.0
MOST_COOLDOWN_S: Final = 600.0
_TRIAL_S: Final = 2.0

NEW: Final = StragglerState()


def stepped(
    before: StragglerState | None,
    *,
    slow: tuple[float, str, float | None],
    book: Book | None,
    well_at_s: float | None,
    kept_out: bool,
    policy: Straggler,
    now_s: float,
) -> StragglerState | None:
    """The state of one engine after one look at it; None when there is nothing to remember.

    ``well_at_s`` is when evidence newer than ``proof_at_s`` came that it is as fast as its peers; negative when it
    came and says that it is not; None when none came. ``kept_out``: its verdict alone would keep it out.
    """
    state = NEW if before is None else before
    if state.out:
        return _returning(state, well_at_s, kept_out, now_s)
    times, why, evident_s = slow
    if times:
        since_s = min(since_s for since_s in (state.slow_since_s, evident_s, now_s) if since_s is not None)
        if now_s - since_s >= policy.after:
            outs = state.outs + 1
            return StragglerState(
                out=True,
                slow_since_s=since_s,
                since_s=now_s,
                until_s=now_s + cooldown_s(COOLDOWN_S, MOST_COOLDOWN_S, outs),
                outs=outs,
                times=times,
                why=why,
            )
        return replace(state, slow_since_s=since_s, book=book)
    if state.trial and now_s >= state.until_s:
        state = replace(state, trial=False, since_s=now_s)
    if (
        state.outs
        and not state.trial
        and now_s - state.since_s >= cooldown_s(COOLDOWN_S, MOST_COOLDOWN_S, state.outs)
    ):
        state = NEW
    if book is None and not state.outs:
        return None
    if not state.outs:
        # The common case, ten times a second for each engine.
        return state if state.book is book and state.slow_since_s is None else StragglerState(book=book)
    return replace(state, slow_since_s=None, book=book)


def _returning(state: StragglerState, well_at_s: float | None, kept_out: bool, now_s: float) -> StragglerState:
    if well_at_s is not None:
        proofs = 0 if well_at_s < 0 else state.proofs + 1
        state = replace(state, proofs=proofs, proof_at_s=abs(well_at_s))
    if kept_out:
        return state
    if state.proofs >= proofs_needed(state.outs):
        return StragglerState(outs=state.outs, since_s=now_s)
    # While its speed can be seen without them, requests need not try it.
    if now_s >= state.until_s and now_s - state.proof_at_s >= FRESH_S:
        return StragglerState(outs=state.outs, since_s=now_s, until_s=now_s + _TRIAL_S, trial=True)
    return state


def returns(state: StragglerState, trial_share_percent: float) -> str:
    """What would bring the engine back, in words."""
    if state.trial:
        return "ends when it has kept up with its peers for a while"
    return (
        f"{proofs_needed(state.outs)} looks in a row at which it is at most {WELL_AGAIN:g} times slower than its "
        f"peers bring it back; {cooldown_s(COOLDOWN_S, MOST_COOLDOWN_S, state.outs):g} s after it left, where no "
        f"look shows its speed, it gets {trial_share_percent:g} % of its traffic on trial"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One engine as the comparison sees it. ``settled``: hard evidence, or an order, says all there is to say."""

    engine: Engine
    traffic: EngineTraffic | None
    compared: bool
    settled: bool
    kept_out: bool


def stragglers(
    candidates: Sequence[Candidate], before: Mapping[EngineId, StragglerState], policy: Straggler, now_s: float
) -> dict[EngineId, StragglerState]:
    """The states of all engines of a pool after one look at each."""
    books: dict[EngineId, Book] = {}
    tokens: dict[EngineId, float | None] = {}
    cohorts: dict[int, list[Candidate]] = {}
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
            books[engine.id] = booked(
                None if known is None else known.book,
                traffic,
                min(in_flight, engine.slots),
                rates.get(engine.slots),
                after_s=policy.after,
                now_s=now_s,
            )
    medians = {
        slots: peers(
            [books[one.engine.id] for one in cohort if one.engine.id in books],
            [one.traffic for one in cohort if one.traffic is not None],
            [(tokens[one.engine.id], canary_took_s(one.engine.report)) for one in cohort],
            policy,
        )
        for slots, cohort in cohorts.items()
    }
    states = {}
    for one in candidates:
        key, known = one.engine.id, before.get(one.engine.id)
        if one.settled:
            continue
        cohort = medians.get(one.engine.slots, NOBODY)
        book = books.get(key)
        state = stepped(
            known,
            slow=slowness(book, one.traffic, tokens.get(key), cohort, policy) if one.compared else NOT_SLOW,
            book=book,
            well_at_s=None if known is None or not known.out else _well_at_s(known, one, cohort, now_s),
            kept_out=one.kept_out,
            policy=policy,
            now_s=now_s,
        )
        if state is not None:
            states[key] = state
    return states


def _rate_before(
    cohort: Sequence[Candidate], before: Mapping[EngineId, StragglerState], policy: Straggler
) -> float | None:
    """Calls that the engines of a cohort finished per slot in use and second at the last look, at the median."""
    known = [state.book for one in cohort if (state := before.get(one.engine.id)) is not None and state.book]
    return median_rate(known, policy)


def _in_flight(traffic: EngineTraffic | None, report: EngineReport | None) -> int | None:
    """Calls the engine holds: as proxies tell it, or else as it does itself."""
    if traffic is not None and traffic.in_flight is not None:
        return traffic.in_flight
    return None if report is None else report.requests_in_flight


def _well_at_s(state: StragglerState, one: Candidate, cohort: Peers, now_s: float) -> float | None:
    """When new evidence on an engine that is out came, negative when it is still slow; None when none came."""
    report = one.engine.report
    last_s = max(state.since_s, state.proof_at_s)
    if report is None or report.observed_at_s <= last_s:
        return None
    canary = report.canary
    if canary is not None and canary.at_s > last_s and cohort.canary_s is not None:
        if not canary.in_row:
            return -canary.at_s
        fast = canary.took_s <= WELL_AGAIN * cohort.canary_s + CANARY_SLACK_S
        return canary.at_s if fast else -canary.at_s
    running = tokens_per_running(report, one.engine.slots, now_s)
    if running is not None and cohort.tokens_per_s is not None:
        fast = running * WELL_AGAIN >= cohort.tokens_per_s
        return report.observed_at_s if fast else -report.observed_at_s
    return None
