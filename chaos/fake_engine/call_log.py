"""The engine's own book: what became of every call, and what it cost.

Wasted work is counted here, where it happens, so that nobody has to believe a proxy's statistics. Each call is
in exactly one state, and ``arrived == shed + finished + failed + aborted + in_flight`` holds at every moment.
"""

from collections import Counter, deque
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

# Enough for minutes of demo traffic; older calls are in the totals only.
KEPT_CALLS = 20_000


class CallOutcome(StrEnum):
    SHED = "shed"  # refused before any work
    FINISHED = "finished"  # the whole answer was written
    FAILED = "failed"  # the engine's fault: an error after work, a reset, a crash
    ABORTED = "aborted"  # the client left


LOAD_ID: Final = "x-load-id"
"""The id that our own load gives a request. Envoys replace what callers send as ``x-request-id``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One attempt at one request, closed. Times are the machine's monotonic clock, in seconds.

    ``request_id`` is the header ``LOAD_ID``, else ``x-request-id``, and ``attempt`` is ``x-envoy-attempt-count``;
    empty and 0 where absent. ``slot_s`` is how long it held a slot; ``stuck_s`` how long it was open while the GPU
    stood still, slot or not. ``tokens_generated`` counts the GPU's, ``tokens_sent`` those written to the client.
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

    @property
    def wasted_slot_s(self) -> float:
        """Slot time whose answer nobody received."""
        return 0.0 if self.outcome is CallOutcome.FINISHED else self.slot_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTotals:
    """Counts of calls and sums of seconds since the engine was made; a restart of the engine keeps them."""

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
    """Calls opened and closed."""

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
        """A well-formed call has arrived."""
        self._arrived += 1

    def close(self, record: CallRecord) -> None:
        """A call that was opened is over."""
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
        """Sums over closed calls; ``started`` too leaves out those that still run."""
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
