"""How fast each engine usually is, and how much slower it is now: for engines without comparable peers.

With callers in one zone only, the peers of other zones are idle and prove nothing by their calls. Where most
engines of a pool are slow, the median is slow, too. Then an engine is compared with its own past: *tokens per
second* at the same or a lower number of running requests, and *calls finished per slot in use*. Longer answers
change only the calls, shorter prompts only the tokens, so both must agree. An engine without work is judged by
its *canaries*: they must be slow compared with its own past and with those of its peers now.

A quick canary acquits an engine: then the workload has changed, not the engine. So does its proof after an
ejection, which also resets the memory of its calls.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from engine.report import CanaryResults, EngineReport, ReportSource
from policies.resilience import Straggler
from xds_server.decide.decision_memory import PastSpeed, WorkSample
from xds_server.decide.ejection.slowness import (
    FRESH_S,
    MIN_EXPECTED_CALLS,
    MOST_BY_ONE,
    MOST_TIMES,
    NOT_SLOW,
    RECOVERED_RATIO,
    UNSURE,
    PeerMedians,
    running_requests,
    unlikely,
)

CANARY_SLACK_S: Final = 0.03
"""A canary takes milliseconds, and a prober short of CPU adds as many: smaller differences are ignored."""

_REMOTE_SLACK_S: Final = 0.25
"""The same for the control plane's prober: a longer network path must not look like a slow engine."""

_MEMORY_S: Final = 60.0
"""Time constant of what is usual: a fault of seconds hardly moves it, a new workload replaces it in minutes."""

_ENOUGH_CALLS: Final = 12.0
_ENOUGH_S: Final = 3.0
_ENOUGH_S_AT_LEVEL: Final = 1.0
_ENOUGH_CANARIES: Final = 8
_SLOW_CANARIES: Final = 3
_QUICKER: Final = 0.5
_SLOWER: Final = 0.01
_LONGEST_LOOK_S: Final = 1.0
_IDLE: Final = 1
"""Requests in flight up to which a canary measures the engine, not its queue or another prompt."""

NO_PAST: Final = PastSpeed()


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEvidence:
    """What one engine shows now, to compare with its past. ``peers``: of its pool, in any zone."""

    report: EngineReport | None
    book: WorkSample | None
    slots: int
    peers: PeerMedians
    now_s: float


def next_past_speed(before: PastSpeed | None, seen: PastEvidence, policy: Straggler) -> PastSpeed | None:
    """What is usual after one more evaluation; the same object without news. The engine gets its full share."""
    known = NO_PAST if before is None else before
    report, book = seen.report, seen.book
    if report is not None and report.observed_at_s > known.at_s:
        known = _with_canary(_with_tokens(known, report, seen.slots, seen.now_s), report, seen.peers, policy)
    if book is not None and book.past_began_s is not None and book.past_began_s > known.book_s:
        kept = math.exp(-(book.began_s - book.past_began_s) / _MEMORY_S)
        known = replace(
            known,
            finished=kept * known.finished + book.past_finished,
            work_s=kept * known.work_s + book.past_work_s,
            book_s=book.past_began_s,
        )
    return before if known is NO_PAST else known


def canary_ratio(seen: Iterable[tuple[EngineReport | None, PastSpeed | None]]) -> float:
    """How many times longer than usual canaries of these engines take now: the median; 0 if unknown."""
    ratios = [
        max(0.0, report.canary.took_s - CANARY_SLACK_S) / past.canary_s
        for report, past in seen
        if report is not None
        and report.canary is not None
        and report.canary.in_row
        and past is not None
        and past.canary_s
    ]
    return median(ratios) if ratios else 0.0


def past_of_proven(past: PastSpeed) -> PastSpeed:
    """What stays usual of an engine that was ejected for slowness, and has proved its speed."""
    return replace(past, finished=0.0, work_s=0.0, tokens=(), slow_canaries=0, slow_since_s=None)


