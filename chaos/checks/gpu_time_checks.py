"""Cost checks: calls per request, wasted slot time, idle slots. Pure."""

from collections import defaultdict
from typing import Final

from chaos.checks import text_format
from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import CheckInput
from chaos.measures.call_amplification import call_amplification as amplification_of
from chaos.measures.idle_slots import idle_slots as idle_of
from chaos.measures.wasted_gpu_time import wasted_calls, wasted_gpu_time

_NO_BOOKS: Final = "the history has no engine logs"


def amplification(case: CheckInput) -> CheckFinding | None:
    """Calls at engines per request that callers send; client retries count as requests."""
    limit = case.hypothesis.amplification
    if limit is None:
        return None
    found = amplification_of(case.history, case.from_s, case.end_s)
    said_limit = f"<= {limit:.2f}"
    calls = found.calls_per_request
    # In a truncated history, proxy counters include calls of requests without an outcome.
    if calls is None or (not case.has_engine_logs and (case.flaws or not case.history.samples)):
        why = _NO_BOOKS if found.requests else "no request was sent"
        return CheckFinding(check="amplification", answer=CheckResult.UNKNOWN, why=why, limit=said_limit)
    by_callers = found.tries_per_question or 1.0
    why = (
        f"{text_format.count(found.requests, 'request')} caused {text_format.count(found.calls, 'engine call')}: "
        f"{calls:.2f} on average, at most {found.most_calls}"
    )
    if found.counted:
        why += " (some from proxy counters, for engines without logs)"
    if by_callers > 1.005:
        why += f"; client retries: {by_callers:.2f} attempts per caller request"
    return CheckFinding(
        check="amplification",
        answer=CheckResult.YES if calls <= limit else CheckResult.NO,
        why=why,
        measured=f"{calls:.2f}",
        limit=said_limit,
        numbers={
            "calls_per_request": calls,
            "tries_per_question": by_callers,
            "calls": found.calls,
            "requests": found.requests,
            "most_calls": found.most_calls,
        },
    )


def wasted_percent(case: CheckInput) -> CheckFinding | None:
    """Share of used slot time whose answer reached no caller."""
    limit = case.hypothesis.wasted_percent
    if limit is None:
        return None
    if not case.has_engine_logs:
        return _unbooked("wastedPercent", f"<= {text_format.percent(limit)}")
    found = wasted_gpu_time(case.history, case.impairments, case.from_s, case.end_s)
    return CheckFinding(
        check="wastedPercent",
        answer=CheckResult.YES if found.percent <= limit else CheckResult.NO,
        why=_wasted(case, found.wasted_s, found.used_s),
        measured=text_format.percent(found.percent),
        limit=f"<= {text_format.percent(limit)}",
        numbers={"wasted_percent": found.percent, "wasted_s": found.wasted_s, "used_s": found.used_s},
    )


def wasted_gpu_seconds(case: CheckInput) -> CheckFinding | None:
    """Slot time whose answer reached no caller, in seconds."""
    limit_s = case.hypothesis.wasted_gpu_seconds
    if limit_s is None:
        return None
    if not case.has_engine_logs:
        return _unbooked("wastedGpuSeconds", f"<= {text_format.seconds(limit_s)}")
    found = wasted_gpu_time(case.history, case.impairments, case.from_s, case.end_s)
    return CheckFinding(
        check="wastedGpuSeconds",
        answer=CheckResult.YES if found.wasted_s <= limit_s else CheckResult.NO,
        why=_wasted(case, found.wasted_s, found.used_s),
        measured=text_format.seconds(found.wasted_s),
        limit=f"<= {text_format.seconds(limit_s)}",
        numbers={"wasted_s": found.wasted_s, "used_s": found.used_s, "crash_s": found.crash_s},
    )


def idle_while_shedding(case: CheckInput) -> CheckFinding | None:
    """Share of healthy engines' slot time idle while requests were refused."""
    limit = case.hypothesis.idle_while_shedding_percent
    if limit is None:
        return None
    found = idle_of(case.history, case.impairments)
    said_limit = f"<= {text_format.percent(limit)}"
    if not found.shed:
        answer = CheckResult.YES if case.history.requests else CheckResult.UNKNOWN
        why = "no request was refused" if case.history.requests else "no request was sent"
        return CheckFinding(
            check="idleWhileSheddingPercent", answer=answer, why=why, measured="0 %", limit=said_limit
        )
    if not case.has_engine_logs:
        return _unbooked("idleWhileSheddingPercent", said_limit)
    kept = found.percent <= limit
    why = (
        f"{text_format.count(found.shed, 'request')} refused during {text_format.seconds(found.seconds)} in "
        f"total; healthy engines then had {text_format.seconds(found.idle_s)} of "
        f"{text_format.seconds(found.slot_s)} slot time idle"
    )
    if not kept:
        why += f", most on {found.idlest}"
    return CheckFinding(
        check="idleWhileSheddingPercent",
        answer=CheckResult.YES if kept else CheckResult.NO,
        why=why,
        measured=text_format.percent(found.percent),
        limit=said_limit,
        at_s=None if kept else found.first_s,
        numbers={"idle_percent": found.percent, "idle_s": found.idle_s, "shed": found.shed},
    )


def _wasted(case: CheckInput, wasted_s: float, used_s: float) -> str:
    told = (
        f"{text_format.seconds(wasted_s)} of {text_format.seconds(used_s)} slot time produced answers that "
        "reached no caller"
    )
    by_engine: dict[str, float] = defaultdict(float)
    for one in wasted_calls(case.history, case.impairments):
        if not one.destroyed and case.from_s <= one.attempt.at_s < case.end_s:
            by_engine[one.attempt.engine] += one.slot_s
    worst = sorted(by_engine.items(), key=lambda one: -one[1])[:3]
    if wasted_s > 0 and worst:
        costs = (f"{engine} ({text_format.seconds(lost_s)})" for engine, lost_s in worst)
        told += f", mostly on {text_format.names(costs)}"
    return told


def _unbooked(check: str, limit: str) -> CheckFinding:
    return CheckFinding(check=check, answer=CheckResult.UNKNOWN, why=_NO_BOOKS, limit=limit)
