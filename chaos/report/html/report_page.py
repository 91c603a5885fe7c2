"""Content and order of the report page. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from chaos.checks import text_format
from chaos.checks.check_finding import CheckFinding, CheckResult
from chaos.checks.experiment_verdict import ExperimentVerdict, under_test
from chaos.report.html import fleet_figures, outage_figure, request_figures, share_figure
from chaos.report.html.experiment_view import ExperimentView, experiment_views
from chaos.report.html.figure import ReportFigure
from chaos.report.report_rows import (
    RESULT_LABELS,
    VERDICTS,
    ReportRow,
    by_scenario,
    measure_rows,
    objections,
    promise_rows,
    timeline_rows,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictCell:
    """A verdict with its colour. ``about`` names the promises it concerns."""

    text: str
    css: str
    sign: str
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedPromise:
    """A broken or unknown promise."""

    check: str
    chip: VerdictCell
    why: str
    measured: str
    when: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedExperiment:
    """An experiment that did not pass: its first reasons, and the number of others."""

    scenario: str
    subject: str
    chip: VerdictCell
    link: str
    reasons: Sequence[FailedPromise]
    more: int
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectTally:
    """Verdict counts of one subject."""

    subject: str
    counts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectColumn:
    """One column of a scenario."""

    name: str
    chip: VerdictCell
    reasons: Sequence[FailedPromise]
    note: str
    facts: Mapping[str, str]
    policies: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioSection:
    """One scenario with all its subjects.

    ``open``: shown expanded, because something did not pass. ``why``: repeats the reasons, unless the same ones
    stand directly above.
    """

    link: str
    name: str
    title: str
    incident: str
    faults: Sequence[str]
    site: str
    subjects: Sequence[SubjectColumn]
    promises: Sequence[ReportRow]
    measures: Sequence[ReportRow]
    timelines: Sequence[tuple[str, Sequence[ReportRow]]]
    figures: Sequence[ReportFigure]
    open: bool
    why: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPage:
    """The report page. ``tallies`` is empty for a single subject.

    ``matrix`` has a row per scenario (name, link, and a list of verdicts per subject). It comes first if there are
    ``many`` complaints.
    """

    chip: VerdictCell
    summary: str
    tallies: Sequence[SubjectTally]
    when: str
    complaints: Sequence[FailedExperiment]
    many: bool
    subjects: Sequence[str]
    matrix: Sequence[tuple[str, str, Sequence[Sequence[VerdictCell]]]]
    sections: Sequence[ScenarioSection]


FIRST_REASONS: Final = 3
"""Reasons shown per experiment at the top; the others follow with the scenario."""

_MANY: Final = 4
_FEW: Final = 2
"""Up to this many scenarios are all expanded."""

SIGNS: Final[Mapping[CheckResult, str]] = MappingProxyType(
    {CheckResult.YES: "✔", CheckResult.NO: "✖", CheckResult.UNKNOWN: "?"}
)
"""Signs that do not depend on colour."""


def report_page(verdicts: Sequence[ExperimentVerdict], baselines: Collection[str] = ()) -> ReportPage:
    """Build the page, most important part first. ``baselines`` do not count for the overall verdict."""
    groups = by_scenario(verdicts)
    links = {name: f"scenario-{number}" for number, name in enumerate(groups, start=1)}
    subjects = list(dict.fromkeys(one.subject for one in verdicts))
    complaints = [
        _complaint(one, links[one.name])
        for answer in (CheckResult.NO, CheckResult.UNKNOWN)
        for one in verdicts
        if one.answer is answer
    ]
    began_s = [one.history.began.at_unix_s for one in verdicts]
    return ReportPage(
        chip=_verdict(under_test(verdicts, baselines)),
        summary=_summary(verdicts),
        tallies=[
            SubjectTally(subject=subject, counts=_counted([one for one in verdicts if one.subject == subject]))
            for subject in (subjects if len(subjects) > 1 else ())
        ],
        when=f"{datetime.fromtimestamp(min(began_s), UTC):%Y-%m-%d %H:%M} UTC" if began_s else "",
        complaints=complaints,
        many=len(complaints) > _MANY,
        subjects=subjects,
        matrix=[
            (
                name,
                links[name],
                [
                    [_verdict(one.answer, _broken(one)) for one in some if one.subject == subject]
                    for subject in subjects
                ],
            )
            for name, some in groups.items()
        ],
        sections=[
            _section(name, links[name], some, few=len(groups) <= _FEW, alone=len(groups) == 1)
            for name, some in groups.items()
        ],
    )


def _summary(verdicts: Sequence[ExperimentVerdict]) -> str:
    """``12 experiments: 1 failed, 2 unknown, 9 passed.``"""
    if not verdicts:
        return "No experiments."
    return f"{text_format.count(len(verdicts), 'experiment')}: {_counted(verdicts)}."


def _counted(verdicts: Sequence[ExperimentVerdict]) -> str:
    counts = {answer: sum(one.answer is answer for one in verdicts) for answer in CheckResult}
    parts = [
        f"{counts[answer]} {word}"
        for answer, word in (
            (CheckResult.NO, "failed"),
            (CheckResult.UNKNOWN, "unknown"),
            (CheckResult.YES, "passed"),
        )
        if counts[answer]
    ]
    return ", ".join(parts)


def _complaint(one: ExperimentVerdict, link: str) -> FailedExperiment:
    reasons = _reasons(one)
    return FailedExperiment(
        scenario=one.name,
        subject=one.subject,
        chip=_verdict(one.answer),
        link=link,
        reasons=reasons[:FIRST_REASONS],
        more=len(reasons[FIRST_REASONS:]),
        note=_note(one),
    )


def _section(
    name: str, link: str, some: Sequence[ExperimentVerdict], *, few: bool, alone: bool
) -> ScenarioSection:
    drawn = experiment_views(some)
    first = drawn[0]
    spec = _spec(some[0])
    return ScenarioSection(
        link=link,
        name=name,
        title=str(spec.get("title", "")),
        incident=str(spec.get("incident", "")),
        faults=[text_format.faults([one]) for one in _outages(some)] or [text_format.faults([])],
        site=_site(first),
        subjects=[_subject(one) for one in some],
        promises=promise_rows(some),
        measures=measure_rows(some),
        timelines=timeline_rows(some),
        figures=_figures(drawn),
        open=few or any(one.answer is not CheckResult.YES for one in some),
        why=not alone or any(len(objections(one)) > FIRST_REASONS for one in some),
    )


def _figures(drawn: Sequence[ExperimentView]) -> list[ReportFigure]:
    return [
        request_figures.goodput_figure(drawn),
        request_figures.latency_figure(drawn),
        fleet_figures.fleet_map(drawn),
        fleet_figures.ejection_map(drawn),
        outage_figure.outage_chain(drawn),
        request_figures.admission_figure(drawn),
        request_figures.retries_figure(drawn),
        request_figures.waste_figure(drawn),
        share_figure.traffic_shares(drawn),
    ]


def _subject(one: ExperimentVerdict) -> SubjectColumn:
    began = one.history.began
    return SubjectColumn(
        name=one.subject,
        chip=_verdict(one.answer),
        reasons=_reasons(one),
        note=_note(one),
        facts={
            "time scale": f"{began.time_scale:g}",
            "seed": str(began.seed),
            **dict(began.versions),
        },
        policies=began.policies,
    )


def _note(one: ExperimentVerdict) -> str:
    """Explain why a broken promise does not fail the experiment."""
    if one.answer is not CheckResult.UNKNOWN or all(
        finding.answer is not CheckResult.NO for finding in one.findings
    ):
        return ""
    return "Broken promises do not count as failures here: the test bench was too slow and may be the cause."


def _reasons(one: ExperimentVerdict) -> list[FailedPromise]:
    return [_reason(finding) for finding in objections(one)]


def _reason(finding: CheckFinding) -> FailedPromise:
    promised = f"promised {finding.limit}" if finding.limit else ""
    measured = f"measured {finding.measured}" if finding.measured else ""
    return FailedPromise(
        check=finding.check,
        chip=_cell(finding.answer, RESULT_LABELS[finding.answer]),
        why=finding.why,
        measured=", ".join(one for one in (measured, promised) if one),
        when="" if finding.at_s is None else f"first at {text_format.moment(finding.at_s)}",
    )


def _site(view: ExperimentView) -> str:
    """``6 engines with 48 slots in 1 zone, 1 Envoy, 67 requests/s for 27 s``."""
    began = view.history.began
    tested = [one for one in began.engines if one.pool == began.pool]
    zones = len({one.zone for one in tested})
    return (
        f"{text_format.count(len(tested), 'engine')} with {sum(one.slots for one in tested)} slots in "
        f"{text_format.count(zones, 'zone')}, {text_format.count(len(began.proxies), 'Envoy')}, "
        f"{began.rate_per_s:.0f} requests/s for {began.seconds:g} s"
    )


def _outages(some: Sequence[ExperimentVerdict]) -> Sequence[Any]:
    return max((one.history.outages for one in some), key=len)


def _spec(one: ExperimentVerdict) -> Mapping[str, Any]:
    """Spec of the scenario as written; empty if it is not a mapping."""
    spec = one.history.began.scenario.get("spec")
    return spec if isinstance(spec, Mapping) else {}


def _broken(one: ExperimentVerdict) -> str:
    return text_format.names(finding.check for finding in objections(one) if finding.answer is one.answer)


def _verdict(answer: CheckResult, about: str = "") -> VerdictCell:
    return _cell(answer, VERDICTS[answer], about)


def _cell(answer: CheckResult, text: str, about: str = "") -> VerdictCell:
    return VerdictCell(text=text, css=answer.value, sign=SIGNS[answer], about=about)
