"""Who lost what: scores of each chapter on each side, and the verdict. Pure.

A stream that had begun to speak when its engine died cannot be saved by any proxy: its first half is with the
client. Every other request can be served by another engine, so losing it counts against the side.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from chaos.demo.plan import SLOTS, Chapter, Plan
from chaos.outcomes import Outcome, quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One chapter on one side. Latencies of good answers in seconds, None where nothing was good.

    ``lost`` are requests that another engine could have served; ``cut`` are streams that ended in mid-sentence.
    ``wasted_slot_s`` is slot time whose answer nobody received, from the engines' own books; ``attempts`` is
    calls that engines saw per request, from the same books.
    """

    requests: int
    good: int
    lost: int
    cut: int
    good_p50_s: float | None
    good_p99_s: float | None
    wasted_slot_s: float
    attempts: float

    @property
    def goodput_percent(self) -> float:
        return 100.0 * self.good / self.requests if self.requests else 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One call that an engine saw, from its own book; several may belong to one request."""

    request_id: str
    wasted_slot_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether Switchgear's side kept its promises; every reason why not is a sentence."""

    objections: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.objections


def is_cut(outcome: Outcome) -> bool:
    """Whether the client had part of a stream when it ended badly."""
    return not outcome.ok and outcome.streaming and outcome.first_token_s is not None


def by_request(attempts: Iterable[Attempt]) -> Mapping[str, Sequence[Attempt]]:
    """Attempts by the request they were made for."""
    found: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        found.setdefault(attempt.request_id, []).append(attempt)
    return found


def score(outcomes: Sequence[Outcome], attempts: Mapping[str, Sequence[Attempt]]) -> Score:
    """The numbers of one chapter: its requests, and what the engines' books say of each of them."""
    tried = [attempt for outcome in outcomes for attempt in attempts.get(outcome.request_id, ())]
    good = [outcome.latency_s for outcome in outcomes if outcome.ok]
    cut = sum(map(is_cut, outcomes))
    return Score(
        requests=len(outcomes),
        good=len(good),
        lost=len(outcomes) - len(good) - cut,
        cut=cut,
        good_p50_s=quantile(good, 0.5),
        good_p99_s=quantile(good, 0.99),
        wasted_slot_s=sum(attempt.wasted_slot_s for attempt in tried),
        attempts=len(tried) / len(outcomes) if outcomes else 0.0,
    )


def by_chapter(outcomes: Sequence[Outcome], began_s: float, plan: Plan) -> Mapping[Chapter, list[Outcome]]:
    """Outcomes by the chapter they *arrived* in; ``began_s`` is the monotonic clock at time 0 of the plan."""
    chapters: dict[Chapter, list[Outcome]] = {span.chapter: [] for span in plan.spans}
    for outcome in outcomes:
        chapters[plan.at(outcome.arrived_at_s - began_s).chapter].append(outcome)
    return chapters


def verdict(scores: Mapping[Chapter, Score], plan: Plan) -> Verdict:
    """What Switchgear's side must answer for.

    No request may be lost that another engine could have served. Streams may be cut only where an engine
    hangs or dies under them, and no more than those engines had slots.
    """
    objections = []
    for span in plan.spans:
        found = scores[span.chapter]
        if not found.requests:
            objections.append(f"{span.chapter}: no request was sent, so nothing was shown")
        if found.lost:
            objections.append(
                f"{span.chapter}: {found.lost} requests were lost that another engine could have served"
            )
        struck = span.chapter in {Chapter.HANG, Chapter.CRASH}
        excusable = len(span.targets) * SLOTS if struck else 0
        if found.cut > excusable:
            objections.append(
                f"{span.chapter}: {found.cut} streams were cut, where {excusable} could not be helped"
            )
    return Verdict(objections=tuple(objections))
