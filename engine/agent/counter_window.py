"""Engine counters over the last 30 s: latencies, failures and shortage of capacity.

Only a high failure share changes the verdict (degraded); the control plane weighs engines by the rest.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from engine.latency_histogram import histogram_delta, quantiles, token_gaps
from engine.report import Quantiles, TokenGaps
from engine.vllm_metrics import VllmCounters

WINDOW_S: Final = 30.0
# Granularity of the window: 30 readings.
_GRAIN_S: Final = 1.0
# Shorter window for tokens per second: a slowdown shows within a second.
_RATE_WINDOW_S: Final = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterWindow:
    """Readings of counters within the window, oldest first, with times.

    ``lately`` are times, tokens and running requests of the last readings, from the last before the shorter window
    on.
    """

    kept: tuple[tuple[float, VllmCounters], ...] = ()
    lately: tuple[tuple[float, float, float], ...] = ()
    newest: tuple[float, VllmCounters] | None = None

    def after(self, at_s: float, read: VllmCounters) -> "CounterWindow":
        """Add one reading; a restarted engine starts a new window."""
        if self.newest is not None and read.tokens < self.newest[1].tokens:
            return CounterWindow(
                kept=((at_s, read),), lately=((at_s, read.tokens, read.running),), newest=(at_s, read)
            )
        kept = self.kept
        if not kept or at_s - kept[-1][0] >= _GRAIN_S:
            kept = (*kept, (at_s, read))
        # The first reading is the baseline, so it may be as old as the window.
        while len(kept) > 1 and kept[1][0] <= at_s - WINDOW_S:
            kept = kept[1:]
        lately = (*self.lately, (at_s, read.tokens, read.running))
        while len(lately) > 2 and lately[1][0] <= at_s - _RATE_WINDOW_S:
            lately = lately[1:]
        return replace(self, kept=kept, lately=lately, newest=(at_s, read))

    @property
    def finished(self) -> float:
        """Finished requests, all outcomes."""
        return self._grown("finished")

    @property
    def errors(self) -> float:
        """Requests finished with an engine error."""
        return self._grown("errors")

    @property
    def aborts(self) -> float:
        """Aborted requests; vLLM does not count client disconnects."""
        return self._grown("aborts")

    @property
    def rejected(self) -> float:
        """Requests shed by the engine."""
        return self._grown("rejected")

    @property
    def preemptions(self) -> float:
        """Requests preempted because the KV cache was full."""
        return self._grown("preemptions")

    @property
    def tokens_per_s(self) -> float | None:
        """Prompt and generated tokens per second lately; None before two readings.

        As many as the requests that run now would make at that pace: where their number changes, the plain rate
        would make a filling engine look slow, and an emptying one fast.
        """
        if len(self.lately) < 2:
            return None
        (then_s, then, _), (at_s, now, running) = self.lately[0], self.lately[-1]
        if at_s <= then_s:
            return None
        work_s = sum((b[0] - a[0]) * (a[2] + b[2]) / 2 for a, b in pairwise(self.lately))
        return (now - then) / (work_s / running if work_s and running else at_s - then_s)

    @property
    def first_token(self) -> Quantiles | None:
        """Time to first token."""
        return (
            None
            if self.newest is None
            else quantiles(histogram_delta(self._oldest.first_token, self.newest[1].first_token))
        )

    @property
    def per_token(self) -> Quantiles | None:
        """Time per output token."""
        return (
            None
            if self.newest is None
            else quantiles(histogram_delta(self._oldest.per_token, self.newest[1].per_token))
        )

    @property
    def token_gaps(self) -> TokenGaps | None:
        """Time between tokens since the engine started."""
        return None if self.newest is None else token_gaps(self.newest[1].per_token)

    @property
    def _oldest(self) -> VllmCounters:
        return self.kept[0][1]

    def _grown(self, name: str) -> float:
        if self.newest is None:
            return 0.0
        grown: float = getattr(self.newest[1], name) - getattr(self._oldest, name)
        return max(0.0, grown)
