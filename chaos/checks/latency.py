"""How long callers wait, for answers and for refusals. Pure; every time counts from the planned arrival."""

from collections.abc import Sequence
from typing import Final

from chaos.checks import words
from chaos.checks.case import Case
from chaos.checks.finding import Answer, Finding
from chaos.history.events import Request
from chaos.history.outcomes import Reason, quantile

_QUANTILE: Final = 0.99


def answer_p99(case: Case) -> Finding | None:
    """The 99th percentile of good whole answers."""
    good = [(one.latency_s, one) for one in case.judged if one.ok]
    return _at_most(case, "answerP99", case.hypothesis.answer_p99, good, "good answer")


def first_token_p99(case: Case) -> Finding | None:
    """The 99th percentile of the time to the first token of good streams."""
    good = [(one.first_token_s, one) for one in case.judged if one.ok and one.first_token_s is not None]
    return _at_most(case, "firstTokenP99", case.hypothesis.first_token_p99, good, "first token")


def token_gap_p99(case: Case) -> Finding | None:
    """The 99th percentile of the longest silence inside a good stream."""
    good = [(one.longest_gap_s, one) for one in case.judged if one.ok and one.longest_gap_s is not None]
    return _at_most(case, "tokenGapP99", case.hypothesis.token_gap_p99, good, "longest silence")


def refused_within(case: Case) -> Finding | None:
    """The 99th percentile of the time until who is turned away knows it; nobody turned away is well."""
    limit_s = case.hypothesis.refused_within
    shed = [(one.latency_s, one) for one in case.judged if one.reason is Reason.SHED]
    if limit_s is not None and case.judged and not shed:
        return Finding(
            check="refusedWithin",
            answer=Answer.YES,
            why=f"none of {words.count(len(case.judged), 'request')} was turned away",
            measured="none",
            limit=f"<= {words.seconds(limit_s)}",
            numbers={"refused": 0},
        )
    return _at_most(case, "refusedWithin", limit_s, shed, "refusal")


def _at_most(
    case: Case, check: str, limit_s: float | None, some: Sequence[tuple[float, Request]], what: str
) -> Finding | None:
    """``some`` are requests, each after the time that is judged of it."""
    if limit_s is None:
        return None
    said_limit = f"<= {words.seconds(limit_s)}"
    measured_s = quantile([took_s for took_s, _ in some], _QUANTILE)
    if measured_s is None:
        why = f"there was no {what} to measure"
        return Finding(check=check, answer=Answer.UNKNOWN, why=why, limit=said_limit)
    slow = [one for took_s, one in some if took_s > limit_s]
    worst_s, worst = max(some, key=lambda one: one[0])
    why = (
        f"99 of 100 took at most {words.seconds(measured_s)}, by {words.count(len(some), what)}; the slowest "
        f"{words.seconds(worst_s)} ({worst.request_id} at {words.moment(worst.at_s)} by way of {worst.proxy})"
    )
    kept = measured_s <= limit_s
    answer = Answer.YES if kept else Answer.NO
    if not kept:
        why += (
            f"; {len(slow)} took longer than {words.seconds(limit_s)}, the first at {words.moment(slow[0].at_s)}"
        )
    if not kept and len(slow) <= (1.0 - _QUANTILE) * (len(some) + case.untold):
        answer = Answer.UNKNOWN
        why += "; what was not seen any more could have made up for it"
    return Finding(
        check=check,
        answer=answer,
        why=why,
        measured=words.seconds(measured_s),
        limit=said_limit,
        at_s=None if kept else slow[0].at_s,
        numbers={"p99_s": measured_s, "worst_s": worst_s, "slow": len(slow), "measured": len(some)},
    )
