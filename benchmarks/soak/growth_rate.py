"""What a process grows by: the slope of what it held over time, once it has warmed up, and how sure that is.

The slope is the median of those of all pairs (Theil and Sen): a burst, or a collection of garbage, does not tilt
it. Samples that follow closely say nearly the same, which would make any interval too narrow; so blocks of
``BLOCK_S`` count, by their medians. Source of slope and interval: Sen, "Estimates of the regression coefficient
based on Kendall's tau", 1968.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from statistics import median
from typing import Final

WARM_UP: Final = 1 / 3
"""Share of the time that is left out: caches fill, and the allocator finds its size."""

BLOCK_S: Final = 15.0
LEAST_OF_S: Final = 60.0
"""Between two floods memory is what they left behind; a minute with an enemy has several."""

FEWEST_BLOCKS: Final = 8
"""From fewer the interval of 95 per cent is that of the steepest pairs, and says nothing."""

SURE: Final = 1.96
"""Standard deviations of Kendall's tau to each side: 95 per cent."""

BOUND_PERCENT_PER_H: Final = 1.0
JUDGED_FROM_S: Final = 1_800.0
"""Shorter looks do not say that a process grows: what fills up slowly and then stays looks the same."""

CLIMB: Final = 16
CLIMB_SHARE: Final = 0.25
"""Descriptors and threads climb if the later minimum exceeds the earlier maximum by this many and by this
share.
"""


class GrowthVerdict(StrEnum):
    """Verdict on a growth."""

    BELOW = "below 1 % an hour"
    GROWS = "grows"
    UNKNOWN = "not established"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthRate:
    """Of one measure over ``over_s`` after warm-up: its level, and its growth an hour in per cent of that.

    ``moved`` is what was seen, from the first block to the last: an hour is a multiple of it, and so is its error.
    ``low`` and ``high`` bound the growth at 95 per cent; None where there were too few samples for any slope.
    """

    over_s: float
    level: float
    moved: float
    percent_per_h: float | None
    low: float | None
    high: float | None

    @property
    def enough_s(self) -> float | None:
        """How long a look it would take, with such noise, for an interval as wide as the bound to each side.

        None where it is not wider now, or unknown. The error of a slope falls with the time and with the root of
        the number of blocks, which grows with the time.
        """
        if self.low is None or self.high is None:
            return None
        to_each_side = (self.high - self.low) / 2
        if to_each_side <= BOUND_PERCENT_PER_H:
            return None
        return float(self.over_s * (to_each_side / BOUND_PERCENT_PER_H) ** (2 / 3))

    @property
    def verdict(self) -> GrowthVerdict:
        """Below the bound, above it, or unknown."""
        if self.low is None or self.high is None:
            return GrowthVerdict.UNKNOWN
        if self.high < BOUND_PERCENT_PER_H:
            return GrowthVerdict.BELOW
        return (
            GrowthVerdict.GROWS
            if self.low > BOUND_PERCENT_PER_H and self.over_s >= JUDGED_FROM_S
            else GrowthVerdict.UNKNOWN
        )


def growth_rate(samples: Sequence[tuple[float, float]]) -> GrowthRate | None:
    """The growth of a measure, from (second, value) in order; None without any after warm-up."""
    kept = warm(samples)
    if not kept:
        return None
    blocks = _blocks(kept)
    over_s, level = kept[-1][0] - kept[0][0], median(value for _, value in kept)
    moved = blocks[-1][1] - blocks[0][1]
    slopes = sorted((b - a) / (t - s) for (s, a), (t, b) in combinations(blocks, 2) if t > s)
    if len(blocks) < FEWEST_BLOCKS or not level:
        return GrowthRate(over_s=over_s, level=level, moved=moved, percent_per_h=None, low=None, high=None)
    count = len(blocks)
    spread = SURE * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = slopes[max(0, math.floor((len(slopes) - spread) / 2))]
    high = slopes[min(len(slopes) - 1, math.ceil((len(slopes) + spread) / 2))]
    per_h = 100 * 3_600 / level
    return GrowthRate(
        over_s=over_s,
        level=level,
        moved=moved,
        percent_per_h=median(slopes) * per_h,
        low=low * per_h,
        high=high * per_h,
    )


def least(samples: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """The lowest value of each minute, where it was: the rest while nothing is under way."""
    found: dict[int, tuple[float, float]] = {}
    for at_s, value in samples:
        minute = int((at_s - samples[0][0]) // LEAST_OF_S)
        if minute not in found or value < found[minute][1]:
            found[minute] = (at_s, value)
    return list(found.values())


def climbs(samples: Sequence[tuple[float, float]]) -> str:
    """How a count has climbed without coming back, as a sentence's end; empty where it has not."""
    kept = [value for _, value in warm(samples)]
    quarter = len(kept) // 4
    if quarter < 3:
        return ""
    most, fewest = max(kept[:quarter]), min(kept[-quarter:])
    if fewest <= most + max(CLIMB, CLIMB_SHARE * most):
        return ""
    return f"climb: at most {most:.0f} at first, at least {fewest:.0f} in the end"


def warm(samples: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Those after warm-up."""
    if not samples:
        return ()
    since_s = samples[0][0] + WARM_UP * (samples[-1][0] - samples[0][0])
    return [one for one in samples if one[0] >= since_s]


def _blocks(samples: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """The median of each block, at the middle of its samples."""
    blocks: dict[int, list[tuple[float, float]]] = {}
    for at_s, value in samples:
        blocks.setdefault(int((at_s - samples[0][0]) // BLOCK_S), []).append((at_s, value))
    return [(median(at_s for at_s, _ in one), median(value for _, value in one)) for one in blocks.values()]
