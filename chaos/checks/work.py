"""What requests cost the engines, and what engines could have done: calls, slot time in vain, slots idle. Pure."""

from collections import defaultdict
from typing import Final

from chaos.checks import words
from chaos.checks.case import Case
from chaos.checks.finding import Answer, Finding
from chaos.measures.amplification import amplification as amplification_of
from chaos.measures.idle import idle_while_shedding as idle_of
from chaos.measures.waste import in_vain, waste

_NO_BOOKS: Final = "the engines' own books are not in the history, and nobody else knows"


def amplification(case: Case) -> Finding | None:
    """Calls that reach engines per request that callers send; what callers try again themselves counts apart."""
    limit = case.hypothesis.amplification
    if limit is None:
        return None
    found = amplification_of(case.history, case.from_s, case.end_s)
    said_limit = f"<= {limit:.2f}"
    calls = found.calls_per_request
    # Where the history breaks off, proxies have counted calls of requests whose end it does not tell.
    if calls is None or (not case.booked and (case.flaws or not case.history.samples)):
        why = _NO_BOOKS if found.requests else "no request was sent"
        return Finding(check="amplification", answer=Answer.UNKNOWN, why=why, limit=said_limit)
    by_callers = found.tries_per_question or 1.0
    why = (
        f"{words.count(found.requests, 'request')} came to {words.count(found.calls, 'call')} at engines, "
        f"{calls:.2f} each and {found.most_calls} at most for one"
    )
    if found.counted:
        why += " (some by the proxies' counters, for engines that keep no book)"
    if by_callers > 1.005:
        why += f"; callers themselves made {by_callers:.2f} tries of each question"
    return Finding(
        check="amplification",
        answer=Answer.YES if calls <= limit else Answer.NO,
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


def wasted_percent(case: Case) -> Finding | None:
    """Slot time whose answer nobody got, per 100 of all that was used."""
    limit = case.hypothesis.wasted_percent
    if limit is None:
        return None
    if not case.booked:
        return _unbooked("wastedPercent", f"<= {words.percent(limit)}")
    found = waste(case.history, case.troubles, case.from_s, case.end_s)
    return Finding(
        check="wastedPercent",
        answer=Answer.YES if found.percent <= limit else Answer.NO,
        why=_wasted(case, found.wasted_s, found.used_s),
        measured=words.percent(found.percent),
        limit=f"<= {words.percent(limit)}",
        numbers={"wasted_percent": found.percent, "wasted_s": found.wasted_s, "used_s": found.used_s},
    )


def wasted_gpu_seconds(case: Case) -> Finding | None:
    """The same in seconds."""
    limit_s = case.hypothesis.wasted_gpu_seconds
    if limit_s is None:
        return None
    if not case.booked:
        return _unbooked("wastedGpuSeconds", f"<= {words.seconds(limit_s)}")
    found = waste(case.history, case.troubles, case.from_s, case.end_s)
    return Finding(
        check="wastedGpuSeconds",
        answer=Answer.YES if found.wasted_s <= limit_s else Answer.NO,
        why=_wasted(case, found.wasted_s, found.used_s),
        measured=words.seconds(found.wasted_s),
        limit=f"<= {words.seconds(limit_s)}",
        numbers={"wasted_s": found.wasted_s, "used_s": found.used_s, "crash_s": found.crash_s},
    )


def idle_while_shedding(case: Case) -> Finding | None:
    """Slot time of well engines that was idle while requests were turned away, per 100 of theirs."""
    limit = case.hypothesis.idle_while_shedding_percent
    if limit is None:
        return None
    found = idle_of(case.history, case.troubles)
    said_limit = f"<= {words.percent(limit)}"
    if not found.shed:
        answer = Answer.YES if case.history.requests else Answer.UNKNOWN
        why = "nobody was turned away" if case.history.requests else "no request was sent"
        return Finding(check="idleWhileSheddingPercent", answer=answer, why=why, measured="0 %", limit=said_limit)
    if not case.booked:
        return _unbooked("idleWhileSheddingPercent", said_limit)
    kept = found.percent <= limit
    why = (
        f"{words.count(found.shed, 'request')} were turned away, in moments of {words.seconds(found.seconds)} in "
        f"all; engines that were well had {words.seconds(found.slot_s)} of slots then and "
        f"{words.seconds(found.idle_s)} of that idle"
    )
    if not kept:
        why += f", {found.idlest} the most"
    return Finding(
        check="idleWhileSheddingPercent",
        answer=Answer.YES if kept else Answer.NO,
        why=why,
        measured=words.percent(found.percent),
        limit=said_limit,
        at_s=None if kept else found.first_s,
        numbers={"idle_percent": found.percent, "idle_s": found.idle_s, "shed": found.shed},
    )


def _wasted(case: Case, wasted_s: float, used_s: float) -> str:
    told = f"{words.seconds(wasted_s)} of {words.seconds(used_s)} of slot time went into answers that nobody got"
    by_engine: dict[str, float] = defaultdict(float)
    for one in in_vain(case.history, case.troubles):
        if not one.destroyed and case.from_s <= one.attempt.at_s < case.end_s:
            by_engine[one.attempt.engine] += one.slot_s
    worst = sorted(by_engine.items(), key=lambda one: -one[1])[:3]
    if wasted_s > 0 and worst:
        told += f", most of it on {words.names(f'{engine} ({words.seconds(lost_s)})' for engine, lost_s in worst)}"
    return told


def _unbooked(check: str, limit: str) -> Finding:
    return Finding(check=check, answer=Answer.UNKNOWN, why=_NO_BOOKS, limit=limit)
