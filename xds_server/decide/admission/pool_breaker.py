"""Whether a pool as a whole answers: without it, every engine kept in rotation would count as capacity.

The capacity floor and the comparison with peers keep engines in rotation that fail or shed everything, because
one pool alone has nothing better. A fallback may be better. So the pool has a breaker of its own. It opens if:

* *no engine answers*: calls fail or are shed, and no call of any engine has succeeded for a while;
* *every engine fails too often*: each one's share of failed calls is at the policy's limit.

One good engine keeps it closed: then the engines' own breakers and the degradation levels move what does not fit.

*Open*: other pools serve, if any can; otherwise nothing changes, and good answers close it. *Trial*: it gets a
share of its traffic, and the results decide. Each further opening lasts twice as long, so a pool that passes its
canaries and fails its callers, or two pools that both fail, change less and less often.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from policies.resilience import Breaker
from xds_server.decide.decision_memory import EngineAnswers, PoolBreakerMemory
from xds_server.decide.decisions import BreakerPhase, EngineCapacity, EngineDecision, Health
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pool_traffic import STALE_S, EngineTraffic, PoolTraffic

MEMORY_CALLS: Final = 16
"""Time constant (1/e) of an engine's shares, in calls."""

SPAN_S: Final = 1.0
"""Minimum time without any good answer."""

_MISSED_ANSWERS: Final = 3.0
"""A pool at its limit would have given this many good answers meanwhile: their absence is not chance."""

_FULL: Final = 0.5
_LONG_CALLS: Final = 1.5
"""With this share of its slots in use the pool may be at work, so the time is at least this many service times."""

PROVED_S: Final = 2.0
"""First wait if canaries succeed meanwhile; doubles with each opening."""

UNPROVED_S: Final = 5.0
"""First wait without that; doubles up to the policy's cooldown. A trial costs few requests, so it comes early."""

CALM_S: Final = 60.0
"""Closed for this long, the breaker forgets its openings."""

MAX_TRIAL_S: Final = 10.0
_TRIAL_FAILURES: Final = 2
_RECOVERED_CALLS: Final = 8
"""Good answers in a row while open: nothing else served, and the pool has recovered."""

_MOST_DOUBLINGS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAnswers:
    """What is known of a pool's engines in this round."""

    engines: Sequence[Engine]
    decisions: Mapping[EngineId, EngineDecision]
    traffic: PoolTraffic | None
    capacities: Mapping[EngineId, EngineCapacity]

    def tried(self) -> list[Engine]:
        """Engines in rotation with their full share: they show what the pool does."""
        return [
            engine
            for engine in self.engines
            if (one := self.decisions[engine.id]).health is Health.HEALTHY and one.traffic_percent >= 100
        ]

    def calls(self, engine: EngineId) -> EngineTraffic | None:
        """The engine's traffic; None without any."""
        return None if self.traffic is None else self.traffic.engines.get(engine.engine)


def pool_breaker(policy: Breaker, seen: PoolAnswers, before: PoolBreakerMemory, now_s: float) -> PoolBreakerMemory:
    """The breaker after this round; the same object if nothing changed."""
    if not policy.error_rate_percent and not policy.consecutive_errors:
        return before if before == _CLOSED else _CLOSED
    fresh = seen.traffic is not None and now_s - seen.traffic.heard_at_s < STALE_S
    state = _counted(before, seen, now_s) if fresh else before
    if state.phase is BreakerPhase.OPEN:
        return _open(state, seen, now_s)
    if state.phase is BreakerPhase.TRIAL:
        return _trial(state, policy, now_s, fresh=fresh)
    if state.opens and now_s >= state.since_s + CALM_S:
        state = replace(state, opens=0)
    why = _why(state, policy, seen, now_s) if fresh else ""
    return _opened(state, policy, why, now_s) if why else state


