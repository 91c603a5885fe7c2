"""History of one GPU between readings: counters and throttling."""

from collections import deque
from collections.abc import Mapping

from engine.gpu.gpu_readings import (
    GpuCounters,
    GpuIdentity,
    GpuReadGaps,
    GpuReading,
    ThrottleReason,
    Vitals,
    Wear,
    counter_growth,
    gpu_counters,
    throttled_since,
)

_NO_LOOK = GpuReadGaps(fault=None, unknown=())


class GpuReadingHistory:
    """History of one rank; ``growth_window_s`` is the window of ``counter_growth``."""

    def __init__(self, growth_window_s: float) -> None:
        self._window_s = growth_window_s
        self._seen: deque[GpuCounters] = deque()
        self._throttled: Mapping[ThrottleReason, float] = {}
        self._wear = Wear()
        self._wear_look = _NO_LOOK
        self._wear_at_s: float | None = None

    def wear_is_older_than(self, age_s: float, now_s: float) -> bool:
        """Whether wear is due; True at first."""
        return self._wear_at_s is None or now_s - self._wear_at_s >= age_s

    def keep(self, wear: Wear, look: GpuReadGaps, now_s: float) -> None:
        """Store a reading of wear."""
        self._wear, self._wear_look, self._wear_at_s = wear, look, now_s

    def reading(self, identity: GpuIdentity, vitals: Vitals, look: GpuReadGaps, now_s: float) -> GpuReading:
        """Reading from ``vitals`` and the history."""
        newest = gpu_counters(now_s, vitals)
        self._seen.append(newest)
        while self._seen[0].at_s < now_s - self._window_s:
            self._seen.popleft()
        self._throttled = throttled_since(self._throttled, vitals.throttled, now_s)
        return GpuReading(
            identity=identity,
            read_at_s=now_s,
            vitals=vitals,
            wear=self._wear,
            fault=look.fault or self._wear_look.fault,
            growth=counter_growth(self._seen[0], newest),
            throttled_since_s=self._throttled,
            unknown=(*look.unknown, *self._wear_look.unknown),
        )
