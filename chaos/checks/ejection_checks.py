"""Ejection checks: broken engines avoided, healed ones returned, capacity floor kept. Pure."""

from typing import Final

from chaos.checks import text_format
from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import CheckInput
from chaos.measures.ejection_spans import (
    EjectionSpan,
    control_plane_ejections,
    healthy_spans,
    proxy_ejections,
    span_intersection,
)
from chaos.measures.impairments import Impairment, ejectable
from chaos.measures.traffic_shift import capacities_per_s, send_times_s, traffic_recoveries

TRIAL_SHARE: Final = 0.05
TRIAL_REQUESTS: Final = 2
"""Trial requests a broken engine may still get: this number, or this share of its fair traffic."""

COUNTER_S: Final = 0.2
"""Delay of values read from proxy counters."""

STUCK_S: Final = 8.0
"""A healthy engine ejected for longer is stuck, unless backWithin is longer."""

_FEWEST_CALLS: Final = 10
_HALF: Final = 0.5


def bad_engines_avoided(case: CheckInput) -> CheckFinding | None:
    """No request goes to a broken engine after the limit; a few trials are allowed."""
    limit_s = case.hypothesis.left_alone_within
    some = [
        one for one in ejectable(case.impairments) if not one.nature.flaps and one.nature.capacity_left < _HALF
    ]
    if limit_s is None or not some:
        return None
    if not case.has_engine_logs:
        why = "the history has no engine logs, so the destination of requests is unknown"
        return CheckFinding(check="leftAloneWithin", answer=CheckResult.UNKNOWN, why=why, limit=_within(limit_s))
    late = {one.engine: found_s for one in some if (found_s := _too_late_s(case, one, limit_s))}
    kept_in = {
        one.engine for one in case.history.decided if one.kind == "kept" and one.after == "kept in rotation"
    }
    excused = late.keys() & kept_in
    for engine in excused:
        del late[engine]
    last_s = max((at_s - _start_s(some, engine) for engine, found in late.items() for at_s in found), default=0.0)
    sent = sum(len(found) for found in late.values())
    if late:
        why = (
            f"{text_format.names(late)} got {text_format.count(sent, 'request')} more than "
            f"{text_format.seconds(limit_s)} after breaking; the last after {text_format.seconds(last_s)}, at "
            f"{text_format.moment(max(at_s for found in late.values() for at_s in found))}"
        )
    else:
        why = (
            f"{text_format.names(one.engine for one in some)} got no requests later than "
            f"{text_format.seconds(limit_s)}"
        )
        why += " after breaking, except single trials"
    if excused:
        why += f"; {text_format.names(sorted(excused))} not counted: kept in rotation by the capacity floor"
    return CheckFinding(
        check="leftAloneWithin",
        answer=CheckResult.NO if late else CheckResult.YES,
        why=why,
        measured=f"{text_format.count(sent, 'request')} late",
        limit=_within(limit_s),
        at_s=min((at_s for found in late.values() for at_s in found), default=None),
        numbers={"late_requests": sent, "last_after_s": last_s, "engines": len(some)},
    )


def traffic_restored(case: CheckInput) -> CheckFinding | None:
    """A healed engine has its traffic back within the limit."""
    limit_s = case.hypothesis.back_within
    some = traffic_recoveries(case.history, case.impairments)
    if limit_s is None or not some:
        return None
    if not case.has_engine_logs:
        why = "the history has no engine logs, so the destination of requests is unknown"
        return CheckFinding(check="backWithin", answer=CheckResult.UNKNOWN, why=why, limit=_within(limit_s))
    never = [one for one in some if one.back_s is None and one.watched_s > limit_s]
    slow = [one for one in some if one.back_s is not None and one.back_s > limit_s]
    unseen = [one for one in some if one.back_s is None and one.watched_s <= limit_s]
    told = [
        f"{text_format.names(one.engines)}, healed at {text_format.moment(one.healed_s)}, "
        + (
            f"did not reach 70 % of its fair share within the remaining {text_format.seconds(one.watched_s)}"
            if one.back_s is None
            else f"reached 70 % of its fair share after {text_format.seconds(one.back_s)}"
        )
        for one in (*never, *slow, *unseen)
    ]
    slowest_s = max((one.back_s for one in some if one.back_s is not None), default=None)
    answer = CheckResult.NO if never or slow else CheckResult.UNKNOWN if unseen else CheckResult.YES
    if answer is CheckResult.YES:
        told = [
            f"after each of {text_format.count(len(some), 'recovery', 'recoveries')} engines reached 70 % of "
            f"their fair share within {text_format.seconds(slowest_s or 0.0)}"
        ]
    return CheckFinding(
        check="backWithin",
        answer=answer,
        why="; ".join(told),
        measured="never" if never else "-" if slowest_s is None else text_format.seconds(slowest_s),
        limit=_within(limit_s),
        at_s=min((one.healed_s + limit_s for one in (*never, *slow)), default=None),
        numbers={} if slowest_s is None else {"slowest_s": slowest_s},
    )