def _with_tokens(known: PastSpeed, report: EngineReport, slots: int, now_s: float) -> PastSpeed:
    passed_s = min(_LONGEST_LOOK_S, report.observed_at_s - known.at_s) if known.at_s else _LONGEST_LOOK_S
    known = replace(known, at_s=report.observed_at_s)
    running = running_requests(report, slots, now_s)
    if not running or report.tokens_per_s is None:
        return known
    level = running.bit_length() - 1
    rates = list(known.tokens) + [(0.0, 0.0)] * (level + 1 - len(known.tokens))
    rate, span_s = rates[level]
    # The first samples count fully, later ones by the memory.
    share = passed_s / (passed_s + min(span_s, _MEMORY_S))
    rates[level] = (rate + share * (report.tokens_per_s - rate), span_s + passed_s)
    return replace(known, tokens=tuple(rates))


def _with_canary(known: PastSpeed, report: EngineReport, peers: PeerMedians, policy: Straggler) -> PastSpeed:
    canary = report.canary
    if canary is None or not canary.in_row or canary.at_s <= known.canary_at_s:
        return known
    known = replace(known, canary_at_s=canary.at_s)
    if (report.requests_in_flight or 0) > _IDLE:
        return replace(known, slow_canaries=0, slow_since_s=None)
    usual_s = known.canary_s
    if usual_s is None:
        return replace(known, canary_s=canary.took_s, canaries=1)
    if known.canaries >= _ENOUGH_CANARIES and _is_slow_canary(canary, usual_s, report.source, peers, policy):
        since_s = canary.at_s - canary.took_s if known.slow_since_s is None else known.slow_since_s
        return replace(known, slow_canaries=known.slow_canaries + 1, slow_since_s=since_s)
    share = _QUICKER if canary.took_s < usual_s else _SLOWER
    return replace(
        known,
        canary_s=usual_s + share * (canary.took_s - usual_s),
        canaries=known.canaries + 1,
        slow_canaries=0,
        slow_since_s=None,
    )


def _is_slow_canary(
    canary: CanaryResults, usual_s: float, source: ReportSource, peers: PeerMedians, policy: Straggler
) -> bool:
    """Whether it took much longer than usual, and than those of peers now: all slow alike are not stragglers."""
    if peers.canary_s is None:
        return False
    slack_s = CANARY_SLACK_S if source is ReportSource.AGENT else _REMOTE_SLACK_S
    return canary.took_s >= policy.slower_than * max(usual_s, peers.canary_s) + slack_s


def slower_than_before(
    past: PastSpeed | None, seen: PastEvidence, policy: Straggler
) -> tuple[float, str, float | None]:
    """As ``slowness``, compared with its own past; only with enough engines in the pool to take its work."""
    if past is None or seen.peers.heard < policy.min_peers:
        return NOT_SLOW
    if past.slow_canaries >= _SLOW_CANARIES and past.canary_s and seen.report and seen.report.canary:
        took_s, usual_s = seen.report.canary.took_s, past.canary_s
        return (
            min(MOST_TIMES, took_s / usual_s),
            f"canaries take {took_s:.2f} s, usually {usual_s:.2g} s (limit: {policy.slower_than:g} times slower)",
            past.slow_since_s,
        )
    compared = seen.peers.tokens_per_s is not None and not seen.peers.most_slow
    if compared or _is_acquitted(past, seen, policy):
        return NOT_SLOW
    if seen.peers.canary_ratio >= policy.slower_than:
        return NOT_SLOW  # all engines became slow, also the idle ones
    return _by_calls(past, seen, policy)


def _is_acquitted(past: PastSpeed, seen: PastEvidence, policy: Straggler) -> bool:
    """Whether a recent canary was as quick as ever, and would not have been on a slow engine."""
    canary = None if seen.report is None else seen.report.canary
    if canary is None or not canary.in_row or not past.canary_s or seen.now_s - canary.at_s > FRESH_S:
        return False
    since_s = seen.now_s if seen.book is None else seen.book.since_s
    quick_s = RECOVERED_RATIO * past.canary_s + CANARY_SLACK_S
    telling = _canary_tells(past.canary_s, policy)
    return telling and canary.at_s - canary.took_s >= since_s and canary.took_s <= quick_s


