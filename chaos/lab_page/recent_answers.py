"""Answers of the last seconds, as figures. Pure."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from chaos.history.history_events import RequestRecord
from chaos.history.request_outcomes import OutcomeReason, quantile

WINDOW_S: Final = 5.0
"""Length of the window of figures."""

CHART_S: Final = 60
"""Seconds of the chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFigures:
    """Counts of the window by outcome, and the total time of its good answers; None without any."""

    good: int = 0
    refused: int = 0
    failed: int = 0
    p50_s: float | None = None
    p99_s: float | None = None


@dataclass(slots=True)
class _Second:
    good: int = 0
    refused: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class _Answer:
    at_s: float
    reason: OutcomeReason
    latency_s: float


@dataclass(slots=True)
class RecentAnswers:
    """Counts answers as they end; ``at_s`` is any clock that never goes back."""

    _answers: deque[_Answer] = field(default_factory=deque)
    _seconds: dict[int, _Second] = field(default_factory=dict)

    def add(self, request: RequestRecord, at_s: float) -> None:
        """Count a request that has just ended."""
        self._answers.append(_Answer(at_s, request.reason, request.latency_s))
        second = self._seconds.setdefault(int(at_s), _Second())
        if request.ok:
            second.good += 1
        elif request.reason is OutcomeReason.SHED:
            second.refused += 1
        else:
            second.failed += 1
        self._forget(at_s)

    def figures(self, at_s: float) -> AnswerFigures:
        """Figures of the last ``WINDOW_S``."""
        self._forget(at_s)
        good_s = [one.latency_s for one in self._answers if one.reason is OutcomeReason.OK]
        refused = sum(one.reason is OutcomeReason.SHED for one in self._answers)
        return AnswerFigures(
            good=len(good_s),
            refused=refused,
            failed=len(self._answers) - len(good_s) - refused,
            p50_s=quantile(good_s, 0.5),
            p99_s=quantile(good_s, 0.99),
        )

    def chart(self, at_s: float) -> list[tuple[int, int, int]]:
        """Good, refused and failed answers of the last ``CHART_S`` complete seconds, oldest first."""
        self._forget(at_s)
        now = int(at_s)
        nothing = _Second()
        seconds = (self._seconds.get(second, nothing) for second in range(now - CHART_S, now))
        return [(one.good, one.refused, one.failed) for one in seconds]

    def _forget(self, at_s: float) -> None:
        while self._answers and self._answers[0].at_s <= at_s - WINDOW_S:
            self._answers.popleft()
        for second in [second for second in self._seconds if second < int(at_s) - CHART_S]:
            del self._seconds[second]
