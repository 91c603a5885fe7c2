"""Results of the requests of a period. Pure.

A *request* is one attempt of a caller. A *caller request* (question) includes its client retries; it is good if
one attempt is. Both count at the (first) arrival, even if the answer comes later.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from chaos.history.history_events import RequestRecord
from chaos.history.recorded_history import History
from chaos.history.request_outcomes import OutcomeReason, quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentPhases:
    """Phases: ``fault`` is ``[fault_s, healed_s)``, ``after`` is ``[healed_s, end_s)``; arrivals stop at
    ``end_s``.
    """

    began_s: float
    fault_s: float
    healed_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPeriod:
    """Requests of one window; times in seconds, None without data. ``reasons`` counts the failures."""

    requests: int
    good: int
    goodput_percent: float | None
    good_p50_s: float | None
    good_p99_s: float | None
    all_p50_s: float | None
    all_p99_s: float | None
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStats:
    """Streams as callers saw them. ``cut``: cut after they began; ``gap``: the longest token gap of a good one."""

    streams: int
    cut: int
    first_token_p99_s: float | None
    gap_p99_s: float | None
    gap_max_s: float | None


def experiment_phases(history: History) -> ExperimentPhases:
    """Phases of a history; without a fault all of it is before."""
    healed_s = min(history.healed_s, history.end_s)
    return ExperimentPhases(
        began_s=0.0, fault_s=min(history.fault_s, healed_s), healed_s=healed_s, end_s=history.end_s
    )


def arrived_between(requests: Iterable[RequestRecord], from_s: float, to_s: float) -> list[RequestRecord]:
    """Requests of a window."""
    return [one for one in requests if from_s <= one.at_s < to_s]


def questions(requests: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Merge the attempts of each caller request: from its first attempt to its good answer or last failure."""
    found = []
    ordered = sorted(requests, key=lambda one: (one.question, one.try_number))
    for _, group in groupby(ordered, key=lambda one: one.question):
        tries = list(group)
        if len(tries) == 1:
            found += tries
            continue
        last = next((one for one in tries if one.ok), tries[-1])
        first_s = tries[0].at_s
        waited_s = last.at_s - first_s
        found.append(
            replace(
                last,
                at_s=first_s,
                latency_s=waited_s + last.latency_s,
                first_token_s=None if last.first_token_s is None else waited_s + last.first_token_s,
            )
        )
    return sorted(found, key=lambda one: one.at_s)


def request_period(requests: Sequence[RequestRecord]) -> RequestPeriod:
    """Measures of some requests."""
    good_s = [one.latency_s for one in requests if one.ok]
    all_s = [one.latency_s for one in requests]
    reasons: dict[str, int] = {}
    for one in requests:
        if not one.ok:
            said = (
                f"{one.reason.value} {one.status}" if one.reason is OutcomeReason.HTTP_ERROR else one.reason.value
            )
            reasons[said] = reasons.get(said, 0) + 1
    return RequestPeriod(
        requests=len(requests),
        good=len(good_s),
        goodput_percent=100.0 * len(good_s) / len(requests) if requests else None,
        good_p50_s=quantile(good_s, 0.5),
        good_p99_s=quantile(good_s, 0.99),
        all_p50_s=quantile(all_s, 0.5),
        all_p99_s=quantile(all_s, 0.99),
        reasons=dict(sorted(reasons.items())),
    )


def stream_stats(requests: Sequence[RequestRecord]) -> StreamStats | None:
    """Measures of the streams among some requests; None without streams."""
    some = [one for one in requests if one.streaming]
    if not some:
        return None
    first_s = [one.first_token_s for one in some if one.ok and one.first_token_s is not None]
    gaps_s = [one.longest_gap_s for one in some if one.ok and one.longest_gap_s is not None]
    return StreamStats(
        streams=len(some),
        cut=sum(map(is_cut_stream, some)),
        first_token_p99_s=quantile(first_s, 0.99),
        gap_p99_s=quantile(gaps_s, 0.99),
        gap_max_s=max(gaps_s, default=None),
    )


def token_gaps_s(request: RequestRecord) -> tuple[float, ...]:
    """Gaps between the tokens of a complete stream; tokens sent together share the gap before them."""
    if not request.gaps_s:
        return ()
    together = max(1.0, (request.tokens - 1) / len(request.gaps_s))
    return tuple(gap_s / together for gap_s in request.gaps_s for _ in range(round(together)))


def is_cut_stream(request: RequestRecord) -> bool:
    """Whether it is a stream cut after it began."""
    if not request.streaming or request.ok:
        return False
    return request.first_token_s is not None or request.reason in {
        OutcomeReason.TRUNCATED,
        OutcomeReason.STREAM_ERROR,
    }
