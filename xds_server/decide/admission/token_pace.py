"""How many times slower than usual each engine makes tokens now: the fast part of its service time.

Learned service times remember ten seconds of calls, and a slow engine ends few calls to learn from: its first slow
answer takes as long as the engine is slow. Its tokens per second and running request show the slowdown, and its
end, with the next report. So a service time is the product of two measurements: what calls need at the engine's
usual pace, which changes with the workload, and how far the engine is from that pace. No engine is compared with
another one here, so it does not matter how many of them are slow.

The usual pace is known by the power of two of running requests: a larger batch makes each request slower. A
slowdown counts if calls end more rarely, too, or if it lasts. An engine without work is measured by its canaries.

Only agents count: a prober reads tokens too rarely to know how many requests made them.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from engine.report import EngineReport, ReportSource
from xds_server.decide.decision_memory import PastSpeed, TokenPace
from xds_server.decide.recent_work import RecentWork
from xds_server.model.fleet import Engine

MOVES: Final = 1.5
"""Ratio of paces from which an engine has become slower or faster; less is noise, or another workload."""

MOST: Final = 20.0
"""Largest slowdown: the share that arbitration leaves the slowest engine is a twentieth, too."""

CONFIRM_S: Final = 0.75
"""How long a new pace must last where calls prove nothing."""

GROWS_S: Final = 2.0
"""For so long a new slowdown grows with each report: the first one also covers the time before it."""

_ALIKE: Final = 1.25
"""Below this ratio to its usual pace an engine is as fast as usual."""

_MEMORY_S: Final = 60.0
_ENOUGH_S: Final = 3.0
_ENOUGH_S_AT_LEVEL: Final = 1.0
_LONGEST_LOOK_S: Final = 1.0
_FRESH_S: Final = 2.0

_OWN_CALLS: Final = 3.0
"""Calls that should have ended lately, from which they prove a pace."""

_PACE: Final = 1.33
"""Ratio of expected to ended calls up to which calls keep their pace."""

_CANARIES: Final = 3
_CANARY_SLACK_S: Final = 0.03
"""A canary takes milliseconds, and a busy machine adds as many."""

NO_PACE: Final = TokenPace()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsLately:
    """An engine's work within the last second, and its service time at the present pace."""

    work: RecentWork
    service_s: float

    def keep_pace(self) -> bool | None:
        """Whether as many calls ended as should have; None if too few should have to know."""
        expected = self.work.work_s / self.service_s
        if expected < _OWN_CALLS:
            return None
        return self.work.ended * _PACE >= expected


def has_new_pace(known: TokenPace | None, engine: Engine, now_s: float) -> bool:
    """Whether the engine's newest report tells its pace, and is not used yet."""
    report = engine.report
    return (
        report is not None
        and report.source is ReportSource.AGENT
        and (known is None or report.observed_at_s > known.at_s)
        and report.verdict.good
        and now_s - report.observed_at_s <= _FRESH_S
    )


def next_token_pace(
    before: TokenPace | None, engine: Engine, past: PastSpeed | None, calls: CallsLately | None, now_s: float
) -> TokenPace | None:
    """The pace after a report that tells it; ``before`` without one."""
    report = engine.report
    if report is None:
        return before
    known = NO_PACE if before is None else before
    last_s = known.at_s
    passed_s = min(_LONGEST_LOOK_S, report.observed_at_s - known.at_s) if known.at_s else _LONGEST_LOOK_S
    known = replace(known, at_s=report.observed_at_s)
    running = _running(report, engine.slots)
    if running and report.tokens_per_s is not None:
        level, pace = running.bit_length() - 1, report.tokens_per_s / running
        times = _times_slower(known, level, pace)
        if times is not None:
            known = _judged(known, times, calls, now_s)
        if known.asked is None:
            known = _with_pace(known, level, pace * known.slowdown, passed_s)
    elif (times := _canary_times(report, past, last_s)) is not None:
        known = _judged(known, times, None, now_s)
    return known


def _running(report: EngineReport, slots: int) -> int:
    if report.requests_in_flight is None:
        return 0
    return max(0, min(slots, report.requests_in_flight - (report.requests_waiting or 0)))


def _times_slower(known: TokenPace, level: int, pace: float) -> float | None:
    """How many times slower than usual; None if the usual pace is unknown.

    Compared with a smaller batch, the engine gets the benefit of the doubt.
    """
    if math.fsum(span_s for _, span_s in known.usual) < _ENOUGH_S:
        return None
    levels = [one for one, (_, span_s) in enumerate(known.usual) if span_s >= _ENOUGH_S_AT_LEVEL]
    if not levels:
        return None
    nearest = min(levels, key=lambda one: (abs(one - level), one))
    usual = known.usual[nearest][0] / math.sqrt(2 ** max(0, level - nearest))
    return min(MOST, usual / max(pace, usual / MOST)) if usual > 0 else None


def _with_pace(known: TokenPace, level: int, pace: float, passed_s: float) -> TokenPace:
    """The usual pace with one more measurement; the first ones count fully."""
    usual = list(known.usual) + [(0.0, 0.0)] * (level + 1 - len(known.usual))
    was, span_s = usual[level]
    share = passed_s / (passed_s + min(span_s, _MEMORY_S))
    usual[level] = (was + share * (pace - was), span_s + passed_s)
    return replace(known, usual=tuple(usual))


def _judged(known: TokenPace, times: float, calls: CallsLately | None, now_s: float) -> TokenPace:
    """The slowdown in force after one measurement of it."""
    wanted = times if times >= _ALIKE else 1.0
    ratio = wanted / known.slowdown
    if 1 / MOVES < ratio < MOVES:
        back = wanted == 1.0 and known.slowdown != 1.0
        if not back:
            return replace(known, asked=None)
    slower = ratio > 1
    since_s = now_s if known.asked is None or (known.asked > known.slowdown) is not slower else known.asked_since_s
    asked = confirmed(replace(known, asked=wanted, asked_since_s=since_s), calls, now_s)
    growing = slower and known.slowdown > 1 and now_s - known.since_s <= GROWS_S
    return _in_force(asked, now_s) if growing or now_s - since_s >= CONFIRM_S else asked


def confirmed(known: TokenPace, calls: CallsLately | None, now_s: float) -> TokenPace:
    """The pace after the calls of now confirmed the slowdown asked for, or refuted it."""
    kept = None if calls is None else calls.keep_pace()
    if known.asked is None or kept is None or known.asked <= known.slowdown:
        return known
    return replace(known, asked=None) if kept else _in_force(known, now_s)


def _in_force(known: TokenPace, now_s: float) -> TokenPace:
    if known.asked is None:
        return known
    return replace(known, slowdown=known.asked, since_s=now_s, asked=None)


def _canary_times(report: EngineReport, past: PastSpeed | None, after_s: float) -> float | None:
    """How many times longer than usual an idle engine's canary took; None without a new one."""
    canary = report.canary
    if report.requests_in_flight or canary is None or not canary.in_row or canary.at_s <= after_s:
        return None
    if past is None or not past.canary_s or past.canaries < _CANARIES:
        return None
    slow = canary.took_s >= MOVES * past.canary_s + _CANARY_SLACK_S
    return min(MOST, canary.took_s / past.canary_s) if slow else 1.0
