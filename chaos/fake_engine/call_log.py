"""The engine's call log: outcome and cost of every call.

Wasted work is measured here, at the source, not from proxy statistics. Each call is in exactly one state:
``arrived == shed + finished + failed + aborted + in_flight`` always holds.
"""

from collections import Counter, deque
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

# Minutes of demo traffic; older calls count in the totals only.
KEPT_CALLS = 20_000


class CallOutcome(StrEnum):
    SHED = "shed"  # refused before any work
    FINISHED = "finished"  # the whole answer was written
    FAILED = "failed"  # the engine's fault: an error after work, a reset, a crash
    ABORTED = "aborted"  # the client left


LOAD_ID: Final = "x-load-id"
"""Request id header of our load generator. Envoy replaces a caller's ``x-request-id``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One closed attempt at one request. Times are in seconds of the monotonic clock.

    ``request_id`` is the header ``LOAD_ID``, else ``x-request-id``; ``attempt`` is ``x-envoy-attempt-count``;
    empty and 0 if absent. ``slot_s`` is how long it held a slot; ``stuck_s`` how long it was open while the GPU
    was stopped, with or without a slot. ``tokens_generated`` counts the GPU's tokens, ``tokens_sent`` those
    written to the client. ``cached_tokens`` of the ``prompt_tokens`` were in the prefix cache; both are 0 for a
    call that never got a slot.
    """

    request_id: str
    attempt: int
    path: str
    streaming: bool
    outcome: CallOutcome
    reason: str
    arrived_at_s: float
    closed_at_s: float
    started_at_s: float | None
    slot_s: float
    stuck_s: float
    tokens_asked: int
    tokens_generated: int
    tokens_sent: int
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def wasted_slot_s(self) -> float:
        """Slot time whose answer reached no caller."""
        return 0.0 if self.outcome is CallOutcome.FINISHED else self.slot_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTotals:
    """Call counts and sums of seconds since the engine was created; restarts keep them."""

    arrived: int
    in_flight: int
    started: int
    shed: int
    finished: int
    failed: int
    aborted: int
    slot_s: float
    wasted_slot_s: float
    stuck_s: float
    tokens_generated: int
    tokens_wasted: int


class CallLog:
    """Open and closed calls."""

    def __init__(self) -> None:
        self.calls: deque[CallRecord] = deque(maxlen=KEPT_CALLS)
        self._arrived = 0
        self._started = 0
        self._outcomes: Counter[CallOutcome] = Counter()
        self._slot_s = 0.0
        self._wasted_slot_s = 0.0
        self._stuck_s = 0.0
        self._generated = 0
        self._tokens_wasted = 0

    def open(self) -> None:
        """Count the arrival of a valid call."""
        self._arrived += 1

    def close(self, record: CallRecord) -> None:
        """Log a closed call."""
        self.calls.append(record)
        self._outcomes[record.outcome] += 1
        self._started += record.started_at_s is not None
        self._slot_s += record.slot_s
        self._wasted_slot_s += record.wasted_slot_s
        self._stuck_s += record.stuck_s
        self._generated += record.tokens_generated
        if record.outcome is not CallOutcome.FINISHED:
            self._tokens_wasted += record.tokens_generated

    def totals(self) -> CallTotals:
        """Sums over closed calls; ``started`` also excludes running ones."""
        closed = self._outcomes.total()
        return CallTotals(
            arrived=self._arrived,
            in_flight=self._arrived - closed,
            started=self._started,
            shed=self._outcomes[CallOutcome.SHED],
            finished=self._outcomes[CallOutcome.FINISHED],
            failed=self._outcomes[CallOutcome.FAILED],
            aborted=self._outcomes[CallOutcome.ABORTED],
            slot_s=self._slot_s,
            wasted_slot_s=self._wasted_slot_s,
            stuck_s=self._stuck_s,
            tokens_generated=self._generated,
            tokens_wasted=self._tokens_wasted,
        )

    def as_object(self, *, calls: int) -> dict[str, Any]:
        """The totals and the newest ``calls`` records, JSON-ready."""
        newest = list(self.calls)[-calls:] if calls else []
        return {
            "totals": asdict(self.totals()),
            "calls": [{**asdict(record), "wasted_slot_s": record.wasted_slot_s} for record in newest],
        }
