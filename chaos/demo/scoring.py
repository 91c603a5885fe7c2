"""Scores of each chapter and side. Pure.

No proxy can save a stream that had begun when its engine died: the client has its first half. Any other request
can be served by another engine, so its loss counts against the side. Under overload, an immediate refusal is
counted separately.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.demo.demo_plan import Chapter, DemoPlan
from chaos.history.request_outcomes import RequestOutcome, quantile

OVERLOAD_REASON: Final = "overload"
"""Refusal reason of Switchgear's Envoys when the admission limit is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One chapter on one side. Latencies of good answers in seconds; None without good answers.

    ``lost``: another engine could have served the request. ``cut``: streams cut after they began. ``shed``:
    refused at once. ``fallback``: good answers marked as the smaller model's; ``undisclosed``: unmarked answers of
    that model; ``misnamed``: marked answers of the requested model, by the engine logs. ``wasted_slot_s`` is slot
    time whose answer reached no caller; ``attempts`` is engine calls per request, both from the engine logs.
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
    """One call from an engine's log; a request may have several.

    ``finished``: the complete answer was written. ``fallback``: the engine serves the smaller model.
    """

    request_id: str
    wasted_slot_s: float
    finished: bool
    fallback: bool


def is_cut(outcome: RequestOutcome) -> bool:
    """Whether the stream failed after it began."""
    return not outcome.ok and outcome.streaming and outcome.first_token_s is not None


def is_shed(outcome: RequestOutcome) -> bool:
    """Whether the request was refused for lack of capacity."""
    return not outcome.ok and outcome.refusal == OVERLOAD_REASON


def is_lost(outcome: RequestOutcome) -> bool:
    """Whether it failed although another engine could have served it."""
    return not (outcome.ok or is_cut(outcome) or is_shed(outcome))


def by_request(attempts: Iterable[ScoredAttempt]) -> Mapping[str, Sequence[ScoredAttempt]]:
    """Attempts by request."""
    found: dict[str, list[ScoredAttempt]] = {}
    for attempt in attempts:
        found.setdefault(attempt.request_id, []).append(attempt)
    return found


def score(outcomes: Sequence[RequestOutcome], attempts: Mapping[str, Sequence[ScoredAttempt]]) -> Score:
    """Score of one chapter from its requests and their engine calls."""
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
    """Outcomes by chapter; ``began_s`` is the monotonic time of the plan's start."""
    chapters: dict[Chapter, list[RequestOutcome]] = {span.chapter: [] for span in plan.spans}
    for outcome in outcomes:
        arrived_s, ended_s = outcome.arrived_at_s - began_s, outcome.ended_at_s - began_s
        span = plan.at(arrived_s) if outcome.ok else plan.of_failed(arrived_s, ended_s)
        chapters[span.chapter].append(outcome)
    return chapters
