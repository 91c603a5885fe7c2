"""What a process grows by: the slope of what it held over time, once it has warmed up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WARM_UP: Final = 1 / 3
"""Share of the samples that are left out: caches fill, and the allocator finds its size."""

JUDGED_FROM_S: Final = 600.0
"""From shorter samples no growth of an hour can be told: noise of one per cent is as large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the process held at ``at_s``."""

    at_s: float
    memory_bytes: int
    descriptors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Growth of memory in per cent an hour, and of descriptors an hour, over ``over_s`` seconds after warm-up."""

    over_s: float
    memory_bytes: float
    memory_percent_per_h: float
    descriptors: float
    descriptors_per_h: float

    @property
    def judged(self) -> bool:
        """Whether it was looked at for long enough to mean anything."""
        return self.over_s >= JUDGED_FROM_S


def growth(samples: Sequence[Sample]) -> Growth | None:
    """The growth that least squares find in these; None for fewer than three after warm-up."""
    kept = samples[round(len(samples) * WARM_UP) :]
    if len(kept) < 3:
        return None
    times = [one.at_s for one in kept]
    memory, memory_per_s = _line(times, [float(one.memory_bytes) for one in kept])
    descriptors, descriptors_per_s = _line(times, [float(one.descriptors) for one in kept])
    return Growth(
        over_s=times[-1] - times[0],
        memory_bytes=memory,
        memory_percent_per_h=100 * 3_600 * memory_per_s / memory if memory else 0.0,
        descriptors=descriptors,
        descriptors_per_h=3_600 * descriptors_per_s,
    )


def _line(times: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Mean and slope of the line through these."""
    mean_s, mean = sum(times) / len(times), sum(values) / len(values)
    spread = sum((at_s - mean_s) ** 2 for at_s in times)
    along = sum((at_s - mean_s) * (value - mean) for at_s, value in zip(times, values, strict=True))
    return mean, along / spread if spread else 0.0