def no_stuck_ejection(case: CheckInput) -> CheckFinding | None:
    """No healthy engine stays ejected, by the decision ledger, the proxies' flags or its traffic.

    Time in which the engine, the control plane or a proxy has a fault does not count.
    """
    limit_s = max(STUCK_S, case.hypothesis.back_within or 0.0)
    stuck: dict[str, EjectionSpan] = {}
    undecided = []
    for engine in case.history.slots:
        good = healthy_spans(case.history, engine, case.end_s)
        out = [
            *control_plane_ejections(case.history, engine, case.end_s),
            *proxy_ejections(case.history, engine, case.end_s),
            *_without_traffic(case, engine, good, limit_s),
        ]
        spans = span_intersection(out, good)
        longest = max(spans, key=lambda one: one.long_s, default=None)
        if longest is not None and longest.long_s > limit_s + COUNTER_S:
            stuck[engine] = longest
        elif any(one.end_s >= case.end_s - COUNTER_S for one in spans):
            undecided.append(engine)
    numbers = {"stuck": float(len(stuck)), "longest_s": max((one.long_s for one in stuck.values()), default=0.0)}
    if stuck:
        worst = max(stuck, key=lambda engine: stuck[engine].long_s)
        span = stuck[worst]
        were = "was" if len(stuck) == 1 else "were"
        why = (
            f"{text_format.names(stuck)} {were} healthy but ejected for longer than "
            f"{text_format.seconds(limit_s)}; {worst} from "
            f"{text_format.moment(span.start_s)} to {text_format.moment(span.end_s)}: {span.why}"
        )
        answer = CheckResult.NO
    elif undecided:
        answer = CheckResult.UNKNOWN
        why = (
            f"{text_format.names(undecided)} still ejected at the end, but not yet longer than "
            f"{text_format.seconds(limit_s)}"
        )
    else:
        answer = CheckResult.YES
        why = f"no healthy engine was ejected for longer than {text_format.seconds(limit_s)}"
    return CheckFinding(
        check="noStuckEjection",
        answer=answer,
        why=why,
        measured=text_format.names(stuck) or "none",
        limit=_within(limit_s),
        at_s=min((one.start_s + limit_s for one in stuck.values()), default=None),
        numbers=numbers,
    )


def engine_floor(case: CheckInput) -> CheckFinding | None:
    """The control plane, or every proxy without one, keeps enough engines in rotation."""
    limit = case.hypothesis.floor_engines_percent
    engines = tuple(case.history.slots)
    if limit is None or not engines:
        return None
    if case.has_control_plane:
        fewest, at_s, who = _fewest_by_ledger(case, engines)
    else:
        fewest, at_s, who = _fewest_at_proxies(case, engines)
    share = 100.0 * fewest / len(engines)
    kept = share >= limit
    return CheckFinding(
        check="floorEnginesPercent",
        answer=CheckResult.YES if kept else CheckResult.NO,
        why=f"{who} kept {'all' if fewest == len(engines) else f'as few as {fewest} of'} "
        f"{text_format.count(len(engines), 'engine')} in rotation"
        + ("" if at_s is None else f" at {text_format.moment(at_s)}"),
        measured=text_format.percent(share),
        limit=f">= {text_format.percent(limit)}",
        at_s=None if kept else at_s,
        numbers={"fewest": fewest, "engines": len(engines)},
    )


def _too_late_s(case: CheckInput, trouble: Impairment, limit_s: float) -> list[float]:
    """Times of requests after the limit, if too many to be trials."""
    end_s = min(trouble.end_s, case.end_s)
    from_s = trouble.start_s + limit_s + (COUNTER_S if trouble.nature.unseen else 0.0)
    late_s = [at_s for at_s in send_times_s(case.history, trouble, end_s) if at_s > from_s]
    capacity = capacities_per_s(case.history)
    fair_per_s = case.history.began.rate_per_s * capacity[trouble.engine] / sum(capacity.values())
    allowed = max(TRIAL_REQUESTS, TRIAL_SHARE * fair_per_s * (end_s - from_s))
    return late_s if len(late_s) > allowed else []


def _start_s(some: list[Impairment], engine: str) -> float:
    return min(one.start_s for one in some if one.engine == engine)


def _without_traffic(
    case: CheckInput, engine: str, good: list[EjectionSpan], limit_s: float
) -> list[EjectionSpan]:
    """The last part of the experiment, if the engine got no requests while others did.

    An engine in a zone without callers may stay idle: callers prefer their own zone.
    """
    if not good or good[-1].end_s < case.end_s or not case.history.attempts:
        return []
    calling = {one.zone for one in case.history.began.proxies if one.demand}
    zones = {one.name: one.zone for one in case.history.began.engines}
    if zones.get(engine) not in calling and calling & set(zones.values()):
        return []
    calls_s = [one.at_s for one in case.history.attempts if one.engine == engine]
    since_s = max(good[-1].start_s, max((at_s for at_s in calls_s if at_s < case.end_s), default=0.0))
    capacity = capacities_per_s(case.history)
    others = sum(
        one.at_s >= since_s and one.engine != engine and one.at_s < case.end_s for one in case.history.attempts
    )
    fair = others * capacity[engine] / max(1e-9, sum(capacity.values()) - capacity[engine])
    if fair < _FEWEST_CALLS or case.end_s - since_s <= limit_s:
        return []
    why = f"no request after {text_format.moment(since_s)}, while other engines got {others}"
    return [EjectionSpan(start_s=since_s, end_s=case.end_s, why=why)]


def _fewest_by_ledger(case: CheckInput, engines: tuple[str, ...]) -> tuple[int, float | None, str]:
    out: set[str] = set()
    fewest, at_s = len(engines), None
    for one in case.history.decided:
        if one.engine in engines and one.out is not None:
            (out.add if one.out else out.discard)(one.engine)
            if len(engines) - len(out) < fewest:
                fewest, at_s = len(engines) - len(out), one.at_s
    return fewest, at_s, "the control plane"


def _fewest_at_proxies(case: CheckInput, engines: tuple[str, ...]) -> tuple[int, float | None, str]:
    fewest, at_s, who = len(engines), None, "every proxy"
    for one in case.history.samples:
        left = len(set(engines) - set(one.ejected) - set(one.unhealthy))
        if left < fewest:
            fewest, at_s, who = left, one.at_s, one.proxy
    return fewest, at_s, who


def _within(limit_s: float) -> str:
    return f"<= {text_format.seconds(limit_s)}"
