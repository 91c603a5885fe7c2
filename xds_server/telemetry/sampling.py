"""The share of calls that a proxy reports, to bound the cost of reading them. Pure.

It drops at once and as far as needed, and rises one step at a time after a while with room. Counts are divided by
the share, so a lower one makes numbers coarser, not smaller.
"""

from dataclasses import dataclass, replace
from typing import Final

STEPS: Final = (1.0, 0.5, 0.2, 0.1, 0.05, 0.01)

BUDGET_PER_S: Final = 10_000.0
"""Entries per second of all proxies, messages included: a quarter of a core (``benchmarks/signals``)."""

MESSAGE_COST: Final = 5.0
"""Cost of a message in entries: many proxies with few calls each send many messages."""

ROOM: Final = 0.7
"""Share of the budget that the next step up must leave; otherwise it would be reversed at once."""

RISE_S: Final = 10.0

EFFECTIVE_AFTER_S: Final = 0.5
"""How long a proxy continues with the previous share: the push, and reports in transit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The share in force, since when, and the previous one.

    ``load_before_per_s`` is the load before the share was lowered, until the proxy follows: one that does
    not is not lowered further, which would only distort counts that are divided by the share.
    """

    share: float = 1.0
    since_s: float = float("-inf")
    before: float = 1.0
    load_before_per_s: float = float("inf")

    def counted(self, now_s: float) -> float:
        """The share to divide counts by: that of entries arriving now."""
        return self.share if now_s - self.since_s >= EFFECTIVE_AFTER_S else self.before

    def after(self, load_per_s: float, now_s: float, budget_per_s: float = BUDGET_PER_S) -> "Sampling":
        """The next sampling, given the entries sent per second with the present share, and their budget."""
        if now_s - self.since_s < EFFECTIVE_AFTER_S * 2:
            return self  # these entries still had the previous share
        # Half of the expected reduction is enough: traffic itself varies by less.
        if load_per_s <= (1 + self.share / self.before) / 2 * self.load_before_per_s < float("inf"):
            return replace(self, load_before_per_s=float("inf")).after(load_per_s, now_s, budget_per_s)
        whole = load_per_s / self.share
        fitting = next((step for step in STEPS if whole * step <= budget_per_s), STEPS[-1])
        if fitting < self.share:
            followed = self.load_before_per_s == float("inf")
            return self._changed(fitting, load_per_s, now_s) if followed else self
        up = max((place for place, step in enumerate(STEPS) if step > self.share), default=None)
        if up is None or now_s - self.since_s < RISE_S or whole * STEPS[up] > ROOM * budget_per_s:
            return self
        return self._changed(STEPS[up], float("inf"), now_s)

    def _changed(self, share: float, load_before_per_s: float, now_s: float) -> "Sampling":
        return Sampling(share=share, since_s=now_s, before=self.share, load_before_per_s=load_before_per_s)
