"""Outcome of each request of a load run, and summaries. Pure.

Latencies count from the *planned* arrival, not from sending, so a late load generator makes the numbers worse, not
better.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class OutcomeReason(StrEnum):
    """Outcome of a request; only OK is good."""

    OK = "ok"
    SHED = "shed"  # refused with 503 or 429
    TIMEOUT = "timeout"  # no complete answer within the client's deadline
    RESET = "reset"  # no connection, or reset before any token
    TRUNCATED = "truncated"  # the answer was cut: tokens or [DONE] missing
    STREAM_ERROR = "stream_error"  # 200, then an error event
    HTTP_ERROR = "http_error"  # any other status


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcome:
    """One request. ``arrived_at_s`` is the machine's monotonic clock at its planned arrival.

    ``status`` is 0 without response headers. ``lag_s`` is the generator's own delay. ``tokens`` is the engine's
    count (``usage``), or the number of events with text for a cut stream. ``first_token_s`` and ``longest_gap_s``,
    the longest gap between two events with text, are for streams only; ``gaps_s`` are all of these gaps.

    ``fallback`` and ``refusal`` are from Switchgear's headers: the fallback pool that answered, and the reason of
    a refusal; empty if absent.

    Each attempt of a caller request (``question``) is a request; ``try_number`` is above 1 for client retries.
    ``group`` is the scenario's name for the caller's group; empty without groups. ``session`` is its conversation;
    empty without conversations.
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
    gaps_s: tuple[float, ...] = ()
    fallback: str = ""
    refusal: str = ""
    question: str = ""
    try_number: int = 1
    batch: bool = False
    group: str = ""
    session: str = ""

    @property
    def ok(self) -> bool:
        return self.reason is OutcomeReason.OK

    @property
    def ended_at_s(self) -> float:
        return self.arrived_at_s + self.latency_s


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeSummary:
    """Summary of a set of outcomes; None without data.

    ``goodput_ratio`` is good answers per request, ``goodput_per_s`` per second of arrivals. The ``all`` quantiles
    include failures, with the time they took; ``first_token`` is of good streams.
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
    """Smallest value not exceeded by a share ``q`` of all values; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def outcome_summary(outcomes: Sequence[RequestOutcome], *, seconds: float | None = None) -> OutcomeSummary:
    """Summarise ``outcomes``. ``seconds`` is their time span; default: first to last arrival."""
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
