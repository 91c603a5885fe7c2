"""Shared state of a running demo: the plan, both sides, and observations so far."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from rich.console import Console

from chaos.demo import terminal_view
from chaos.demo.demo_lab import DemoLab, DemoSide
from chaos.demo.demo_plan import Chapter, DemoPlan
from chaos.demo.demo_verdict import DegradationStep, WhyOutput
from chaos.demo.scoring import ScoredAttempt, is_lost
from chaos.history.request_outcomes import RequestOutcome, outcome_summary

WINDOW_S: Final = 3.0
"""Window of the live view's current values."""


@dataclass(slots=True, kw_only=True)
class SideObserver:
    """Observations of one side. ``share`` is each engine's percent of the attempts since the last sample."""

    side: DemoSide
    outcomes: list[RequestOutcome] = field(default_factory=list)
    recent: deque[RequestOutcome] = field(default_factory=deque)
    arrived: Mapping[str, int] = field(default_factory=dict)
    share: Mapping[str, float] = field(default_factory=dict)
    attempts: Sequence[ScoredAttempt] = ()
    disclosed: int = 0

    def record(self, outcome: RequestOutcome) -> None:
        """Record one outcome."""
        self.outcomes.append(outcome)
        self.recent.append(outcome)
        self.disclosed += outcome.ok and bool(outcome.fallback)

    def status_line(self, now_s: float) -> terminal_view.SideLine:
        """Current state of the side."""
        found = outcome_summary(self._latest(now_s))
        return terminal_view.SideLine(
            goodput_percent=100.0 * (1.0 if found.goodput_ratio is None else found.goodput_ratio),
            p50_s=found.good_latency_p50_s,
            p99_s=found.good_latency_p99_s,
            lost=sum(map(is_lost, self.outcomes)),
        )

    def fallback_percent(self, now_s: float) -> float:
        """Percent of current good answers that report the fallback."""
        good = [outcome for outcome in self._latest(now_s) if outcome.ok]
        return 100.0 * sum(bool(outcome.fallback) for outcome in good) / len(good) if good else 0.0

    def _latest(self, now_s: float) -> deque[RequestOutcome]:
        while self.recent and self.recent[0].ended_at_s < now_s - WINDOW_S:
            self.recent.popleft()
        return self.recent


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoContext:
    """A running demo. ``began_s`` is the monotonic time of the plan's start.

    ``verdicts`` are the latest of each engine, ``healed`` the chapters whose fault is over.
    """

    plan: DemoPlan
    stage: DemoLab
    ours: SideObserver
    theirs: SideObserver
    session: aiohttp.ClientSession
    console: Console
    live: bool
    began_s: float
    verdicts: dict[str, str] = field(default_factory=dict)
    healed: set[Chapter] = field(default_factory=set)
    spoken: list[terminal_view.AgentReport] = field(default_factory=list)
    steps: list[DegradationStep] = field(default_factory=list)
    answers: list[WhyOutput] = field(default_factory=list)

    @property
    def observers(self) -> tuple[SideObserver, SideObserver]:
        return (self.ours, self.theirs)

    @property
    def now_s(self) -> float:
        """Seconds since the load started."""
        return time.monotonic() - self.began_s

    @property
    def level(self) -> int:
        """Last known degradation level of the pool."""
        return self.steps[-1].after if self.steps else 0

    def print_line(self, text: str, *, time_s: float | None = None) -> None:
        """Print a line with the current time, or ``time_s``, if there is no live view."""
        if not self.live:
            at_s = self.now_s if time_s is None else time_s
            self.console.print(f"{at_s:5.1f} s  {text}", highlight=False)

    async def fetch_list(self, what: str, **query: str) -> list[dict[str, Any]]:
        """Fetch a list from the control plane."""
        async with self.session.get(f"{self.stage.admin_url}/v1/{what}", params=query) as response:
            response.raise_for_status()
            found: list[dict[str, Any]] = (await response.json())[what]
            return found
