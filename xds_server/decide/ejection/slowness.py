"""How much slower than its peers an engine is, and whether chance explains it.

Three signals, the fastest first. *Calls finished per call in flight*: before a ten times slower engine ends its
first slow call, its peers have ended 12, and that gap is already evidence. *Service time* of whole calls. *Tokens
per second per running request*, as the engine counts them.

The first two depend on call lengths: an engine that got eight long answers by chance finishes nothing either. So
chance must be unlikely over the whole pool, and an engine with the token rate of its peers is not slow, whatever
its calls do. When all are slow, so is the median, and none is ejected. Where too few peers have work, or most of
them are slow and some are not, ``past_speed`` compares an engine with itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from engine.report import EngineReport
from policies.resilience import Straggler
from xds_server.decide.decision_memory import WorkSample
from xds_server.model.pool_traffic import RATE_S, EngineTraffic

MIN_EXPECTED_CALLS: Final = 8.0
"""Calls that peers would have finished meanwhile, before an engine that did not counts as slow."""

FALSE_ALARM_PROBABILITY: Final = 1e-3
"""Probability that any engine of a healthy pool looks this slow at one evaluation."""

RECOVERED_RATIO: Final = 1.5
"""Ratio to its peers up to which an engine counts as recovered."""

FRESH_S: Final = 2.0
"""Older speeds are ignored."""

UNSURE: Final = 4.0
"""Calls without token counts prove less: their lengths are unknown."""

MOST_BY_ONE: Final = 2.0
"""Cap on what a single call may prove, as a multiple of what peers finish meanwhile: it may simply be long."""

# Ratio of finished calls to peers from which their mean time is more than the effect of one long call.
_BEHIND: Final = 2.0

_SAMPLE_S: Final = 0.05
_LONGEST_BUCKET_S: Final = 15.0
_LEAST_RUNNING: Final = 2
MOST_TIMES: Final = 1000.0
"""Largest ratio shown."""

NOT_SLOW: Final[tuple[float, str, float | None]] = (0.0, "", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerMedians:
    """Medians over engines with the same slots; None where too few engines have the signal.

    ``finished_per_work_s``: calls finished per slot in use and second. ``tokens_per_s``: per running request.
    ``engines`` have calls to compare, ``heard`` are all in rotation. ``canary_ratio`` compares their canaries with
    usual ones; 0 if unknown. ``most_slow``: most are slower than usual, and the medians are of those that are not.
    ``quick_canary_s`` and ``quick_tokens_per_s`` are of the fastest ones, as many as must agree: an engine that
    was ejected while most are slow has not recovered when it is as fast as the median.
    """

    finished_per_work_s: float | None
    service_s: float | None
    tokens_per_s: float | None
    canary_s: float | None
    engines: int
    heard: int = 0
    canary_ratio: float = 0.0
    most_slow: bool = False
    quick_canary_s: float | None = None
    quick_tokens_per_s: float | None = None


NO_PEERS: Final = PeerMedians(
    finished_per_work_s=None, service_s=None, tokens_per_s=None, canary_s=None, engines=0
)


def next_work_sample(
    before: WorkSample | None,
    traffic: EngineTraffic,
    in_use: int,
    peers_per_work_s: float | None,
    *,
    after_s: float,
    now_s: float,
) -> WorkSample:
    """The sample with one more measurement; the same object if the last one is too recent.

    ``peers_per_work_s`` is what peers finish now. Where calls became shorter, an engine's buckets may still cover
    the long ones while those of its peers do not, so their present rate does not apply to that time.

    A bucket closes after half of ``after_s``, or later, once it holds enough to compare.
    """
    done = traffic.succeeded + traffic.failed
    if before is None or done < before.done:
        return WorkSample(at_s=now_s, began_s=now_s, done=done, in_use=in_use)
    passed_s = now_s - before.at_s
    if passed_s < _SAMPLE_S:
        return before
    work_s, finished, lasted_s = before.work_s + in_use * passed_s, done - before.done, now_s - before.began_s
    expected = before.expected + (peers_per_work_s or 0.0) * in_use * passed_s
    full = lasted_s >= after_s / 2
    if full and lasted_s < _LONGEST_BUCKET_S:
        rate = _rate(before)
        full = rate is None or rate * work_s >= MIN_EXPECTED_CALLS / 2
    if full:
        return WorkSample(
            at_s=now_s,
            began_s=now_s,
            done=done,
            in_use=in_use,
            past_began_s=before.began_s,
            past_finished=finished,
            past_work_s=work_s,
            past_expected=expected,
        )
    return WorkSample(
        at_s=now_s,
        began_s=before.began_s,
        done=before.done,
        finished=finished,
        work_s=work_s,
        expected=expected,
        in_use=in_use,
        past_began_s=before.past_began_s,
        past_finished=before.past_finished,
        past_work_s=before.past_work_s,
        past_expected=before.past_expected,
    )


def _rate(book: WorkSample) -> float | None:
    """Calls finished per slot in use and second, over both buckets."""
    work_s = book.work_s + book.past_work_s
    return (book.finished + book.past_finished) / work_s if work_s > 0 else None


def median_rate(books: Sequence[WorkSample], policy: Straggler) -> float | None:
    """Median calls finished per slot in use and second; None with too few engines."""
    rates = [rate for book in books if (rate := _rate(book)) is not None]
    return median(rates) if len(rates) >= policy.min_peers else None


def peer_medians(
    books: Sequence[WorkSample],
    seen: Sequence[EngineTraffic],
    measured: Sequence[tuple[float | None, float | None]],
    policy: Straggler,
) -> PeerMedians:
    """Medians of one cohort; ``measured`` holds tokens per running request and canary time of each engine.

    An ejected engine is none of them, so its canaries need one peer less.
    """
    canaries = [canary for _, canary in measured if canary]

    def middle(values: list[float]) -> float | None:
        return median(values) if len(values) >= policy.min_peers else None

    rates = [tokens for tokens, _ in measured if tokens]
    agree = policy.min_peers - 1
    return PeerMedians(
        finished_per_work_s=median_rate(books, policy),
        service_s=middle([one.service_s for one in seen if one.service_s]),
        tokens_per_s=middle(rates),
        canary_s=median(canaries) if len(canaries) >= policy.min_peers - 1 else None,
        engines=len(books),
        heard=len(measured),
        quick_canary_s=sorted(canaries)[agree - 1] if len(canaries) >= agree else None,
        quick_tokens_per_s=sorted(rates, reverse=True)[agree - 1] if len(rates) >= policy.min_peers else None,
    )


def tokens_per_running(report: EngineReport | None, slots: int, now_s: float, *, ran: int = 0) -> float | None:
    """Tokens per second per running request; None if unknown, stale, or if hardly any request runs.

    ``ran``: requests that ran at the report before; those that ended since made tokens, too.
    """
    running = running_requests(report, slots, now_s)
    if report is None or running is None or report.tokens_per_s is None:
        return None
    return report.tokens_per_s / max(running, ran) if running >= _LEAST_RUNNING else None


def running_requests(report: EngineReport | None, slots: int, now_s: float) -> int | None:
    """Requests that run on a good engine; None if unknown or stale."""
    if report is None or report.requests_in_flight is None:
        return None
    if now_s - report.observed_at_s > FRESH_S or not report.verdict.good:
        return None
    return max(0, min(slots, report.requests_in_flight - (report.requests_waiting or 0)))


def canary_duration_s(report: EngineReport | None) -> float | None:
    """Duration of the newest canary; None if it returned no token."""
    canary = None if report is None else report.canary
    return None if canary is None or not canary.in_row else canary.took_s


def slowness(
    book: WorkSample | None,
    traffic: EngineTraffic | None,
    tokens_per_s: float | None,
    cohort: PeerMedians,
    policy: Straggler,
) -> tuple[float, str, float | None]:
    """Ratio to its peers (0: not slow), the reason, and since when, if the evidence dates it."""
    sure = tokens_per_s is not None and cohort.tokens_per_s is not None
    if (
        tokens_per_s is not None
        and cohort.tokens_per_s is not None
        and cohort.tokens_per_s <= RECOVERED_RATIO * tokens_per_s
    ):
        return NOT_SLOW
    by_tokens, shown = 0.0, ""
    if tokens_per_s is not None and cohort.tokens_per_s is not None:
        by_tokens = min(MOST_TIMES, cohort.tokens_per_s / max(tokens_per_s, 1e-9))
        shown = f"{tokens_per_s:.1f} tokens/s per running request, peers {cohort.tokens_per_s:.1f}"
    times, why, since_s = _by_calls(book, cohort, policy, sure=sure)
    if times:
        # That it is slow, calls show first; how slow, tokens show better: equal calls end in bursts.
        return by_tokens or times, why, since_s
    if by_tokens >= policy.slower_than:
        return by_tokens, f"{shown} (limit: {policy.slower_than:g} times slower)", None
    if traffic is not None and traffic.service_s and cohort.service_s:
        times = traffic.service_s / cohort.service_s
        enough = traffic.done_per_s * RATE_S >= MIN_EXPECTED_CALLS
        if times >= policy.slower_than and enough and (book is None or _behind(book)):
            return (
                times,
                f"calls take {traffic.service_s:.2f} s, on peers {cohort.service_s:.2f} s "
                f"(limit: {policy.slower_than:g} times slower)",
                None,
            )
    return NOT_SLOW


def _by_calls(
    book: WorkSample | None, cohort: PeerMedians, policy: Straggler, *, sure: bool
) -> tuple[float, str, float | None]:
    """The same by finished calls alone; ``sure``: token rates do not contradict it."""
    if book is None or cohort.finished_per_work_s is None:
        return NOT_SLOW
    finished = book.finished + book.past_finished
    # The peers' rate now and their rate then: where lengths change, one of them overestimates.
    expected = min(
        book.expected + book.past_expected, cohort.finished_per_work_s * (book.work_s + book.past_work_s)
    )
    if expected < MIN_EXPECTED_CALLS or finished * policy.slower_than > expected:
        return NOT_SLOW
    mean = expected if sure else min(expected / UNSURE, MOST_BY_ONE * (finished + book.in_use))
    if not unlikely(finished if sure else math.ceil(finished / UNSURE), mean, cohort.engines):
        return NOT_SLOW
    return (
        min(MOST_TIMES, expected / max(finished, 0.5)),
        f"finished {finished} calls in {book.at_s - book.since_s:.1f} s, peers would have "
        f"finished {expected:.0f} (limit: {policy.slower_than:g} times slower)",
        book.since_s,
    )


def _behind(book: WorkSample) -> bool:
    """Whether clearly fewer calls ended than on peers meanwhile, chance or not.

    One answer of 8 s among seven short ones makes the mean time five times longer, but it holds one slot of
    several; in the others as many calls end as anywhere.
    """
    return (book.finished + book.past_finished) * _BEHIND <= book.expected + book.past_expected


def unlikely(count: int, mean: float, engines: int) -> bool:
    """Whether chance hardly explains at most ``count`` events (Poisson, ``mean``) on any of these engines."""
    term = total = math.exp(-mean)
    for k in range(1, count + 1):
        term *= mean / k
        total += term
    return total < FALSE_ALARM_PROBABILITY / engines
