"""What share of calls proxies are asked to report, so that reading them stays cheap: pure.

Down at once and as far as needed, up one step at a time and only when there has been room for a while. What is
counted from a sample is divided by its share, so a lower one makes numbers coarser and not smaller.
"""

from dataclasses import dataclass, replace
from typing import Final

STEPS: Final = (1.0, 0.5, 0.2, 0.1, 0.05, 0.01)

BUDGET_PER_S: Final = 10_000.0
"""Entries a second that are read without a sample: half a core's worth (benchmarks/results/signals.json)."""

MESSAGE_COST: Final = 4.0
"""What a message costs besides its entries, in entries: many proxies with a few calls each send many messages."""

ROOM: Final = 0.7
"""Share of the budget that the next step up must leave; otherwise it would be taken back at once."""

RISE_S: Final = 10.0

TOLD_AFTER_S: Final = 0.5
"""How long proxies go on with the share they had: the push, and what is on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The share wanted now, and since when; ``counted`` is the one that entries of this moment were made with."""

    share: float = 1.0
    since_s: float = float("-inf")
    before: float = 1.0

    def counted(self, now_s: float) -> float:
        """The share to divide counts by."""
        return self.share if now_s - self.since_s >= TOLD_AFTER_S else self.before

    def after(self, load_per_s: float, now_s: float) -> "Sampling":
        """The sampling once so much has been read per second, in entries, with the present share."""
        if now_s - self.since_s < TOLD_AFTER_S * 2:
            return self  # what is read was still made with the share before
        whole = load_per_s / self.share
        fitting = next((step for step in STEPS if whole * step <= BUDGET_PER_S), STEPS[-1])
        if fitting < self.share:
            return replace(self, share=fitting, since_s=now_s, before=self.share)
        up = max((place for place, step in enumerate(STEPS) if step > self.share), default=None)
        if up is None or now_s - self.since_s < RISE_S or whole * STEPS[up] > ROOM * BUDGET_PER_S:
            return self
        return replace(self, share=STEPS[up], since_s=now_s, before=self.share)
