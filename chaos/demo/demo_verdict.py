"""What Switchgear's side must answer for, judged from what was recorded. Pure.

Nothing here depends on how fast the machine is: what takes its time was waited for while the story was told.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.demo.demo_plan import SLOTS, Chapter, DemoPlan
from chaos.demo.scoring import Score

TO_FALLBACK: Final = 2
"""The level of the ladder from which the fallback takes what does not fit."""

_PLACE: Final = re.compile(r"\([^()\s]+\.yaml:\d+\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradationStep:
    """The pool went from one level of degradation to another; seconds since the load began, and the control
    plane's own reason. ``unseen``: how often the same was done before without being seen, as the ledger keeps of
    what comes and goes the newest only.
    """

    time_s: float
    before: int
    after: int
    reason: str
    unseen: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyOutput:
    """What ``switchgear why NAME`` printed, and words that must be in it: who it is about, and the evidence."""

    time_s: float
    name: str
    text: str
    expected: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoVerdict:
    """Whether Switchgear's side kept its promises; every reason why not is a sentence."""

    objections: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.objections


def demo_verdict(
    scores: Mapping[Chapter, Score], steps: Sequence[DegradationStep], answers: Sequence[WhyOutput], plan: DemoPlan
) -> DemoVerdict:
    """Everything that can be held against Switchgear's side.

    No request may be lost that another engine could have served, and none refused but under overload. Streams may
    be cut only where an engine hangs or dies under them, and no more than those engines had slots. The ladder goes
    up and down again, step by step; nobody gets the smaller model without being told; ``why`` has answers.
    """
    return DemoVerdict(
        objections=(
            *_of_requests(scores, plan),
            *_of_ladder(steps),
            *_of_fallback(scores),
            *_of_answers(answers),
        )
    )


def _of_requests(scores: Mapping[Chapter, Score], plan: DemoPlan) -> Iterator[str]:
    for span in plan.spans:
        found = scores[span.chapter]
        if not found.requests:
            yield f"{span.chapter}: no request was sent, so nothing was shown"
        if found.lost:
            yield f"{span.chapter}: {found.lost} requests were lost that another engine could have served"
        if found.shed and span.chapter is not Chapter.OVERLOAD:
            yield f"{span.chapter}: {found.shed} requests were refused while there was room for them"
        struck = span.chapter in {Chapter.HANG, Chapter.CRASH, Chapter.OVERLOAD}
        excusable = len(span.targets) * SLOTS if struck else 0
        if found.cut > excusable:
            yield f"{span.chapter}: {found.cut} streams were cut, where {excusable} could not be helped"


def _of_ladder(steps: Sequence[DegradationStep]) -> Iterator[str]:
    highest = max((step.after for step in steps), default=0)
    if highest < TO_FALLBACK:
        yield f"the ladder was to reach level {TO_FALLBACK}, and reached level {highest}"
    last, unseen = 0, sum(step.unseen for step in steps)
    for step in steps:
        unseen -= abs(step.before - last)
        if unseen < 0 or abs(step.after - step.before) != 1:
            yield f"the ladder went from level {last} by way of {step.before} to {step.after}, not step by step"
        last = step.after
    if last:
        yield f"the ladder was to return to level 0, and stayed on level {last}"


def _of_fallback(scores: Mapping[Chapter, Score]) -> Iterator[str]:
    if not scores[Chapter.OVERLOAD].fallback:
        yield f"{Chapter.OVERLOAD}: no answer came from the fallback"
    for chapter, found in scores.items():
        if found.undisclosed:
            yield f"{chapter}: {found.undisclosed} answers of the smaller model did not say so"
        if found.misnamed:
            yield f"{chapter}: {found.misnamed} answers of the asked model said that they were of the smaller one"


def _of_answers(answers: Sequence[WhyOutput]) -> Iterator[str]:
    if not answers:
        yield "nobody asked why"
    for answer in answers:
        for words in missing_phrases(answer):
            yield f"`switchgear why {answer.name}` does not say {words!r}"
        if not _PLACE.search(_unwrapped(answer.text)):
            yield f"`switchgear why {answer.name}` names no line of a policy"


def missing_phrases(answer: WhyOutput) -> tuple[str, ...]:
    """The words that were to be in the answer and are not."""
    said = _unwrapped(answer.text)
    return tuple(words for words in answer.expected if words not in said)


def _unwrapped(text: str) -> str:
    """On one line: lines are wrapped for the terminal."""
    return " ".join(text.split())
