"""What an engine's counters say of the last half minute: latencies, failures, and how short of room it was.

None of it decides who gets traffic by itself, except that an engine most of whose requests fail is damaged. The
rest is evidence, and what a control plane weighs engines by.
"""

from dataclasses import dataclass, replace
from typing import Final

from engine.latency_histogram import histogram_delta, quantiles
from engine.report import Quantiles
from engine.vllm_metrics import VllmCounters

WINDOW_S: Final = 30.0
# A window is cut at this grain: thirty kept readings, and tails that do not jump.
_GRAIN_S: Final = 1.0
# Tokens per second follow the engine: one that turns slow must not look quick for the rest of a long window.
_RATE_WINDOW_S: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterWindow:
    """Counters kept from the last window, oldest first, with the time each was read."""

    kept: tuple[tuple[float, VllmCounters], ...] = ()
    newest: tuple[float, VllmCounters] | None = None

    def after(self, at_s: float, read: VllmCounters) -> "CounterWindow":
        """With one more reading; one of another life of the engine begins anew."""
        if self.newest is not None and read.tokens < self.newest[1].tokens:
            return CounterWindow(kept=((at_s, read),), newest=(at_s, read))
        kept = self.kept
        if not kept or at_s - kept[-1][0] >= _GRAIN_S:
            kept = (*kept, (at_s, read))
        # The first one kept is what the window is counted from, so it may be as old as the window.
        while len(kept) > 1 and kept[1][0] <= at_s - WINDOW_S:
            kept = kept[1:]
        return replace(self, kept=kept, newest=(at_s, read))

    @property
    def finished(self) -> float:
        """Requests that ended, in whatever way."""
        return self._grown("finished")

    @property
    def errors(self) -> float:
        """Requests that ended by the engine's error."""
        return self._grown("errors")

    @property
    def aborts(self) -> float:
        """Requests the engine counts as aborted; vLLM does not count clients that leave."""
        return self._grown("aborts")

    @property
    def rejected(self) -> float:
        """Requests turned away for want of room."""
        return self._grown("rejected")

    @property
    def preemptions(self) -> float:
        """Requests put back in the queue because the KV cache was full."""
        return self._grown("preemptions")

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens read and written per second over the last few seconds; None before there are two readings."""
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
        """Time per further token."""
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
