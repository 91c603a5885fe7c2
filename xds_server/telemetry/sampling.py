"""What share of calls proxies are asked to report, so that reading them stays cheap: pure.

Down at once and as far as needed, up one step at a time and only when there has been room for a while. What is
counted from a sample is divided by its share, so a lower one makes numbers coarser and not smaller.
"""

from dataclasses import dataclass, replace
from typing import Final

STEPS: Final = (1.0, 0.5, 0.2, 0.1, 0.05, 0.01)

BUDGET_PER_S: Final = 10_000.0
"""Entries a second, messages included, that are read unsampled: a quarter of a core (``benchmarks/signals``)."""

MESSAGE_COST: Final = 5.0
"""What a message costs besides its entries, in entries: many proxies with a few calls each send many messages."""

ROOM: Final = 0.7
"""Share of the budget that the next step up must leave; otherwise it would be taken back at once."""

RISE_S: Final = 10.0

EFFECTIVE_AFTER_S: Final = 0.5
"""How long proxies go on with the share they had: the push, and what is on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The share wanted now, since when, and the one before.

    ``load_before_per_s`` is what was read before the share was lowered, until that is seen to be followed: proxies
    that go on as before are not asked for less still, which would only make counts that are divided by the share
    more wrong.
    """

    share: float = 1.0
    since_s: float = float("-inf")
    before: float = 1.0
    load_before_per_s: float = float("inf")

    def counted(self, now_s: float) -> float:
        """The share to divide counts by: entries of this moment were made with it."""
        return self.share if now_s - self.since_s >= EFFECTIVE_AFTER_S else self.before

    def after(self, load_per_s: float, now_s: float) -> "Sampling":
        """The sampling once so much has been read per second, in entries, with the present share."""
        if now_s - self.since_s < EFFECTIVE_AFTER_S * 2:
            return self  # what was read was still made with the share before
        # Half of what should have gone is gone: traffic itself goes up and down by less.
        if load_per_s <= (1 + self.share / self.before) / 2 * self.load_before_per_s < float("inf"):
            return replace(self, load_before_per_s=float("inf")).after(load_per_s, now_s)
        whole = load_per_s / self.share
        fitting = next((step for step in STEPS if whole * step <= BUDGET_PER_S), STEPS[-1])
        if fitting < self.share:
            followed = self.load_before_per_s == float("inf")
            return self._changed(fitting, load_per_s, now_s) if followed else self
        up = max((place for place, step in enumerate(STEPS) if step > self.share), default=None)
        if up is None or now_s - self.since_s < RISE_S or whole * STEPS[up] > ROOM * BUDGET_PER_S:
            return self
        return self._changed(STEPS[up], float("inf"), now_s)

    def _changed(self, share: float, load_before_per_s: float, now_s: float) -> "Sampling":
        return Sampling(share=share, since_s=now_s, before=self.share, load_before_per_s=load_before_per_s)
