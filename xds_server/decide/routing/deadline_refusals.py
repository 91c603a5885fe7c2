"""Deadlines that no answer can meet now: the shortest time of recent answers, and the wait for a slot.

A request that cannot be answered in time costs a slot, and its caller the time to go elsewhere. What it will cost
is not known when it is routed, so the *shortest* time counts, not the mean: nothing is refused that recent answers
were fast enough for. That time is learned while no request waits for a slot; under load the present wait is added:
the least of all engines in rotation, which is requests in flight beyond its slots, over its answers per second.

Routes carry a few steps, multiples of a base near the learned time, which moves rarely. Which step is in force is
in the runtime layer and moves with the wait. A part of the requests is still served (``TRIAL_PERCENT``): if
they end in time, the learned time becomes shorter.

Formula, source and failure mode: docs/decisions.md, "Refusals by deadline".
"""

from dataclasses import replace
from typing import Final

from xds_server.decide.decision_memory import DeadlineMemory, ShortestTime
from xds_server.decide.decisions import DEADLINE_BASE_MOVE, DeadlineDecision, DeadlineSteps, Health
from xds_server.decide.pool_inputs import PoolEngines
from xds_server.model.pool_traffic import STALE_S, LatencyTail, PoolTraffic

MIN_CALLS: Final = 20
"""Fewer healthy calls in a minute say nothing of the shortest."""

QUIET_S: Final = 60.0
"""Tails are of the last minute: only after that long without a wait they contain none."""

BASE_INTERVAL_S: Final = 30.0
"""Least time between two bases: a new one changes routes."""

_LEAST_PART: Final = 0.1
"""Of the shortest time that is certainly service where requests have always waited."""


def deadline_refusals(
    before: DeadlineMemory | None,
    *,
    stated: bool,
    traffic: PoolTraffic | None,
    engines: PoolEngines,
    now_s: float,
) -> DeadlineMemory | None:
    """The deadlines to refuse now; None unless ``stated``: a route to the pool reads deadlines."""
    if not stated:
        return None
    wait_s = _least_wait_s(engines)
    waited_at_s = now_s if wait_s else (None if before is None else before.waited_at_s)
    quiet = waited_at_s is None or now_s - waited_at_s >= QUIET_S
    fresh = traffic is not None and now_s - traffic.heard_at_s <= STALE_S
    answer, stream = (None, None) if before is None else (before.answer, before.stream)
    if fresh and traffic is not None:
        answer = _learned(answer, traffic.answer, wait_s, quiet=quiet, now_s=now_s)
        stream = _learned(stream, traffic.first_byte, wait_s, quiet=quiet, now_s=now_s)
    decided = DeadlineDecision(
        answer=_steps(answer, wait_s), stream=_steps(stream, wait_s), reason=_reason(answer, stream, wait_s)
    )
    if before is not None and _in_force(before.decided) == _in_force(decided):
        decided = before.decided
    return DeadlineMemory(decided=decided, answer=answer, stream=stream, waited_at_s=waited_at_s)


def _least_wait_s(engines: PoolEngines) -> float | None:
    """The least wait for a slot, in seconds, of the engines in rotation; None without one.

    0 where no proxy reports requests in flight.
    """
    return min(
        (
            engines.waiting(engine.id) / per_s
            for engine in engines.engines
            if engines.decisions[engine.id].health is Health.HEALTHY and (per_s := engines.able_per_s(engine.id))
        ),
        default=None,
    )


def _learned(
    known: ShortestTime | None, tail: LatencyTail | None, wait_s: float | None, *, quiet: bool, now_s: float
) -> ShortestTime | None:
    if tail is None or tail.calls < MIN_CALLS or not tail.shortest_s:
        return known
    seen_s = tail.shortest_s
    if known is None:
        time_s = seen_s if quiet else max(seen_s - (wait_s or 0.0), _LEAST_PART * seen_s)
        return ShortestTime(time_s=time_s, base_s=time_s, moved_at_s=now_s)
    time_s = seen_s if quiet else min(known.time_s, seen_s)
    near = known.base_s / DEADLINE_BASE_MOVE <= time_s <= known.base_s * DEADLINE_BASE_MOVE
    if near or now_s - known.moved_at_s < BASE_INTERVAL_S:
        return known if time_s == known.time_s else replace(known, time_s=time_s)
    return ShortestTime(time_s=time_s, base_s=time_s, moved_at_s=now_s)


def _steps(learned: ShortestTime | None, wait_s: float | None) -> DeadlineSteps | None:
    if learned is None:
        return None
    steps = DeadlineSteps(base_s=learned.base_s)
    if wait_s is None:
        return steps
    expected_s = learned.time_s + wait_s
    passed = sum(one <= expected_s for one in steps.all_s)
    return replace(steps, in_force=passed - 1) if passed else steps


def _reason(answer: ShortestTime | None, stream: ShortestTime | None, wait_s: float | None) -> str:
    if wait_s is None:
        return "no engine in rotation"
    known = [
        f"the shortest {what} took {one.time_s:.2g} s"
        for what, one in (("answer", answer), ("wait for a first byte", stream))
        if one is not None
    ]
    if not known:
        return f"fewer than {MIN_CALLS} answers in a minute so far"
    return f"{', '.join(known)}; the wait for a slot is {wait_s:.2g} s"


def _in_force(decision: DeadlineDecision) -> tuple[DeadlineSteps | None, ...]:
    return decision.answer, decision.stream
