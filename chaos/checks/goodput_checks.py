"""Goodput checks: before the first fault, and from then on. Pure.

A *caller request* (question) includes its client retries; it is good if one attempt is. It counts at the time of
its first attempt.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from chaos.checks import text_format
from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import CheckInput
from chaos.history.history_events import RequestRecord
from chaos.measures.possible_goodput import possible_goodput_percent

_FEWEST_BEFORE: Final = 20
"""Minimum caller requests before the first fault to judge the steady state."""

_SERVICES: Final = 3.0
"""Caller requests within this many mean service times before the fault may have been hit by it."""


def steady_before(case: CheckInput) -> CheckFinding | None:
    """Goodput before the first fault meets the limit; otherwise the rehearsal proves nothing about the fault."""
    limit = _limit_percent(case)
    until_s = case.phases.fault_s - _SERVICES * case.history.began.service_s
    before = [one for one in case.questions if one.at_s < until_s]
    if limit is None or not case.history.outages or len(before) < _FEWEST_BEFORE:
        return None
    good = sum(one.ok for one in before)
    measured = 100.0 * good / len(before)
    told = f"{text_format.percent(measured)} of {text_format.count(len(before), 'caller request')} succeeded"
    if measured >= limit:
        answer, why = CheckResult.YES, f"before the first fault {told}"
    else:
        answer = CheckResult.NO
        why = (
            f"before the first fault only {told}, below the limit of {text_format.percent(limit)} for the fault; "
            f"failures: {_lost(before)}"
        )
    return CheckFinding(
        check="steadyBefore",
        answer=answer,
        why=why,
        measured=text_format.percent(measured),
        limit=f">= {text_format.percent(limit)}",
        at_s=_first_bad_s(before, limit) if answer is CheckResult.NO else None,
        numbers={"goodput_percent": measured, "questions": len(before), "good": good},
    )


def goodput(case: CheckInput) -> CheckFinding | None:
    """Good answers per 100 caller requests, from the first fault to the end."""
    limit = case.hypothesis.goodput_percent
    if limit is None:
        return None
    return _finding("goodputPercent", case, limit, of_percent=100.0)


def goodput_of_possible(case: CheckInput) -> CheckFinding | None:
    """Goodput relative to a perfect admission limit for the same arrivals."""
    limit = case.hypothesis.goodput_of_possible_percent
    if limit is None:
        return None
    possible = possible_goodput_percent(case.history, case.impairments, case.from_s, case.end_s)
    if not possible:
        return CheckFinding(
            check="goodputOfPossiblePercent",
            answer=CheckResult.UNKNOWN,
            why="no caller request could have succeeded, so there is nothing to compare with",
            limit=f">= {text_format.percent(limit)}",
        )
    return _finding("goodputOfPossiblePercent", case, limit, of_percent=possible)


def _finding(check: str, case: CheckInput, limit: float, of_percent: float) -> CheckFinding:
    some = [one for one in case.questions if case.from_s <= one.at_s < case.end_s]
    said_limit = f">= {text_format.percent(limit)}"
    if not some:
        why = f"no caller request after {text_format.moment(case.from_s)}"
        return CheckFinding(check=check, answer=CheckResult.UNKNOWN, why=why, limit=said_limit)
    good = sum(one.ok for one in some)
    goodput = 100.0 * good / len(some)
    measured = 100.0 * goodput / of_percent
    told = (
        f"{good} of {text_format.count(len(some), 'caller request')} from {text_format.moment(case.from_s)} to "
        f"{text_format.moment(case.end_s)} succeeded ({text_format.percent(goodput)}"
    )
    told += ")" if of_percent == 100.0 else f", possible: {text_format.percent(of_percent)})"
    answer = CheckResult.YES if measured >= limit else CheckResult.NO
    if answer is CheckResult.NO and _best_percent(case, good, len(some)) >= limit * of_percent / 100.0:
        answer = CheckResult.UNKNOWN
        told += "; unrecorded requests could have met the limit"
    elif answer is CheckResult.NO:
        told += f"; failures: {_lost(some)}; faults: {text_format.faults(case.history.outages)}"
    return CheckFinding(
        check=check,
        answer=answer,
        why=told,
        measured=text_format.percent(measured),
        limit=said_limit,
        at_s=_first_bad_s(some, limit * of_percent / 100.0) if answer is CheckResult.NO else None,
        numbers={
            "goodput_percent": goodput,
            "possible_percent": of_percent,
            "questions": len(some),
            "good": good,
        },
    )


def _best_percent(case: CheckInput, good: int, asked: int) -> float:
    """Goodput if all requests missing from a truncated history had succeeded."""
    return 100.0 * (good + case.missing_requests) / (asked + case.missing_requests)


def _limit_percent(case: CheckInput) -> float | None:
    """Goodput limit in percent of all requests; the lower one if both are set."""
    said = case.hypothesis
    if said.goodput_percent is not None:
        return said.goodput_percent
    if said.goodput_of_possible_percent is None:
        return None
    possible = possible_goodput_percent(case.history, case.impairments, 0.0, case.phases.fault_s)
    return None if possible is None else min(100.0, possible) * min(1.0, said.goodput_of_possible_percent / 100.0)


def _lost(some: Sequence[RequestRecord]) -> str:
    """``50 shed, 18 timeout``, most frequent first."""
    reasons = Counter(one.reason.value for one in some if not one.ok)
    return ", ".join(f"{number} {reason}" for reason, number in reasons.most_common()) or "none"


def _first_bad_s(some: Sequence[RequestRecord], limit: float) -> float | None:
    """Start of the first second with goodput below the limit."""
    good: Counter[int] = Counter()
    every: Counter[int] = Counter()
    for one in some:
        every[int(one.at_s)] += 1
        good[int(one.at_s)] += one.ok
    return next((float(at_s) for at_s in sorted(every) if 100.0 * good[at_s] / every[at_s] < limit), None)
