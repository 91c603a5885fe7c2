"""How long callers wait, for answers and for refusals. Pure; every time counts from the planned arrival."""

from collections.abc import Sequence
from typing import Final

from chaos.checks import text_format
from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import CheckInput
from chaos.history.history_events import RequestRecord
from chaos.history.request_outcomes import OutcomeReason, quantile

_QUANTILE: Final = 0.99


def answer_p99(case: CheckInput) -> CheckFinding | None:
    """The 99th percentile of good whole answers."""
    good = [(one.latency_s, one) for one in case.judged_requests if one.ok]
    return _at_most(case, "answerP99", case.hypothesis.answer_p99, good, "good answer")


def first_token_p99(case: CheckInput) -> CheckFinding | None:
    """The 99th percentile of the time to the first token of good streams."""
    good = [(one.first_token_s, one) for one in case.judged_requests if one.ok and one.first_token_s is not None]
    return _at_most(case, "firstTokenP99", case.hypothesis.first_token_p99, good, "first token")


def token_gap_p99(case: CheckInput) -> CheckFinding | None:
    """The 99th percentile of the longest silence inside a good stream."""
    good = [(one.longest_gap_s, one) for one in case.judged_requests if one.ok and one.longest_gap_s is not None]
    return _at_most(case, "tokenGapP99", case.hypothesis.token_gap_p99, good, "longest silence")


def refused_within(case: CheckInput) -> CheckFinding | None:
    """The 99th percentile of the time until who is turned away knows it; nobody turned away is well."""
    limit_s = case.hypothesis.refused_within
    shed = [(one.latency_s, one) for one in case.judged_requests if one.reason is OutcomeReason.SHED]
    if limit_s is not None and case.judged_requests and not shed:
        return CheckFinding(
            check="refusedWithin",
            answer=CheckResult.YES,
            why=f"none of {text_format.count(len(case.judged_requests), 'request')} was turned away",
            measured="none",
            limit=f"<= {text_format.seconds(limit_s)}",
            numbers={"refused": 0},
        )
    return _at_most(case, "refusedWithin", limit_s, shed, "refusal")


def _at_most(
    case: CheckInput, check: str, limit_s: float | None, some: Sequence[tuple[float, RequestRecord]], what: str
) -> CheckFinding | None:
    """``some`` are requests, each after the time that is judged of it."""
    if limit_s is None:
        return None
    said_limit = f"<= {text_format.seconds(limit_s)}"
    measured_s = quantile([took_s for took_s, _ in some], _QUANTILE)
    if measured_s is None:
        why = f"there was no {what} to measure"
        return CheckFinding(check=check, answer=CheckResult.UNKNOWN, why=why, limit=said_limit)
    slow = [one for took_s, one in some if took_s > limit_s]
    worst_s, worst = max(some, key=lambda one: one[0])
    why = (
        f"99 of 100 took at most {text_format.seconds(measured_s)}, by "
        f"{text_format.count(len(some), what)}; the slowest "
        f"{text_format.seconds(worst_s)} ({worst.request_id} at {text_format.moment(worst.at_s)} by way of "
        f"{worst.proxy})"
    )
    kept = measured_s <= limit_s
    answer = CheckResult.YES if kept else CheckResult.NO
    if not kept:
        why += (
            f"; {len(slow)} took longer than {text_format.seconds(limit_s)}, the first at "
            f"{text_format.moment(slow[0].at_s)}"
        )
    if not kept and len(slow) <= (1.0 - _QUANTILE) * (len(some) + case.missing_requests):
        answer = CheckResult.UNKNOWN
        why += "; what was not seen any more could have made up for it"
    return CheckFinding(
        check=check,
        answer=answer,
        why=why,
        measured=text_format.seconds(measured_s),
        limit=said_limit,
        at_s=None if kept else slow[0].at_s,
        numbers={"p99_s": measured_s, "worst_s": worst_s, "slow": len(slow), "measured": len(some)},
    )
