"""Amplification: attempts per caller request, and engine calls per attempt. Pure."""

from collections import Counter
from dataclasses import dataclass

from chaos.history.recorded_history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class Amplification:
    """Amplification of the requests that arrived in a window.

    ``calls`` reached engines; ``most_calls`` is the maximum for one request. ``counted``: some calls are known
    only from proxy counters, because their engine has no log.
    """

    questions: int
    requests: int
    calls: int
    most_calls: int
    counted: bool

    @property
    def calls_per_request(self) -> float | None:
        """Engine calls per request; None without requests."""
        return self.calls / self.requests if self.requests else None

    @property
    def tries_per_question(self) -> float | None:
        """Attempts per caller request; None without requests."""
        return self.requests / self.questions if self.questions else None


def call_amplification(history: History, from_s: float, to_s: float) -> Amplification:
    """Amplification in the window ``[from_s, to_s)``."""
    some = [one for one in history.requests if from_s <= one.at_s < to_s]
    asked = {one.request_id for one in some}
    bookless = _bookless(history)
    calls = Counter(
        one.request_id for one in history.attempts if one.request_id in asked and one.engine not in bookless
    )
    counted = sum(calls_sent(history, engine, from_s, to_s) for engine in bookless)
    return Amplification(
        questions=len({one.question for one in some}),
        requests=len(some),
        calls=calls.total() + counted,
        most_calls=max(calls.values(), default=0),
        counted=counted > 0,
    )


def calls_sent(history: History, engine: str, from_s: float, to_s: float) -> int:
    """Calls that proxies sent to the engine in the window, by their counters; a falling counter was reset."""
    total = 0
    for proxy in {one.proxy for one in history.samples}:
        known: int | None = None
        for sample in (one for one in history.samples if one.proxy == proxy):
            sent = sample.sent.get(engine)
            if sent is None:
                continue
            if known is not None and from_s <= sample.at_s < to_s:
                total += sent - known if sent >= known else sent
            known = sent
    return total


def _bookless(history: History) -> frozenset[str]:
    """Engines without a log, such as a real vLLM."""
    kept = {one.engine for one in history.attempts}
    return frozenset(history.slots.keys() - kept)
