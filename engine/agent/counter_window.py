"""Engine counters over the last 30 s: latencies, failures and shortage of capacity.

Only a high failure share changes the verdict (degraded); the control plane weighs engines by the rest.
"""

from dataclasses import dataclass, replace
from typing import Final

from engine.latency_histogram import histogram_delta, quantiles
from engine.report import Quantiles
from engine.vllm_metrics import VllmCounters

WINDOW_S: Final = 30.0
# Granularity of the window: 30 readings.
_GRAIN_S: Final = 1.0
# Shorter window for tokens per second, so that a slowdown shows quickly.
_RATE_WINDOW_S: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterWindow:
    """Readings of counters within the window, oldest first, with times."""

    kept: tuple[tuple[float, VllmCounters], ...] = ()
    newest: tuple[float, VllmCounters] | None = None

    def after(self, at_s: float, read: VllmCounters) -> "CounterWindow":
        """Add one reading; a restarted engine starts a new window."""
        if self.newest is not None and read.tokens < self.newest[1].tokens:
            return CounterWindow(kept=((at_s, read),), newest=(at_s, read))
        kept = self.kept
        if not kept or at_s - kept[-1][0] >= _GRAIN_S:
            kept = (*kept, (at_s, read))
        # The first reading is the baseline, so it may be as old as the window.
        while len(kept) > 1 and kept[1][0] <= at_s - WINDOW_S:
            kept = kept[1:]
        return replace(self, kept=kept, newest=(at_s, read))

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
        """Prompt and generated tokens per second over the last seconds; None before two readings."""
        if self.newest is None:
            return None
        at_s, read = self.newest
        recent = [one for one in self.kept if one[0] >= at_s - _RATE_WINDOW_S] or list(self.kept)
        then_s, then = recent[0]
        return (read.tokens - then.tokens) / (at_s - then_s) if at_s > then_s else None

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
    def _oldest(self) -> VllmCounters:
        return self.kept[0][1]

    def _grown(self, name: str) -> float:
        if self.newest is None:
            return 0.0
        grown: float = getattr(self.newest[1], name) - getattr(self._oldest, name)
        return max(0.0, grown)
