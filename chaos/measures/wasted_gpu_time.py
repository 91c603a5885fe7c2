"""GPU time whose answer reached no caller, from the engine logs; the same rules for every subject.

A call is *useful* if it finished and its caller got this answer. All other slot time is waste. Three rules make
the sum measure the routing, not the fault:

* A call counts if it *arrived at the engine* in the window, however long it lasted. Calls already running at the
  start of the fault could not be rerouted; ``any_s`` includes them, for the part inside the window.
* A hung GPU gives out no slots. A call waiting there still counts as holding one, as long as one would be free,
  until its caller leaves or the GPU resumes. A hung GPU without waiting calls is a cost of the fault, not of the
  routing.
* Work destroyed by a crash counts separately, as ``crash_s``.
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
    """Slot seconds; ``used_s`` is all slot time of the window's calls, useful or not."""

    wasted_s: float
    any_s: float
    crash_s: float
    used_s: float

    @property
    def percent(self) -> float:
        """Wasted share of used slot time in percent; 0 if none was used."""
        return 100.0 * self.wasted_s / self.used_s if self.used_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WastedCall:
    """A call whose answer reached no caller: ``slot_s`` of slot time from ``start_s``. ``destroyed``: lost in a
    crash.
    """

    attempt: AttemptRecord
    start_s: float
    slot_s: float
    destroyed: bool


def wasted_gpu_time(history: History, troubles: Sequence[Impairment], from_s: float, to_s: float) -> WastedGpuTime:
    """Wasted time in the window ``[from_s, to_s)``."""
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
            used_s += one.slot_s  # slot time that a hung GPU never gave out, so not in its log
    return WastedGpuTime(wasted_s=wasted_s, any_s=any_s, crash_s=crash_s, used_s=used_s)


def wasted_calls(history: History, troubles: Sequence[Impairment]) -> Iterator[WastedCall]:
    """All slot time of the experiment whose answer reached no caller."""
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
        if trouble.nature.is_at_standstill:
            for attempt, start_s, held_s in _held(history.attempts, trouble, slots[trouble.engine]):
                if id(attempt) not in useful:
                    yield WastedCall(attempt=attempt, start_s=start_s, slot_s=held_s, destroyed=False)


def _useful(history: History) -> set[int]:
    """``id()`` of the attempts whose answer was received: the last finished one of each good request."""
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
    """Calls waiting on a hung GPU that count as holding a slot, with start and seconds."""
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
