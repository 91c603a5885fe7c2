"""How long callers wait, for answers and for refusals. Pure; every time counts from the planned arrival."""

from collections.abc import Callable, Sequence

from chaos.checks import words
from chaos.checks.case import Case
from chaos.checks.finding import Answer, Finding
from chaos.history.events import Request
from chaos.outcomes import Reason, quantile


def answer_p99(case: Case) -> Finding | None:
    """The 99th percentile of good whole answers."""
    good = [one for one in case.judged if one.ok]
    return _at_most("answerP99", case.hypothesis.answer_p99, good, lambda one: one.latency_s, "good answer")


def first_token_p99(case: Case) -> Finding | None:
    """The 99th percentile of the time to the first token of good streams."""
    good = [one for one in case.judged if one.ok and one.first_token_s is not None]
    return _at_most(
        "firstTokenP99", case.hypothesis.first_token_p99, good, lambda one: one.first_token_s or 0.0, "first token"
    )


def token_gap_p99(case: Case) -> Finding | None:
    """The 99th percentile of the longest silence inside a good stream."""
    good = [one for one in case.judged if one.ok and one.longest_gap_s is not None]
    return _at_most(
        "tokenGapP99", case.hypothesis.token_gap_p99, good, lambda one: one.longest_gap_s or 0.0, "longest silence"
    )


def refused_within(case: Case) -> Finding | None:
    """The 99th percentile of the time until who is turned away knows it; nobody turned away is well."""
    limit_s = case.hypothesis.refused_within
    shed = [one for one in case.judged if one.reason is Reason.SHED]
    if limit_s is not None and case.judged and not shed:
        return Finding(
            check="refusedWithin",
            answer=Answer.YES,
            why=f"none of {words.count(len(case.judged), 'request')} was turned away",
            measured="none",
            limit=f"<= {words.seconds(limit_s)}",
            numbers={"refused": 0},
        )
    return _at_most("refusedWithin", limit_s, shed, lambda one: one.latency_s, "refusal")


def _at_most(
    check: str, limit_s: float | None, some: Sequence[Request], of: Callable[[Request], float], what: str
) -> Finding | None:
    if limit_s is None:
        return None
    said_limit = f"<= {words.seconds(limit_s)}"
    measured_s = quantile([of(one) for one in some], 0.99)
    if measured_s is None:
        why = f"there was no {what} to measure"
        return Finding(check=check, answer=Answer.UNKNOWN, why=why, limit=said_limit)
    slow = [one for one in some if of(one) > limit_s]
    worst = max(some, key=of)
    why = (
        f"99 of 100 took at most {words.seconds(measured_s)}, by {words.count(len(some), what)}; the slowest "
        f"{words.seconds(of(worst))} ({worst.request_id} at {words.moment(worst.at_s)} by way of {worst.proxy})"
    )
    kept = measured_s <= limit_s
    if not kept:
        why += (
            f"; {len(slow)} took longer than {words.seconds(limit_s)}, the first at {words.moment(slow[0].at_s)}"
        )
    return Finding(
        check=check,
        answer=Answer.YES if kept else Answer.NO,
        why=why,
        measured=words.seconds(measured_s),
        limit=said_limit,
        at_s=None if kept else slow[0].at_s,
        numbers={"p99_s": measured_s, "worst_s": of(worst), "slow": len(slow), "measured": len(some)},
    )
