"""What the page says, as values that the template shows as they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chaos.report.html.figure import Figure
from chaos.report.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A word with a verdict's colour. ``about`` is what it is of, in a word or two."""

    text: str
    css: str
    sign: str
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A promise that did not hold, or is not known to."""

    check: str
    chip: Cell
    why: str
    measured: str
    when: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """An experiment that did not pass: its first reasons, and how many more there are."""

    scenario: str
    subject: str
    chip: Cell
    link: str
    reasons: Sequence[Reason]
    more: int
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What all experiments of one subject come to."""

    subject: str
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One column of a scenario."""

    name: str
    chip: Cell
    reasons: Sequence[Reason]
    note: str
    facts: Mapping[str, str]
    policies: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One scenario with all its subjects. ``open``: what did not pass is shown without asking. ``why``: reasons
    are told here, too; not where nothing but the same reasons stands just above.
    """

    link: str
    name: str
    title: str
    incident: str
    faults: Sequence[str]
    site: str
    subjects: Sequence[Subject]
    promises: Sequence[Row]
    measures: Sequence[Row]
    timelines: Sequence[tuple[str, Sequence[Row]]]
    figures: Sequence[Figure]
    open: bool
    why: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All of it. ``tallies`` are empty for a single subject, of which ``summary`` says it all. ``matrix`` has a
    line for each scenario (its name, where it is) and for each subject the verdicts, none, one or more. It
    comes first when there are ``many`` complaints.
    """

    chip: Cell
    summary: str
    tallies: Sequence[Tally]
    when: str
    complaints: Sequence[Complaint]
    many: bool
    subjects: Sequence[str]
    matrix: Sequence[tuple[str, str, Sequence[Sequence[Cell]]]]
    sections: Sequence[Section]
