"""What became of each request of a load run, and what a set of them adds up to. Pure.

Every latency counts from the *planned* arrival, not from the moment of sending, so that a generator that falls
behind makes the numbers worse instead of better.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class OutcomeReason(StrEnum):
    """Why a request counts as it does; only OK is good."""

    OK = "ok"
    SHED = "shed"  # 503 or 429: somebody refused it
    TIMEOUT = "timeout"  # no whole answer within the client's deadline
    RESET = "reset"  # no connection, or one that broke before any token
    TRUNCATED = "truncated"  # the answer began and did not end: tokens missing, or [DONE]
    STREAM_ERROR = "stream_error"  # 200, and then an error event
    HTTP_ERROR = "http_error"  # any other status


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcome:
    """One request. ``arrived_at_s`` is the machine's monotonic clock at its planned arrival.

    ``status`` is 0 where no headers came. ``lag_s`` is how late the generator itself was. ``tokens`` is
    the engine's own count (``usage``); of a stream that was cut, the number of events with text, at most the
    tokens. ``first_token_s`` is for streams only, and so is ``longest_gap_s``: the longest silence between two
    events with text, None with fewer than two.

    ``fallback`` and ``refusal`` are what Switchgear's headers say: the pool of another model that answered, and
    why there was no answer; empty where they say nothing.

    Tries of one ``question`` are requests of their own: ``try_number`` is more than 1 for those that the caller
    made by itself after an answer that was not good.
    """

    request_id: str
    target: str
    streaming: bool
    arrived_at_s: float
    lag_s: float
    status: int
    reason: OutcomeReason
    first_token_s: float | None
    latency_s: float
    tokens: int
    longest_gap_s: float | None = None
    fallback: str = ""
    refusal: str = ""
    question: str = ""
    try_number: int = 1
    batch: bool = False

    @property
    def ok(self) -> bool:
        return self.reason is OutcomeReason.OK

    @property
    def ended_at_s(self) -> float:
        return self.arrived_at_s + self.latency_s


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeSummary:
    """A set of outcomes in numbers; None where nothing was there to measure.

    ``goodput_ratio`` is good answers per request and ``goodput_per_s`` per second of arrivals. The ``all``
    quantiles include failures with the time they took to fail; ``first_token`` is of good streams.
    """

    requests: int
    ok: int
    goodput_ratio: float | None
    goodput_per_s: float | None
    good_latency_p50_s: float | None
    good_latency_p99_s: float | None
    all_latency_p50_s: float | None
    all_latency_p99_s: float | None
    first_token_p50_s: float | None
    first_token_p99_s: float | None
    tokens: int
    lag_max_s: float
    reasons: Mapping[str, int]


def quantile(values: Sequence[float], q: float) -> float | None:
    """The smallest value that a share ``q`` of all values does not exceed; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def outcome_summary(outcomes: Sequence[RequestOutcome], *, seconds: float | None = None) -> OutcomeSummary:
    """The numbers of ``outcomes``. ``seconds`` is the time they span; from first to last arrival by default."""
    good = [outcome for outcome in outcomes if outcome.ok]
    good_s = [outcome.latency_s for outcome in good]
    all_s = [outcome.latency_s for outcome in outcomes]
    first_s = [outcome.first_token_s for outcome in good if outcome.first_token_s is not None]
    if seconds is None and outcomes:
        arrivals_s = [outcome.arrived_at_s for outcome in outcomes]
        seconds = max(arrivals_s) - min(arrivals_s)
    counts = Counter(outcome.reason.value for outcome in outcomes)
    return OutcomeSummary(
        requests=len(outcomes),
        ok=len(good),
        goodput_ratio=len(good) / len(outcomes) if outcomes else None,
        goodput_per_s=len(good) / seconds if seconds else None,
        good_latency_p50_s=quantile(good_s, 0.5),
        good_latency_p99_s=quantile(good_s, 0.99),
        all_latency_p50_s=quantile(all_s, 0.5),
        all_latency_p99_s=quantile(all_s, 0.99),
        first_token_p50_s=quantile(first_s, 0.5),
        first_token_p99_s=quantile(first_s, 0.99),
        tokens=sum(outcome.tokens for outcome in outcomes),
        lag_max_s=max((outcome.lag_s for outcome in outcomes), default=0.0),
        reasons={reason.value: counts[reason.value] for reason in OutcomeReason if counts[reason.value]},
    )
