"""GPU time whose answer nobody got, by the engines' own books; one rule for all contestants.

A call is *useful* when it finished and its caller got this answer. The slot time of any other is waste, with three
rules that make the sum a measure of the routing and not of the fault:

* A call counts when it *arrived at the engine* in the fault window, however long it lasted; what was running when
  the fault began nobody could have sent elsewhere. ``any_s`` counts those too, for the part inside the window.
* A wedged GPU hands out no slots. A call that waits there holds one all the same, as long as one would be free,
  until its caller leaves or the GPU goes on: an engine that takes calls and does nothing is as lost as one that
  works in vain. A wedged GPU that nobody waits for is the fault's cost, not the routing's.
* What a crash destroys is the crash's cost: ``crash_s``, beside the sum.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.failover.history import Attempt, History
from benchmarks.failover.scenarios import Outage
from chaos.fake_engine import Hang
from chaos.fake_engine.book import Outcome as Fate

_DESTROYED = frozenset({"crash", "restart", "stopped"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """Slot seconds."""

    wasted_s: float
    any_s: float
    crash_s: float


def waste(history: History, slots: Mapping[int, int]) -> Waste:
    """Of one experiment; ``slots`` by engine."""
    useful = _useful(history)
    wasted_s = any_s = crash_s = 0.0
    for attempt in history.attempts:
        if id(attempt) in useful:
            continue
        in_window = history.fault_s <= attempt.arrived_at_s < history.healed_s
        if attempt.fate is Fate.FAILED and attempt.reason in _DESTROYED:
            crash_s += attempt.slot_s if in_window else 0.0
            continue
        wasted_s += attempt.slot_s if in_window else 0.0
        if attempt.started_at_s is not None:
            end_s = attempt.started_at_s + attempt.slot_s
            any_s += _overlap_s(attempt.started_at_s, end_s, history.fault_s, history.healed_s)
    for outage in history.outages:
        if isinstance(outage.fault, Hang):
            for attempt, held_s in _held(history.attempts, outage, slots[outage.engine]):
                if id(attempt) in useful:
                    continue
                any_s += held_s
                wasted_s += held_s if history.fault_s <= attempt.arrived_at_s < history.healed_s else 0.0
    return Waste(wasted_s=wasted_s, any_s=any_s, crash_s=crash_s)


def _useful(history: History) -> set[int]:
    """Identities of the attempts whose answer was received: of each good request the last that finished."""
    good = {outcome.request_id for outcome in history.outcomes if outcome.ok}
    last: dict[str, Attempt] = {}
    for attempt in history.attempts:
        if attempt.fate is Fate.FINISHED and attempt.request_id in good:
            known = last.get(attempt.request_id)
            if known is None or known.closed_at_s < attempt.closed_at_s:
                last[attempt.request_id] = attempt
    return {id(attempt) for attempt in last.values()}


def _held(attempts: Sequence[Attempt], outage: Outage, slots: int) -> list[tuple[Attempt, float]]:
    """Calls without a slot that hold one of a wedged GPU all the same, and for how many seconds."""
    here = [one for one in attempts if one.engine == outage.engine and one.closed_at_s > outage.start_s]
    ends_s = [
        min(one.started_at_s + one.slot_s, outage.end_s)
        for one in here
        if one.started_at_s is not None and one.started_at_s < outage.start_s < one.started_at_s + one.slot_s
    ]
    free_at_s = [*ends_s, *[outage.start_s] * max(0, slots - len(ends_s))]
    heapq.heapify(free_at_s)
    found = []
    for one in sorted(here, key=lambda attempt: attempt.arrived_at_s):
        waits = one.started_at_s is None or one.started_at_s >= outage.end_s
        if not waits or one.arrived_at_s >= outage.end_s or not free_at_s:
            continue
        begin_s = max(free_at_s[0], one.arrived_at_s)
        end_s = min(one.closed_at_s, outage.end_s)
        if begin_s < end_s:
            heapq.heapreplace(free_at_s, end_s)
            found.append((one, end_s - begin_s))
    return found


def _overlap_s(start_s: float, end_s: float, from_s: float, to_s: float) -> float:
    return max(0.0, min(end_s, to_s) - max(start_s, from_s))
