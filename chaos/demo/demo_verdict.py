"""Verdict on Switchgear's side, from the recorded results. Pure.

It does not depend on machine speed: the demo waits for slow effects while it runs.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.demo.demo_plan import SLOTS, Chapter, DemoPlan
from chaos.demo.scoring import Score

TO_FALLBACK: Final = 2
"""Degradation level from which excess requests go to the fallback."""

_PLACE: Final = re.compile(r"\([^()\s]+\.yaml:\d+\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradationStep:
    """A change of the pool's degradation level, with its time and the control plane's reason.

    ``unseen``: earlier repeats of the same change, since the ledger keeps only the newest of repeated events.
    """

    time_s: float
    before: int
    after: int
    reason: str
    unseen: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyOutput:
    """Output of ``switchgear why NAME``, and words that it must contain: the subject and the evidence."""

    time_s: float
    name: str
    text: str
    expected: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoVerdict:
    """Verdict on Switchgear's side; each objection is a sentence."""

    objections: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.objections


def demo_verdict(
    scores: Mapping[Chapter, Score], steps: Sequence[DegradationStep], answers: Sequence[WhyOutput], plan: DemoPlan
) -> DemoVerdict:
    """All objections to Switchgear's side.

    No request is lost that another engine could have served, and none is refused except under overload. Streams
    are cut only on hung or dead engines, at most as many as their slots. Degradation levels rise and fall one at a
    time. Answers of the smaller model are marked. ``why`` explains the state.
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
            yield f"{span.chapter}: no requests were sent"
        if found.lost:
            yield f"{span.chapter}: {found.lost} requests lost that another engine could have served"
        if found.shed and span.chapter is not Chapter.OVERLOAD:
            yield f"{span.chapter}: {found.shed} requests refused despite free capacity"
        struck = span.chapter in {Chapter.HANG, Chapter.CRASH, Chapter.OVERLOAD}
        excusable = len(span.targets) * SLOTS if struck else 0
        if found.cut > excusable:
            yield f"{span.chapter}: {found.cut} streams cut (unavoidable: at most {excusable})"


def _of_ladder(steps: Sequence[DegradationStep]) -> Iterator[str]:
    highest = max((step.after for step in steps), default=0)
    if highest < TO_FALLBACK:
        yield f"degradation reached level {highest}, expected level {TO_FALLBACK}"
    last, unseen = 0, sum(step.unseen for step in steps)
    for step in steps:
        unseen -= abs(step.before - last)
        if unseen < 0 or abs(step.after - step.before) != 1:
            yield f"degradation skipped a level: {last}, {step.before}, {step.after}"
        last = step.after
    if last:
        yield f"degradation stayed at level {last}, expected a return to level 0"


def _of_fallback(scores: Mapping[Chapter, Score]) -> Iterator[str]:
    if not scores[Chapter.OVERLOAD].fallback:
        yield f"{Chapter.OVERLOAD}: no answer came from the fallback"
    for chapter, found in scores.items():
        if found.undisclosed:
            yield f"{chapter}: {found.undisclosed} answers of the smaller model were not marked as such"
        if found.misnamed:
            yield f"{chapter}: {found.misnamed} answers of the requested model were marked as the smaller one's"


def _of_answers(answers: Sequence[WhyOutput]) -> Iterator[str]:
    if not answers:
        yield "no `switchgear why` was run"
    for answer in answers:
        for words in missing_phrases(answer):
            yield f"output of `switchgear why {answer.name}` lacks {words!r}"
        if not _PLACE.search(_unwrapped(answer.text)):
            yield f"output of `switchgear why {answer.name}` names no policy line"


def missing_phrases(answer: WhyOutput) -> tuple[str, ...]:
    """Expected words missing from the output."""
    said = _unwrapped(answer.text)
    return tuple(words for words in answer.expected if words not in said)


def _unwrapped(text: str) -> str:
    """Join lines wrapped for the terminal."""
    return " ".join(text.split())
