"""What the findings of a run come to: passed, failed, or not known; and what a pipeline is told.

The exit status is 0 when everything that is promised held, 1 when something did not, 3 when that is not known.
(2 is for those who asked wrongly.) A pipeline that only knows zero and other numbers takes what is not known as a
failure, which is what it should be: nothing was shown.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from chaos.checks.finding import Answer, Finding
from chaos.checks.judged import judged
from chaos.history.history import History

EXIT_STATUS: Final[Mapping[Answer, int]] = MappingProxyType({Answer.YES: 0, Answer.NO: 1, Answer.UNKNOWN: 3})

BENCH: Final = "bench"
WHATEVER_THE_MACHINE: Final = frozenset(
    {"amplification", "floorEnginesPercent", "configurationConverged", "processes"}
)
"""What must hold on a slow machine too: a no to one of these counts although the bench did not keep up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer on one experiment, and the findings that make it."""

    history: History
    findings: tuple[Finding, ...]
    answer: Answer

    @property
    def name(self) -> str:
        """Of the scenario."""
        return self.history.began.name

    @property
    def subject(self) -> str:
        """Who was judged."""
        return self.history.began.subject


def verdict(history: History) -> Verdict:
    """The history, judged."""
    findings = judged(history)
    return Verdict(history=history, findings=findings, answer=answer_of(findings))


def answer_of(findings: Sequence[Finding]) -> Answer:
    """NO when a promise was broken, UNKNOWN when one is not known to be kept, or none was judged.

    Where the bench did not keep up, only what does not depend on it is a no.
    """
    keeps_up = all(one.answer is Answer.YES for one in findings if one.check == BENCH)
    broken = [one for one in findings if one.answer is Answer.NO]
    if any(keeps_up or one.check in WHATEVER_THE_MACHINE for one in broken):
        return Answer.NO
    if not findings or any(one.answer is not Answer.YES for one in findings):
        return Answer.UNKNOWN
    return Answer.YES


def overall(answers: Iterable[Answer]) -> Answer:
    """Of several experiments: NO before UNKNOWN before YES; of none, UNKNOWN."""
    known = set(answers)
    return Answer.YES if known == {Answer.YES} else Answer.NO if Answer.NO in known else Answer.UNKNOWN


def under_test(verdicts: Sequence[Verdict], beside: Collection[str] = ()) -> Answer:
    """What all experiments come to, those of subjects that only stand beside for comparison left out.

    Where nobody is left (somebody was compared with himself), all of them count.
    """
    own = [one.answer for one in verdicts if one.subject not in beside]
    return overall(own or (one.answer for one in verdicts))
