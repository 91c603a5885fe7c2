"""Verdicts as the content of a page: what is said, and in which order. Pure."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from chaos.checks import words
from chaos.checks.finding import Answer, Finding
from chaos.checks.verdict import Verdict, under_test
from chaos.report.html import fleet, outages, requests, shares
from chaos.report.html.content import Cell, Complaint, Page, Reason, Section, Subject, Tally
from chaos.report.html.figure import Figure
from chaos.report.html.view import View, views
from chaos.report.rows import (
    SAID,
    VERDICTS,
    by_scenario,
    measure_rows,
    objections,
    promise_rows,
    timeline_rows,
)

FIRST_REASONS: Final = 3
"""Of one experiment at the top; the rest stands with its scenario."""

_MANY: Final = 4
_FEW: Final = 2
"""So few scenarios are all shown without asking."""

SIGNS: Final[Mapping[Answer, str]] = MappingProxyType({Answer.YES: "✔", Answer.NO: "✖", Answer.UNKNOWN: "?"})
"""For those who do not see the colours."""


def page(verdicts: Sequence[Verdict], beside: Collection[str] = ()) -> Page:
    """The page of these verdicts; what is on top is what to know first."""
    groups = by_scenario(verdicts)
    links = {name: f"scenario-{number}" for number, name in enumerate(groups, start=1)}
    subjects = list(dict.fromkeys(one.subject for one in verdicts))
    complaints = [
        _complaint(one, links[one.name])
        for answer in (Answer.NO, Answer.UNKNOWN)
        for one in verdicts
        if one.answer is answer
    ]
    began_s = [one.history.began.at_unix_s for one in verdicts]
    return Page(
        chip=_verdict(under_test(verdicts, beside)),
        summary=_summary(verdicts),
        tallies=[
            Tally(subject=subject, told=_counted([one for one in verdicts if one.subject == subject]))
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


def _summary(verdicts: Sequence[Verdict]) -> str:
    """``1 of 12 experiments failed, 2 are not known.``"""
    if not verdicts:
        return "There was no experiment."
    return f"Of {words.count(len(verdicts), 'experiment')}: {_counted(verdicts)}."


def _counted(verdicts: Sequence[Verdict]) -> str:
    counts = {answer: sum(one.answer is answer for one in verdicts) for answer in Answer}
    told = [
        f"{counts[answer]} {word}"
        for answer, word in ((Answer.NO, "failed"), (Answer.UNKNOWN, "not known"), (Answer.YES, "passed"))
        if counts[answer]
    ]
    return ", ".join(told)


def _complaint(one: Verdict, link: str) -> Complaint:
    reasons = _reasons(one)
    return Complaint(
        scenario=one.name,
        subject=one.subject,
        chip=_verdict(one.answer),
        link=link,
        reasons=reasons[:FIRST_REASONS],
        more=len(reasons[FIRST_REASONS:]),
        note=_note(one),
    )


def _section(name: str, link: str, some: Sequence[Verdict], *, few: bool, alone: bool) -> Section:
    drawn = views(some)
    first = drawn[0]
    spec = _spec(some[0])
    return Section(
        link=link,
        name=name,
        title=str(spec.get("title", "")),
        incident=str(spec.get("incident", "")),
        faults=[words.faults([one]) for one in _outages(some)] or [words.faults([])],
        site=_site(first),
        subjects=[_subject(one) for one in some],
        promises=promise_rows(some),
        measures=measure_rows(some),
        timelines=timeline_rows(some),
        figures=_figures(drawn),
        open=few or any(one.answer is not Answer.YES for one in some),
        why=not alone or any(len(objections(one)) > FIRST_REASONS for one in some),
    )


def _figures(drawn: Sequence[View]) -> list[Figure]:
    return [
        requests.goodput(drawn),
        requests.latency(drawn),
        fleet.fleet_map(drawn),
        fleet.ejections(drawn),
        outages.chain(drawn),
        requests.admission(drawn),
        requests.retries(drawn),
        requests.waste(drawn),
        shares.shares(drawn),
    ]


def _subject(one: Verdict) -> Subject:
    began = one.history.began
    return Subject(
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


def _note(one: Verdict) -> str:
    """Why something broken is no failure."""
    if one.answer is not Answer.UNKNOWN or all(finding.answer is not Answer.NO for finding in one.findings):
        return ""
    return "What is broken here does not count as a failure: the bench did not keep up, and may be the cause."


def _reasons(one: Verdict) -> list[Reason]:
    return [_reason(finding) for finding in objections(one)]


def _reason(finding: Finding) -> Reason:
    promised = f"promised {finding.limit}" if finding.limit else ""
    measured = f"measured {finding.measured}" if finding.measured else ""
    return Reason(
        check=finding.check,
        chip=_cell(finding.answer, SAID[finding.answer]),
        why=finding.why,
        measured=", ".join(one for one in (measured, promised) if one),
        when="" if finding.at_s is None else f"first at {words.moment(finding.at_s)}",
    )


def _site(view: View) -> str:
    """``6 engines with 48 slots in 1 zone, 1 Envoy, 67 requests a second for 27 s``."""
    began = view.history.began
    tested = [one for one in began.engines if one.pool == began.pool]
    zones = len({one.zone for one in tested})
    return (
        f"{words.count(len(tested), 'engine')} with {sum(one.slots for one in tested)} slots in "
        f"{words.count(zones, 'zone')}, {words.count(len(began.proxies), 'Envoy')}, "
        f"{began.rate_per_s:.0f} requests a second for {began.seconds:g} s"
    )


def _outages(some: Sequence[Verdict]) -> Sequence[Any]:
    return max((one.history.outages for one in some), key=len)


def _spec(one: Verdict) -> Mapping[str, Any]:
    """The scenario as it was written, as far as it is one."""
    spec = one.history.began.scenario.get("spec")
    return spec if isinstance(spec, Mapping) else {}


def _broken(one: Verdict) -> str:
    return words.names(finding.check for finding in objections(one) if finding.answer is one.answer)


def _verdict(answer: Answer, about: str = "") -> Cell:
    return _cell(answer, VERDICTS[answer], about)


def _cell(answer: Answer, text: str, about: str = "") -> Cell:
    return Cell(text=text, css=answer.value, sign=SIGNS[answer], about=about)
