"""GPU time whose answer nobody got, by the engines' own books; one rule for everybody who is judged.

A call is *useful* when it finished and its caller got this answer. The slot time of any other is waste, with three
rules that make the sum a measure of the routing and not of the fault:

* A call counts when it *arrived at the engine* in the window, however long it lasted; what was running when the
  fault began nobody could have sent elsewhere. ``any_s`` counts those too, for the part inside the window.
* A wedged GPU hands out no slots. A call that waits there holds one all the same, as long as one would be free,
  until its caller leaves or the GPU goes on: an engine that takes calls and does nothing is as lost as one that
  works in vain. A wedged GPU that nobody waits for is the fault's cost, not the routing's.
* What a crash destroys is the crash's cost: ``crash_s``, beside the sum.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chaos.fake_engine.call_log import CallOutcome as Fate
from chaos.history.history_events import AttemptRecord
from chaos.history.recorded_history import History
from chaos.measures.impairments import Impairment

_DESTROYED = frozenset({"crash", "restart", "stopped"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WastedGpuTime:
    """Slot seconds; ``used_s`` is everything that calls of the window took, useful or not."""

    wasted_s: float
    any_s: float
    crash_s: float
    used_s: float

    @property
    def percent(self) -> float:
        """Wasted per 100 used; 0 where nothing was used."""
        return 100.0 * self.wasted_s / self.used_s if self.used_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WastedCall:
    """A call whose answer nobody got: it took ``slot_s`` seconds of slots from ``start_s`` on. ``destroyed``: an
    engine that died took its work with it.
    """

    attempt: AttemptRecord
    start_s: float
    slot_s: float
    destroyed: bool


def wasted_gpu_time(history: History, troubles: Sequence[Impairment], from_s: float, to_s: float) -> WastedGpuTime:
    """Of the window ``[from_s, to_s)``."""
    wasted_s = any_s = crash_s = 0.0
    used_s = sum(one.slot_s for one in history.attempts if from_s <= one.at_s < to_s)
    for one in wasted_calls(history, troubles):
        in_window = from_s <= one.attempt.at_s < to_s
        if one.destroyed:
            crash_s += one.slot_s if in_window else 0.0
            continue
        wasted_s += one.slot_s if in_window else 0.0
        any_s += max(0.0, min(one.start_s + one.slot_s, to_s) - max(one.start_s, from_s))
        if in_window and one.start_s != one.attempt.started_at_s:
            used_s += one.slot_s  # a slot that a wedged GPU never handed out, which no book has
    return WastedGpuTime(wasted_s=wasted_s, any_s=any_s, crash_s=crash_s, used_s=used_s)


def wasted_calls(history: History, troubles: Sequence[Impairment]) -> Iterator[WastedCall]:
    """Every stretch of slot time whose answer nobody got, of the whole experiment."""
    useful = _useful(history)
    for attempt in history.attempts:
        if id(attempt) not in useful and attempt.started_at_s is not None:
            yield WastedCall(
                attempt=attempt,
                start_s=attempt.started_at_s,
                slot_s=attempt.slot_s,
                destroyed=attempt.fate is Fate.FAILED and attempt.reason in _DESTROYED,
            )
    slots = history.slots
    for trouble in troubles:
        if trouble.nature.stands_still:
            for attempt, start_s, held_s in _held(history.attempts, trouble, slots[trouble.engine]):
                if id(attempt) not in useful:
                    yield WastedCall(attempt=attempt, start_s=start_s, slot_s=held_s, destroyed=False)


def _useful(history: History) -> set[int]:
    """Identities of the attempts whose answer was received: of each good request the last that finished."""
    good = {one.request_id for one in history.requests if one.ok}
    last: dict[str, AttemptRecord] = {}
    for attempt in history.attempts:
        if attempt.fate is Fate.FINISHED and attempt.request_id in good:
            known = last.get(attempt.request_id)
            if known is None or known.closed_at_s < attempt.closed_at_s:
                last[attempt.request_id] = attempt
    return {id(attempt) for attempt in last.values()}


def _held(
    attempts: Sequence[AttemptRecord], trouble: Impairment, slots: int
) -> list[tuple[AttemptRecord, float, float]]:
    """Calls without a slot that hold one of a wedged GPU all the same, from when, and for how many seconds."""
    here = [one for one in attempts if one.engine == trouble.engine and one.closed_at_s > trouble.start_s]
    ends_s = [
        min(one.started_at_s + one.slot_s, trouble.end_s)
        for one in here
        if one.started_at_s is not None and one.started_at_s < trouble.start_s < one.started_at_s + one.slot_s
    ]
    free_at_s = [*ends_s, *[trouble.start_s] * max(0, slots - len(ends_s))]
    heapq.heapify(free_at_s)
    found = []
    for one in sorted(here, key=lambda attempt: attempt.at_s):
        waits = one.started_at_s is None or one.started_at_s >= trouble.end_s
        if not waits or one.at_s >= trouble.end_s or not free_at_s:
            continue
        begin_s = max(free_at_s[0], one.at_s)
        end_s = min(one.closed_at_s, trouble.end_s)
        if begin_s < end_s:
            heapq.heapreplace(free_at_s, end_s)
            found.append((one, begin_s, end_s - begin_s))
    return found
