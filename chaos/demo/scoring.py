"""Who lost what: scores of each chapter on each side. Pure.

A stream that had begun to speak when its engine died cannot be saved by any proxy: its first half is with the
client. Every other request can be served by another engine, so losing it counts against the side; but where more
is asked than can be served, saying so at once is an answer too, and counted by itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.demo.demo_plan import Chapter, DemoPlan
from chaos.history.request_outcomes import RequestOutcome, quantile

OVERLOAD_REASON: Final = "overload"
"""What Switchgear's Envoys give as the reason when the admission ceiling is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One chapter on one side. Latencies of good answers in seconds, None where nothing was good.

    ``lost`` are requests that another engine could have served; ``cut`` are streams that ended in mid-sentence;
    ``shed`` were told at once that the pool is full. ``fallback`` are good answers that say they are of the
    smaller model, ``undisclosed`` those that are of it and do not say so, ``misnamed`` those that say so and are
    not, by the engines' own books. ``wasted_slot_s`` is slot time whose answer nobody received; ``attempts`` is
    calls that engines saw per request, from the same books.
    """

    requests: int
    good: int
    lost: int
    cut: int
    shed: int
    fallback: int
    undisclosed: int
    misnamed: int
    good_p50_s: float | None
    good_p99_s: float | None
    wasted_slot_s: float
    attempts: float

    @property
    def goodput_percent(self) -> float:
        return 100.0 * self.good / self.requests if self.requests else 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredAttempt:
    """One call that an engine saw, from its own book; several may belong to one request.

    ``finished``: the whole answer was written. ``fallback``: the engine is one of the smaller model.
    """

    request_id: str
    wasted_slot_s: float
    finished: bool
    fallback: bool


def is_cut(outcome: RequestOutcome) -> bool:
    """Whether the client had part of a stream when it ended badly."""
    return not outcome.ok and outcome.streaming and outcome.first_token_s is not None


def is_shed(outcome: RequestOutcome) -> bool:
    """Whether the client was told at once that there is no room."""
    return not outcome.ok and outcome.refusal == OVERLOAD_REASON


def is_lost(outcome: RequestOutcome) -> bool:
    """Whether another engine could have served it."""
    return not (outcome.ok or is_cut(outcome) or is_shed(outcome))


def by_request(attempts: Iterable[ScoredAttempt]) -> Mapping[str, Sequence[ScoredAttempt]]:
    """Attempts by the request they were made for."""
    found: dict[str, list[ScoredAttempt]] = {}
    for attempt in attempts:
        found.setdefault(attempt.request_id, []).append(attempt)
    return found


def score(outcomes: Sequence[RequestOutcome], attempts: Mapping[str, Sequence[ScoredAttempt]]) -> Score:
    """The numbers of one chapter: its requests, and what the engines' books say of each of them."""
    tried = [attempt for outcome in outcomes for attempt in attempts.get(outcome.request_id, ())]
    good = [outcome for outcome in outcomes if outcome.ok]
    latencies_s = [outcome.latency_s for outcome in good]
    of_fallback = [
        any(attempt.fallback and attempt.finished for attempt in attempts.get(outcome.request_id, ()))
        for outcome in good
    ]
    said = [bool(outcome.fallback) for outcome in good]
    return Score(
        requests=len(outcomes),
        good=len(good),
        lost=sum(map(is_lost, outcomes)),
        cut=sum(map(is_cut, outcomes)),
        shed=sum(map(is_shed, outcomes)),
        fallback=sum(said),
        undisclosed=sum(was and not told for was, told in zip(of_fallback, said, strict=True)),
        misnamed=sum(told and not was for was, told in zip(of_fallback, said, strict=True)),
        good_p50_s=quantile(latencies_s, 0.5),
        good_p99_s=quantile(latencies_s, 0.99),
        wasted_slot_s=sum(attempt.wasted_slot_s for attempt in tried),
        attempts=len(tried) / len(outcomes) if outcomes else 0.0,
    )


def by_chapter(
    outcomes: Sequence[RequestOutcome], began_s: float, plan: DemoPlan
) -> Mapping[Chapter, list[RequestOutcome]]:
    """Outcomes by the chapter they are counted to; ``began_s`` is the monotonic clock at time 0 of the plan."""
    chapters: dict[Chapter, list[RequestOutcome]] = {span.chapter: [] for span in plan.spans}
    for outcome in outcomes:
        arrived_s, ended_s = outcome.arrived_at_s - began_s, outcome.ended_at_s - began_s
        span = plan.at(arrived_s) if outcome.ok else plan.of_failed(arrived_s, ended_s)
        chapters[span.chapter].append(outcome)
    return chapters
