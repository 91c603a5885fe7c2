"""Checks of groups of callers: quotas are kept, late deadlines refused, and the others lose nothing. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.checks import text_format
from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import CheckInput
from chaos.history.history_events import RequestRecord
from chaos.history.request_outcomes import quantile
from chaos.scenario.scenario_model import CallerGroup, is_above_quota, is_hopeless, is_late_burden, is_served
from xds_server.translate.deadlines import DEADLINE_REASON
from xds_server.translate.tenant_quotas import QUOTA_REASON

_LEARNED_S: Final = 4.0
"""Until then tenants above their quotas use up their bursts, and the shortest answers are being learned."""

_QUANTILE: Final = 0.99
_ENOUGH: Final = 100
"""A p99 of fewer is the slowest of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupResult:
    """What one group got."""

    percent: float
    text: str


def caller_goodput(case: CheckInput) -> CheckFinding | None:
    """Good answers per 100 requests of the group with least, of those that must lose nothing.

    Without the first seconds of a group that is a burden, in which its limit does not hold yet.
    """
    begins = [] if case.spec is None else [one.begins for one in case.spec.load.callers if is_late_burden(one)]

    def measured(group: CallerGroup) -> _GroupResult | None:
        whole = _of_group(group, case.questions, case.from_s, case.end_s)
        asked = [one for one in whole if not any(at_s <= one.at_s < at_s + _LEARNED_S for at_s in begins)]
        good = sum(one.ok for one in asked)
        refused = sum(one.refusal == QUOTA_REASON for one in asked)
        early = sum(not one.ok for one in whole) - (len(asked) - good)
        text = f"{group.name} {good} of {len(asked)}" + (f" ({refused} refused for its quota)" if refused else "")
        if early:
            text += f" ({early} lost while limits were not in force)"
        return _GroupResult(percent=100.0 * good / len(asked), text=text) if asked else None

    limit = case.hypothesis.caller_goodput_percent
    return _finding(case, "callerGoodputPercent", limit, is_served, measured, told="good answers", least=True)


def caller_p99_times(case: CheckInput) -> CheckFinding | None:
    """p99 of good answers of groups that must lose nothing, since another became a burden."""
    limit = case.hypothesis.caller_p99_times
    return _times(case, "callerP99Times", limit, "answers", lambda one: one.latency_s)


def caller_first_token_times(case: CheckInput) -> CheckFinding | None:
    """The same of the time to the first token of their good streams."""
    limit = case.hypothesis.caller_first_token_times
    return _times(case, "callerFirstTokenTimes", limit, "streams", lambda one: one.first_token_s)


def _times(
    case: CheckInput, check: str, limit: float | None, told: str, took: Callable[[RequestRecord], float | None]
) -> CheckFinding | None:
    """p99 of a time after a group became a burden, over that before, of groups that must lose nothing."""
    spec = case.spec
    if limit is None or spec is None:
        return None
    began_s = min(one.begins for one in spec.load.callers if is_late_burden(one))
    names = {one.name for one in spec.load.callers if is_served(one)}

    def took_s(from_s: float, to_s: float) -> list[float]:
        good = (one for one in case.questions if one.ok and one.group in names and from_s <= one.at_s < to_s)
        return [seconds for one in good if (seconds := took(one)) is not None]

    before, after = took_s(max(case.from_s, _LEARNED_S), began_s), took_s(began_s + _LEARNED_S, case.end_s)
    alone_s, now_s = quantile(before, _QUANTILE), quantile(after, _QUANTILE)
    said_limit = f"<= {limit:g}"
    if alone_s is None or now_s is None or min(len(before), len(after)) < _ENOUGH:
        why = f"{len(before)} good {told} before and {len(after)} after are too few to compare"
        return CheckFinding(check=check, answer=CheckResult.UNKNOWN, why=why, limit=said_limit)
    times = now_s / alone_s
    return CheckFinding(
        check=check,
        answer=CheckResult.YES if times <= limit else CheckResult.NO,
        why=(
            f"p99 {text_format.seconds(now_s)} of {len(after)} good {told} from "
            f"{text_format.moment(began_s + _LEARNED_S)} on, and {text_format.seconds(alone_s)} of {len(before)} "
            "before"
        ),
        measured=f"{times:.2f}",
        limit=said_limit,
        numbers={"times": times, "before_s": alone_s, "after_s": now_s},
    )


def quota_error(case: CheckInput) -> CheckFinding | None:
    """Largest deviation from its quota of the requests that a tenant above it was admitted."""
    from_s = max(case.from_s, _LEARNED_S)

    def measured(group: CallerGroup) -> _GroupResult | None:
        asked = _of_group(group, case.history.requests, from_s, case.end_s)
        if not asked or case.spec is None or group.times_quota is None:
            return None
        admitted = sum(one.refusal != QUOTA_REASON for one in asked)
        rate_per_s = case.spec.load.rate_of(group, case.history.began.rate_per_s)
        quota = rate_per_s / group.times_quota * (case.end_s - from_s)
        return _GroupResult(
            percent=100.0 * abs(admitted - quota) / quota,
            text=f"{group.name} {admitted} of {len(asked)} with a quota of {quota:.1f}",
        )

    limit = case.hypothesis.quota_error_percent
    told = f"admitted in {case.end_s - from_s:.1f} s"
    return _finding(case, "quotaErrorPercent", limit, is_above_quota, measured, told=told, least=False)


def hopeless_refused(case: CheckInput) -> CheckFinding | None:
    """Requests refused for their deadline, per 100 of the group with least, of those that no answer can reach."""
    from_s = max(case.from_s, _LEARNED_S)

    def measured(group: CallerGroup) -> _GroupResult | None:
        asked = _of_group(group, case.history.requests, from_s, case.end_s)
        refused = sum(one.refusal == DEADLINE_REASON for one in asked)
        text = f"{group.name} {refused} of {len(asked)}"
        return _GroupResult(percent=100.0 * refused / len(asked), text=text) if asked else None

    limit = case.hypothesis.hopeless_refused_percent
    told = f"refused for their deadline from {text_format.moment(from_s)} on"
    return _finding(case, "hopelessRefusedPercent", limit, is_hopeless, measured, told=told, least=True)


def _finding(
    case: CheckInput,
    check: str,
    limit: float | None,
    applies: Callable[[CallerGroup], bool],
    measured: Callable[[CallerGroup], _GroupResult | None],
    *,
    told: str,
    least: bool,
) -> CheckFinding | None:
    """The result of the worst group; ``least``: the limit is a minimum. The scenario's rules require a group."""
    if limit is None or case.spec is None:
        return None
    said_limit = f"{'>=' if least else '<='} {text_format.percent(limit)}"
    found = []
    for group in filter(applies, case.spec.load.callers):
        result = measured(group)
        if result is None:
            why = f"no request of {group.name} to judge"
            return CheckFinding(check=check, answer=CheckResult.UNKNOWN, why=why, limit=said_limit)
        found.append(result)
    worst = (min if least else max)(one.percent for one in found)
    return CheckFinding(
        check=check,
        answer=CheckResult.YES if (worst >= limit if least else worst <= limit) else CheckResult.NO,
        why=f"{told}: {', '.join(one.text for one in found)}",
        measured=text_format.percent(worst),
        limit=said_limit,
        numbers={"percent": worst, "groups": float(len(found))},
    )


def _of_group(
    group: CallerGroup, requests: Sequence[RequestRecord], from_s: float, to_s: float
) -> list[RequestRecord]:
    return [one for one in requests if one.group == group.name and from_s <= one.at_s < to_s]