def breaker_due_s(state: PoolBreakerMemory, now_s: float) -> float:
    """When time alone may change the breaker; infinite if it cannot."""
    due_s = [state.until_s]
    if state.phase is BreakerPhase.CLOSED:
        due_s = [state.since_s + CALM_S] if state.opens else []
    elif state.phase is BreakerPhase.OPEN:
        due_s.append(state.since_s + _proved_s(state))
    return min((moment for moment in due_s if moment > now_s), default=math.inf)


_CLOSED: Final = PoolBreakerMemory()


def serves_percent(policy: Breaker, state: PoolBreakerMemory) -> float:
    """Percent of its traffic that the pool takes while another pool can take the rest."""
    if state.phase is BreakerPhase.CLOSED:
        return 100.0
    return policy.trial_share_percent if state.phase is BreakerPhase.TRIAL else 0.0


def _counted(before: PoolBreakerMemory, seen: PoolAnswers, now_s: float) -> PoolBreakerMemory:
    """The counts with the newest calls of each engine."""
    answers = {}
    good = spoiled = 0
    for engine in seen.engines:
        calls, known = seen.calls(engine.id), before.answers.get(engine.id)
        if calls is None:
            continue
        answers[engine.id], more = _with_calls(known, calls, now_s)
        good, spoiled = good + more[0], spoiled + more[1]
    if not good and not spoiled and answers.keys() == before.answers.keys():
        return before
    state = replace(before, answers=answers, good=before.good + good, spoiled=before.spoiled + spoiled)
    if good or before.good_at_s < 0:
        return replace(state, good_at_s=now_s, dry=0 if good else spoiled)
    return replace(state, dry=before.dry + spoiled)


def _with_calls(
    known: EngineAnswers | None, calls: EngineTraffic, now_s: float
) -> tuple[EngineAnswers, tuple[int, int]]:
    """An engine's shares after its newest calls, and how many of these were good and spoiled."""
    # Entries, not the calls that they stand for: a sampled failure is one piece of evidence.
    total = EngineAnswers(
        succeeded=calls.succeeded - calls.extrapolated_successes,
        failed=calls.failed - calls.extrapolated_failures,
        shed=calls.shed,
    )
    if known is None:
        return total, (0, 0)  # calls from before this memory may be of another process
    good, failed = total.succeeded - known.succeeded, total.failed - known.failed
    shed = total.shed - known.shed
    if min(good, failed, shed) < 0:
        return total, (0, 0)
    if not good + failed + shed:
        return known, (0, 0)
    kept = math.exp(-(good + failed + shed) / MEMORY_CALLS)
    share = (1 - kept) * MEMORY_CALLS / (good + failed + shed)
    return replace(
        total,
        good_calls=kept * known.good_calls + share * good,
        failed_calls=kept * known.failed_calls + share * failed,
        spoiled_at_s=now_s if failed + shed else known.spoiled_at_s,
    ), (good, failed + shed)


def _why(state: PoolBreakerMemory, policy: Breaker, seen: PoolAnswers, now_s: float) -> str:
    """Why a closed breaker opens; empty if it does not."""
    tried = seen.tried()
    if not tried:
        return ""
    answers = [state.answers.get(engine.id) for engine in tried]
    known = [one for one in answers if one is not None]
    if len(known) < len(answers):
        return ""  # an engine without calls may be well
    if state.dry >= policy.min_calls and all(one.spoiled_at_s >= state.good_at_s for one in known):
        lasted_s = now_s - state.good_at_s
        if lasted_s >= _span_s(seen, tried):
            return f"the last {state.dry} calls to the pool failed or were shed, no engine answered"
    limit = policy.error_rate_percent
    if limit and all(
        one.failed_calls >= limit / 100 * (one.good_calls + one.failed_calls)
        and one.failed_calls >= _least(policy)
        for one in known
    ):
        return f"at least {limit:g} % of the calls to every engine failed"
    return ""


def _least(policy: Breaker) -> float:
    """Failed calls of one engine before its share counts; the shares remember few calls."""
    return min(policy.min_calls, MEMORY_CALLS) * policy.error_rate_percent / 100


