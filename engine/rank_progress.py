"""Progress of each data-parallel rank of an engine.

vLLM schedules each rank on its own: one can hang while the others produce tokens, and sums over ranks hide it.
A rank stands still if it holds work and none of its step counters changes. Its gauges are those of its last step,
so they may be outdated. A canary addressed to the rank decides: without a token the rank hangs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from engine.vllm_metrics import RankCounters

# Standstill with work from which a rank gets the next canary.
_SUSPECT_AFTER_S: Final = 0.2
# A longer step reads a chunk of a prompt.
_DECODE_STEP_S: Final = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """One rank after some readings; times are monotonic seconds, None if the state does not hold.

    ``stalled_since_s``: its gauges show work, and no step came. ``unanswered_since_s``: a canary addressed to it
    got no token. ``prefilling``: its last step may have been followed by a prefill.
    """

    counters: RankCounters
    stalled_since_s: float | None = None
    unanswered_since_s: float | None = None
    prefilling: bool = True

    @property
    def work(self) -> int:
        """Its requests, by its gauges."""
        return self.counters.running + self.counters.waiting

    def hung_since_s(self, at_s: float, *, limit_s: float, idle_limit_s: float) -> float | None:
        """Since when it hangs; None if it does not. ``idle_limit_s`` applies to one without other requests."""
        if self.unanswered_since_s is None:
            return None
        if self.stalled_since_s is not None:
            return self.stalled_since_s if at_s - self.stalled_since_s >= limit_s else None
        return self.unanswered_since_s if at_s - self.unanswered_since_s >= idle_limit_s else None

    def with_canary(self, at_s: float) -> "RankProgress":
        """The rank with a canary sent to it."""
        return replace(
            self, unanswered_since_s=at_s if self.unanswered_since_s is None else self.unanswered_since_s
        )

    def after_token(self) -> "RankProgress":
        """The rank after a token of its own canary."""
        return replace(self, stalled_since_s=None, unanswered_since_s=None)

    def with_timers_from(self, at_s: float) -> "RankProgress":
        """The rank with timers that start now."""
        return replace(
            self,
            stalled_since_s=None if self.stalled_since_s is None else at_s,
            unanswered_since_s=None if self.unanswered_since_s is None else at_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReading:
    """What a reading says of all ranks.

    ``last_at_s``: time of the previous reading. ``asked_rank``: where the canary in flight is. ``prefilling``: a
    request that a rank holds may be a prefill. ``arriving``: one that came to an idle rank may be.
    """

    at_s: float
    last_at_s: float | None
    asked_rank: int | None
    prefilling: bool
    arriving: bool


def after_rank_reading(
    before: Sequence[RankProgress], fresh: Sequence[RankCounters], look: RankReading
) -> tuple[RankProgress, ...]:
    """The ranks after one more reading; other ranks than before start without history."""
    if [one.counters.rank for one in before] != [one.rank for one in fresh]:
        return tuple(RankProgress(counters=one) for one in fresh)
    return tuple(
        _after(known, now, look, asked=place == look.asked_rank)
        for place, (known, now) in enumerate(zip(before, fresh, strict=True))
    )


def _after(known: RankProgress, now: RankCounters, look: RankReading, *, asked: bool) -> RankProgress:
    since_s = known.stalled_since_s
    if now != known.counters:
        chunk = since_s is not None and look.at_s - since_s > _DECODE_STEP_S
        # vLLM schedules one step ahead: a prompt whose client left may be in the next one, too.
        ahead = known.prefilling and known.work and not now.running + now.waiting
        return RankProgress(
            counters=now,
            unanswered_since_s=look.at_s if asked else None,
            prefilling=bool(chunk or look.prefilling or ahead),
        )
    if not known.work:
        return replace(known, stalled_since_s=None, prefilling=look.arriving or known.prefilling)
    if since_s is None:
        since_s = look.at_s if look.last_at_s is None else look.last_at_s
    return replace(known, stalled_since_s=since_s)


def longest_standstill_since_s(before: Sequence[RankProgress], now: Sequence[RankProgress]) -> float | None:
    """Start of the longest standstill that this reading ended; None if it ended none."""
    ended = (
        known.stalled_since_s
        for known, one in zip(before, now, strict=False)
        if known.stalled_since_s is not None and one.counters != known.counters
    )
    return min(ended, default=None)


def suspected_rank(ranks: Sequence[RankProgress], at_s: float, last: int) -> int | None:
    """Place of the first rank after ``last`` that stands still with work; None if none does."""
    turns = [(last + 1 + turn) % len(ranks) for turn in range(len(ranks))]
    for place in turns:
        since_s = ranks[place].stalled_since_s
        if since_s is not None and at_s - since_s >= _SUSPECT_AFTER_S:
            return place
    return None
