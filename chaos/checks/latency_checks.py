"""Latency checks of answers and refusals. Pure; all times count from the planned arrival."""

from collections.abc import Sequence
from typing import Final

from chaos.checks import text_format
from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import CheckInput
from chaos.history.history_events import RequestRecord
from chaos.history.request_outcomes import OutcomeReason, quantile

_QUANTILE: Final = 0.99


def answer_p99(case: CheckInput) -> CheckFinding | None:
    """p99 of the total time of good answers."""
    good = [(one.latency_s, one) for one in case.judged_requests if one.ok]
    return _at_most(case, "answerP99", case.hypothesis.answer_p99, good, "good answer")


def first_token_p99(case: CheckInput) -> CheckFinding | None:
    """p99 of the time to first token (TTFT) of good streams."""
    good = [(one.first_token_s, one) for one in case.judged_requests if one.ok and one.first_token_s is not None]
    return _at_most(case, "firstTokenP99", case.hypothesis.first_token_p99, good, "first token")


def token_gap_p99(case: CheckInput) -> CheckFinding | None:
    """p99 of the longest token gap in a good stream."""
    good = [(one.longest_gap_s, one) for one in case.judged_requests if one.ok and one.longest_gap_s is not None]
    return _at_most(case, "tokenGapP99", case.hypothesis.token_gap_p99, good, "longest token gap")


def refused_within(case: CheckInput) -> CheckFinding | None:
    """p99 of the time to refuse a request; no refusals pass."""
    limit_s = case.hypothesis.refused_within
    shed = [(one.latency_s, one) for one in case.judged_requests if one.reason is OutcomeReason.SHED]
    if limit_s is not None and case.judged_requests and not shed:
        return CheckFinding(
            check="refusedWithin",
            answer=CheckResult.YES,
            why=f"none of {text_format.count(len(case.judged_requests), 'request')} was refused",
            measured="none",
            limit=f"<= {text_format.seconds(limit_s)}",
            numbers={"refused": 0},
        )
    return _at_most(case, "refusedWithin", limit_s, shed, "refusal")


def _at_most(
    case: CheckInput, check: str, limit_s: float | None, some: Sequence[tuple[float, RequestRecord]], what: str
) -> CheckFinding | None:
    """``some`` are pairs of a judged time and its request."""
    if limit_s is None:
        return None
    said_limit = f"<= {text_format.seconds(limit_s)}"
    measured_s = quantile([took_s for took_s, _ in some], _QUANTILE)
    if measured_s is None:
        why = f"no {what} to measure"
        return CheckFinding(check=check, answer=CheckResult.UNKNOWN, why=why, limit=said_limit)
    slow = [one for took_s, one in some if took_s > limit_s]
    worst_s, worst = max(some, key=lambda one: one[0])
    why = (
        f"p99 of {text_format.count(len(some), what)}: {text_format.seconds(measured_s)}; slowest "
        f"{text_format.seconds(worst_s)} ({worst.request_id} at {text_format.moment(worst.at_s)} through "
        f"{worst.proxy})"
    )
    kept = measured_s <= limit_s
    answer = CheckResult.YES if kept else CheckResult.NO
    if not kept:
        why += (
            f"; {len(slow)} above {text_format.seconds(limit_s)}, the first at {text_format.moment(slow[0].at_s)}"
        )
    if not kept and len(slow) <= (1.0 - _QUANTILE) * (len(some) + case.missing_requests):
        answer = CheckResult.UNKNOWN
        why += "; unrecorded requests could have met the limit"
    return CheckFinding(
        check=check,
        answer=answer,
        why=why,
        measured=text_format.seconds(measured_s),
        limit=said_limit,
        at_s=None if kept else slow[0].at_s,
        numbers={"p99_s": measured_s, "worst_s": worst_s, "slow": len(slow), "measured": len(some)},
    )