def _span_s(seen: PoolAnswers, tried: Sequence[Engine]) -> float:
    """How long no call must have succeeded."""
    capacities = [seen.capacities[engine.id] for engine in tried if engine.id in seen.capacities]
    if not capacities:
        return SPAN_S
    per_s = sum(one.per_s for one in capacities)
    waits_s = max(SPAN_S, _MISSED_ANSWERS / per_s)
    in_flight = sum((calls.in_flight or 0) for engine in tried if (calls := seen.calls(engine.id)) is not None)
    full = in_flight >= _FULL * sum(one.slots for one in capacities)
    return max(waits_s, _LONG_CALLS * max(one.service_s for one in capacities)) if full else waits_s


def _opened(state: PoolBreakerMemory, policy: Breaker, why: str, now_s: float) -> PoolBreakerMemory:
    doublings = min(state.opens, _MOST_DOUBLINGS)
    wait_s = min(UNPROVED_S * 2**doublings, max(policy.cooldown, UNPROVED_S))
    return replace(
        state,
        phase=BreakerPhase.OPEN,
        since_s=now_s,
        until_s=now_s + wait_s,
        opens=state.opens + 1,
        good=0,
        spoiled=0,
        dry=0,
        why=why,
    )


def _proved_s(state: PoolBreakerMemory) -> float:
    """How long the breaker stays open while canaries succeed."""
    return min(PROVED_S * float(2 ** min(state.opens - 1, _MOST_DOUBLINGS)), state.until_s - state.since_s)


def _open(state: PoolBreakerMemory, seen: PoolAnswers, now_s: float) -> PoolBreakerMemory:
    if state.good >= _RECOVERED_CALLS and not state.dry:
        return _closed(state, now_s)
    proved = now_s >= state.since_s + _proved_s(state) and _canaries_succeed(seen, state.since_s)
    if not proved and now_s < state.until_s:
        return state
    if not any(one.health is Health.HEALTHY for one in seen.decisions.values()):
        return state  # nothing to try
    return replace(
        state,
        phase=BreakerPhase.TRIAL,
        since_s=now_s,
        until_s=now_s + MAX_TRIAL_S,
        good=0,
        spoiled=0,
        dry=0,
    )


def _canaries_succeed(seen: PoolAnswers, since_s: float) -> bool:
    """Whether at least half of the engines answered a canary since then, and are healthy."""
    proved = sum(
        report is not None
        and report.verdict.good
        and report.canary is not None
        and report.canary.in_row > 0
        and report.canary.at_s > since_s
        for report in (engine.report for engine in seen.engines)
    )
    return bool(proved) and 2 * proved >= len(seen.engines)


def _trial(state: PoolBreakerMemory, policy: Breaker, now_s: float, *, fresh: bool) -> PoolBreakerMemory:
    answered = state.good + state.spoiled
    limit = (policy.error_rate_percent or 100.0) / 100
    if state.spoiled >= _TRIAL_FAILURES and state.spoiled >= limit * answered:
        why = f"{state.spoiled} of {answered} trial calls failed or were shed"
        return _opened(state, policy, why, now_s)
    enough = state.good >= policy.trial_calls * min(state.opens, 4)
    if enough or (now_s >= state.until_s and not state.spoiled):
        return _closed(state, now_s)
    return state if fresh or now_s < state.until_s else _closed(state, now_s)


def _closed(state: PoolBreakerMemory, now_s: float) -> PoolBreakerMemory:
    """Closed again; shares from before count for nothing, the number of openings is kept."""
    answers = {
        key: replace(one, good_calls=0.0, failed_calls=0.0, spoiled_at_s=-math.inf)
        for key, one in state.answers.items()
    }
    return replace(
        state,
        phase=BreakerPhase.CLOSED,
        since_s=now_s,
        until_s=0.0,
        answers=answers,
        good=0,
        spoiled=0,
        dry=0,
        good_at_s=now_s,
        why="",
    )
