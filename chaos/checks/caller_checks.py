"""Checks of groups of callers: quotas are kept, late deadlines refused, and the others lose nothing. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.checks import text_format
from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.check_input import CheckInput
from chaos.history.history_events import RequestRecord
from chaos.scenario.scenario_model import CallerGroup, is_above_quota, is_hopeless, is_served
from xds_server.translate.deadlines import DEADLINE_REASON
from xds_server.translate.tenant_quotas import QUOTA_REASON

_LEARNED_S: Final = 4.0
"""Until then tenants above their quotas use up their bursts, and the shortest answers are being learned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupResult:
    """What one group got."""

    percent: float
    text: str


def caller_goodput(case: CheckInput) -> CheckFinding | None:
    """Good answers per 100 requests of the group with least, of those that must lose nothing."""

    def measured(group: CallerGroup) -> _GroupResult | None:
        asked = _of_group(group, case.questions, case.from_s, case.end_s)
        good = sum(one.ok for one in asked)
        refused = sum(one.refusal == QUOTA_REASON for one in asked)
        text = f"{group.name} {good} of {len(asked)}" + (f" ({refused} refused for its quota)" if refused else "")
        return _GroupResult(percent=100.0 * good / len(asked), text=text) if asked else None

    limit = case.hypothesis.caller_goodput_percent
    return _finding(case, "callerGoodputPercent", limit, is_served, measured, told="good answers", least=True)


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
