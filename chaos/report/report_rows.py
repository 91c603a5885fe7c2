"""Rows of the verdict reports, shared by terminal and HTML. Pure.

Side-by-side verdicts have the same scenario and different subjects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from chaos.checks import text_format
from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.experiment_verdict import ExperimentVerdict
from chaos.measures.call_amplification import call_amplification
from chaos.measures.experiment_measures import MeasuresSummary, measures_summary
from chaos.measures.outage_timeline import STEPS, OutageMoments, by_outage, outage_moments
from chaos.measures.request_periods import RequestPeriod

RESULT_LABELS: Final[Mapping[CheckResult, str]] = MappingProxyType(
    {CheckResult.YES: "held", CheckResult.NO: "BROKEN", CheckResult.UNKNOWN: "unknown"}
)
"""Results of a promise."""

VERDICTS: Final[Mapping[CheckResult, str]] = MappingProxyType(
    {CheckResult.YES: "PASSED", CheckResult.NO: "FAILED", CheckResult.UNKNOWN: "UNKNOWN"}
)
"""Results of an experiment."""

NO_VALUE: Final = "-"
NOT_JUDGED: Final = "not judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow:
    """One row with a cell per subject. ``answers`` and ``reasons`` (one sentence per cell) may be empty."""

    title: str
    cells: tuple[str, ...]
    answers: tuple[CheckResult | None, ...] = ()
    reasons: tuple[str, ...] = ()


def by_scenario(verdicts: Sequence[ExperimentVerdict]) -> Mapping[str, Sequence[ExperimentVerdict]]:
    """Group verdicts by scenario, in their order."""
    groups: dict[str, list[ExperimentVerdict]] = {}
    for one in verdicts:
        groups.setdefault(one.name, []).append(one)
    return groups


def promise_rows(side_by_side: Sequence[ExperimentVerdict]) -> list[ReportRow]:
    """One row per promise: result and measured value for each subject, or that it was not judged."""
    checks = dict.fromkeys(one.check for verdict in side_by_side for one in verdict.findings)
    checks |= dict.fromkeys(name for verdict in side_by_side for name in verdict.not_judged)
    rows = []
    for check in checks:
        found = [_finding(verdict, check) for verdict in side_by_side]
        limits = dict.fromkeys(one.limit for one in found if one is not None and one.limit)
        rows.append(
            ReportRow(
                title=f"{check} ({' or '.join(limits)})" if limits else check,
                cells=tuple(
                    (NOT_JUDGED if check in verdict.not_judged else NO_VALUE)
                    if one is None
                    else f"{RESULT_LABELS[one.answer]}: {one.measured}".removesuffix(": ")
                    for verdict, one in zip(side_by_side, found, strict=True)
                ),
                answers=tuple(None if one is None else one.answer for one in found),
                reasons=tuple("" if one is None else one.why for one in found),
            )
        )
    return rows


def objections(verdict: ExperimentVerdict) -> list[CheckFinding]:
    """Broken promises, then unknown ones."""
    return [
        one for answer in (CheckResult.NO, CheckResult.UNKNOWN) for one in verdict.findings if one.answer is answer
    ]


def measure_rows(side_by_side: Sequence[ExperimentVerdict]) -> list[ReportRow]:
    """Measures by phase, and cost of the experiment."""
    some = [measures_summary(verdict.history) for verdict in side_by_side]
    rows = []
    for phase in ("before", "fault", "after"):
        periods = [getattr(one.measures, phase) for one in some]
        rows += [
            ReportRow(title=f"{phase}: requests", cells=tuple(str(one.requests) for one in periods)),
            ReportRow(title=f"{phase}: goodput", cells=tuple(_percent(one.goodput_percent) for one in periods)),
            ReportRow(
                title=f"{phase}: good answers, p50 / p99",
                cells=tuple(f"{_seconds(one.good_p50_s)} / {_seconds(one.good_p99_s)}" for one in periods),
            ),
            ReportRow(title=f"{phase}: lost", cells=tuple(_lost(one) for one in periods)),
        ]
    rows += [
        ReportRow(
            title="best possible goodput, fault / fault and after",
            cells=tuple(
                f"{_percent(one.possible_fault_percent)} / {_percent(one.possible_both_percent)}" for one in some
            ),
        ),
        ReportRow(
            title="engine calls per request",
            cells=tuple(_calls(verdict, one) for verdict, one in zip(side_by_side, some, strict=True)),
        ),
        ReportRow(title="slot time wasted during the fault", cells=tuple(_wasted(one) for one in some)),
    ]
    if any(one.measures.streams is not None for one in some):
        rows.append(
            ReportRow(
                title="streams: TTFT p99 / longest gap p99 / cut",
                cells=tuple(_streams(one) for one in some),
            )
        )
    return rows


def timeline_rows(side_by_side: Sequence[ExperimentVerdict]) -> list[tuple[str, list[ReportRow]]]:
    """Title and steps of each outage of engines, in seconds after the break or the healing.

    With several engines the last one counts; ``-`` means not observed.
    """
    by_name = [{one.outage: one for one in by_outage(outage_moments(verdict.history))} for verdict in side_by_side]
    found = []
    for outage in dict.fromkeys(name for one in by_name for name in one):
        some = [one.get(outage) for one in by_name]
        first = next(one for one in some if one is not None)
        title = f"{outage}: {first.kind} of {text_format.names(first.engine.split(', '))}"
        found.append(
            (title, [ReportRow(title=step, cells=tuple(_step(one, name) for one in some)) for step, name in STEPS])
        )
    return found


def _step(one: OutageMoments | None, name: str) -> str:
    if one is None:
        return NO_VALUE
    at_s: float | None = getattr(one, name)
    if at_s is None:
        return NO_VALUE
    if name in {"broke_s", "healed_s"}:
        return f"at {text_format.moment(at_s)}"
    since_s = one.healed_s if name in {"readmitted_s", "back_s"} and one.healed_s is not None else one.broke_s
    delay = f"+{text_format.seconds(max(0.0, at_s - since_s))}"
    return f"{delay}, {one.strays} strays" if name == "last_request_s" and one.strays else delay


def _finding(verdict: ExperimentVerdict, check: str) -> CheckFinding | None:
    return next((one for one in verdict.findings if one.check == check), None)


def _percent(value: float | None) -> str:
    return NO_VALUE if value is None else text_format.percent(value)


def _seconds(value_s: float | None) -> str:
    return NO_VALUE if value_s is None else text_format.seconds(value_s)


def _lost(period: RequestPeriod) -> str:
    return ", ".join(f"{number} {reason}" for reason, number in period.reasons.items()) or "none"


def _calls(verdict: ExperimentVerdict, found: MeasuresSummary) -> str:
    some = call_amplification(verdict.history, found.phases.fault_s, found.phases.end_s)
    if some.calls_per_request is None or some.tries_per_question is None:
        return NO_VALUE
    calls = f"{some.calls_per_request:.2f}, {some.most_calls} at most"
    return (
        calls if some.tries_per_question < 1.005 else f"{calls}; {some.tries_per_question:.2f} attempts per caller"
    )


def _wasted(found: MeasuresSummary) -> str:
    waste = found.measures.waste
    return f"{text_format.seconds(waste.wasted_s)} ({text_format.percent(waste.percent)})"


def _streams(found: MeasuresSummary) -> str:
    streams = found.measures.streams
    if streams is None:
        return NO_VALUE
    return f"{_seconds(streams.first_token_p99_s)} / {_seconds(streams.gap_p99_s)} / {streams.cut}"
