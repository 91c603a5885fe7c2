"""Counts that expire: sums over the last seconds, and a histogram over the last minute.

Both use constant memory, and take the time as an argument.
"""

import math
from collections import deque
from typing import Final

from xds_server.model.pool_traffic import RATE_S, LatencyTail

SLOT_S: Final = 0.2
"""Width of a slot; a rate is exact to about a tenth."""

_SLOTS: Final = round(RATE_S / SLOT_S)


class RateWindow:
    """Sums of ``width`` numbers over the last ``RATE_S`` seconds."""

    __slots__ = ("_slots", "_width")

    def __init__(self, width: int) -> None:
        self._width = width
        self._slots: deque[list[float]] = deque(maxlen=_SLOTS)

    def slot(self, at_s: float) -> list[float]:
        """The slot of a moment, to add to: numbers from index 1 on.

        For a moment before the window, a slot that is never read.
        """
        number = int(at_s / SLOT_S)
        slots = self._slots
        if slots and slots[-1][0] == number:
            return slots[-1]
        fresh = [0.0] * (self._width + 1)
        fresh[0] = number
        place = len(slots)
        while place and slots[place - 1][0] > number:
            place -= 1
        if place == len(slots):
            slots.append(fresh)
        elif place and slots[place - 1][0] == number:
            return slots[place - 1]
        elif len(slots) < _SLOTS and slots[-1][0] - number < _SLOTS:
            slots.insert(place, fresh)
        return fresh

    def rates(self, now_s: float) -> list[float] | None:
        """The sums per second; None without entries.

        The present slot is not complete, so only its elapsed time counts.
        """
        slots = self._slots
        oldest = int(now_s / SLOT_S) - _SLOTS + 1
        while slots and slots[0][0] < oldest:
            slots.popleft()
        if not slots:
            return None
        over_s = now_s - oldest * SLOT_S
        return [sum(column) / over_s for column in list(zip(*slots, strict=True))[1:]]


class LatencyHistogram:
    """Recent durations, in bins of equal ratio: quantiles are right within 2.5 %."""

    __slots__ = ("_slices",)

    _RATIO: Final = math.log(1.05)
    _SHORTEST_S: Final = 0.001
    _LARGEST_BIN: Final = 400  # 0.001 s x 1.05^400 is more than three days
    _SLICE_S: Final = 10.0
    _KEPT: Final = 6

    def __init__(self) -> None:
        self._slices: deque[tuple[int, dict[int, int]]] = deque(maxlen=self._KEPT)

    def add(self, seconds: float, now_s: float) -> None:
        """Add a duration; it expires after about a minute."""
        number = int(now_s / self._SLICE_S)
        slices = self._slices
        if not slices or slices[-1][0] < number:
            slices.append((number, {}))
        bins = slices[-1][1]
        place = 0
        if seconds > self._SHORTEST_S:
            place = min(self._LARGEST_BIN, int(math.log(seconds / self._SHORTEST_S) / self._RATIO) + 1)
        bins[place] = bins.get(place, 0) + 1

    def tail(self, now_s: float) -> LatencyTail | None:
        """Its quantiles; None without entries."""
        oldest = int(now_s / self._SLICE_S) - self._KEPT + 1
        merged: dict[int, int] = {}
        for number, bins in self._slices:
            if number >= oldest:
                for place, count in bins.items():
                    merged[place] = merged.get(place, 0) + count
        if not merged:
            return None
        calls = sum(merged.values())
        places = sorted(merged)
        p50, p95, p99 = (self._quantile(places, merged, share * calls) for share in (0.50, 0.95, 0.99))
        # The upper end of its bin: limits derived from it must not be too short.
        longest = self._SHORTEST_S * math.exp(places[-1] * self._RATIO)
        # The lower end of its bin, likewise: a deadline above it can be met.
        shortest = self._SHORTEST_S * math.exp((places[0] - 1) * self._RATIO) if places[0] else 0.0
        return LatencyTail(p50_s=p50, p95_s=p95, p99_s=p99, calls=calls, longest_s=longest, shortest_s=shortest)

    def _quantile(self, places: list[int], counts: dict[int, int], rank: float) -> float:
        seen = 0
        for place in places:
            seen += counts[place]
            if seen >= rank:
                break
        if place == 0:
            return self._SHORTEST_S
        return self._SHORTEST_S * math.exp((place - 0.5) * self._RATIO)
