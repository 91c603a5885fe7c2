"""What one question comes to: tries of its caller, and calls at engines for each of those. Pure."""

from collections import Counter
from dataclasses import dataclass

from chaos.history.recorded_history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class Amplification:
    """Of the requests that arrived in a window. ``calls`` reached engines; ``most_calls`` is what one request
    came to at most. ``counted``: some are known from the proxies' counters only, for want of the engine's book.
    """

    questions: int
    requests: int
    calls: int
    most_calls: int
    counted: bool

    @property
    def calls_per_request(self) -> float | None:
        """None without requests."""
        return self.calls / self.requests if self.requests else None

    @property
    def tries_per_question(self) -> float | None:
        """What callers themselves make of it; None without requests."""
        return self.requests / self.questions if self.questions else None


def call_amplification(history: History, from_s: float, to_s: float) -> Amplification:
    """Of the window ``[from_s, to_s)``."""
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
    """Calls that proxies sent to the engine in the window, by their counters; one that falls began anew."""
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
    """Engines that keep no book: a real vLLM keeps none."""
    kept = {one.engine for one in history.attempts}
    return frozenset(history.slots.keys() - kept)
