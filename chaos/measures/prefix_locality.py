"""Where conversations went: hits of prefix caches, shares of engines, and conversations that moved. Pure."""

from collections import Counter
from dataclasses import dataclass

from chaos.fake_engine.call_log import CallOutcome
from chaos.history.recorded_history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixHits:
    """Prompt tokens of finished calls, and those of them that the prefix cache had."""

    prompt_tokens: int
    cached_tokens: int

    @property
    def percent(self) -> float:
        """Cached tokens per 100."""
        return 100.0 * self.cached_tokens / max(1, self.prompt_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShare:
    """The engine with most requests for its slots; ``times`` is their number over its share."""

    engine: str
    requests: int
    all_requests: int
    times: float


def prefix_hits(history: History, from_s: float, end_s: float) -> PrefixHits:
    """Hits of all calls that arrived in this time, at prefill engines too."""
    calls = [
        one
        for one in (*history.attempts, *history.prefills)
        if from_s <= one.at_s < end_s and one.fate is CallOutcome.FINISHED
    ]
    return PrefixHits(
        prompt_tokens=sum(one.prompt_tokens for one in calls),
        cached_tokens=sum(one.cached_tokens for one in calls),
    )


def largest_share(history: History, from_s: float, end_s: float) -> EngineShare | None:
    """The engine of the pool under test with the largest share of the requests; None without requests."""
    slots = {one.name: one.slots for one in history.began.engines if one.pool == history.began.pool}
    calls = Counter(one.engine for one in history.attempts if from_s <= one.at_s < end_s and one.engine in slots)
    total = calls.total()
    if not total:
        return None
    times = {engine: calls[engine] / total * sum(slots.values()) / slots[engine] for engine in slots}
    most = max(times, key=lambda engine: times[engine])
    return EngineShare(engine=most, requests=calls[most], all_requests=total, times=times[most])


def moved_percent(history: History, from_s: float, end_s: float) -> float:
    """Turns of conversations that another engine answered than the turn before, per 100."""
    engines = {one.request_id: one.engine for one in history.attempts if one.fate is CallOutcome.FINISHED}
    newest: dict[str, str] = {}
    turns = moved = 0
    for one in sorted(history.requests, key=lambda request: request.at_s):
        engine = engines.get(one.request_id, "")
        if not one.session or not engine:
            continue
        before, newest[one.session] = newest.get(one.session, ""), engine
        if before and from_s <= one.at_s < end_s:
            turns += 1
            moved += before != engine
    return 100.0 * moved / max(1, turns)