def _by_calls(past: PastSpeed, seen: PastEvidence, policy: Straggler) -> tuple[float, str, float | None]:
    book = seen.book
    # Calls that ended at once, such as refused ones, leave no work.
    if book is None or past.finished < _ENOUGH_CALLS or not past.work_s:
        return NOT_SLOW
    rate = past.finished / past.work_s
    peers_rate = seen.peers.finished_per_work_s
    if peers_rate is not None and peers_rate * policy.slower_than <= rate:
        return NOT_SLOW  # peers finish fewer calls than usual, too: calls have become longer
    tokens = times_slower_now(past, seen.report, seen.slots, policy, seen.now_s)
    if tokens is not None and tokens < policy.slower_than:
        return NOT_SLOW
    # The older bucket may be of the time before.
    for since_s, finished, work_s in (
        (book.since_s, book.finished + book.past_finished, book.work_s + book.past_work_s),
        (book.began_s, book.finished, book.work_s),
    ):
        expected = rate * work_s
        if expected < MIN_EXPECTED_CALLS or finished * policy.slower_than > expected:
            continue
        sure = tokens is not None
        mean = min(expected if sure else expected / UNSURE, MOST_BY_ONE * (finished + book.in_use))
        if sure and seen.peers.most_slow:
            mean = expected  # few long calls would not slow the tokens of most engines
        if unlikely(finished if sure else math.ceil(finished / UNSURE), mean, seen.peers.heard):
            by_tokens = f", and makes {tokens:.1f} times fewer tokens/s" if tokens is not None else ""
            return (
                min(MOST_TIMES, expected / max(finished, 0.5)),
                f"finished {finished} calls in {book.at_s - since_s:.1f} s, usually {expected:.0f}{by_tokens} "
                f"(limit: {policy.slower_than:g} times slower)",
                since_s,
            )
    return NOT_SLOW


def canary_times_slower(
    past: PastSpeed, report: EngineReport | None, policy: Straggler, now_s: float
) -> float | None:
    """How many times longer than usual the newest canary of an idle engine took; None if it does not tell."""
    canary = None if report is None else report.canary
    if report is None or canary is None or not canary.in_row or now_s - canary.at_s > FRESH_S:
        return None
    if report.requests_in_flight is None or report.requests_in_flight > _IDLE or not report.verdict.good:
        return None
    if not past.canary_s or past.canaries < _ENOUGH_CANARIES or not _canary_tells(past.canary_s, policy):
        return None
    return min(MOST_TIMES, max(0.0, canary.took_s - CANARY_SLACK_S) / past.canary_s)


def _canary_tells(usual_s: float, policy: Straggler) -> bool:
    """Whether the canary of a slow engine would take longer than what counts as quick."""
    return policy.slower_than * usual_s >= RECOVERED_RATIO * usual_s + CANARY_SLACK_S


def times_slower_now(
    past: PastSpeed, report: EngineReport | None, slots: int, policy: Straggler, now_s: float
) -> float | None:
    """How many times fewer tokens per second it makes than usually with as many requests, or fewer.

    A larger batch makes more tokens: in proportion while memory limits a step, none once compute does. The square
    root is between the two, and never enough to make an engine slow by itself.
    """
    running = None if report is None else running_requests(report, slots, now_s)
    if report is None or not running or report.tokens_per_s is None:
        return None
    known = past.tokens[: running.bit_length()]
    if math.fsum(span_s for _, span_s in known) < _ENOUGH_S:
        return None
    most = 1 + (policy.slower_than - 1) / 2
    usual = max(
        (
            rate * min(most, max(1.0, math.sqrt(running / 2 ** (level + 1))))
            for level, (rate, span_s) in enumerate(known)
            if span_s >= _ENOUGH_S_AT_LEVEL
        ),
        default=0.0,
    )
    return min(MOST_TIMES, usual / max(report.tokens_per_s, 1e-9)) if usual > 0 else None
