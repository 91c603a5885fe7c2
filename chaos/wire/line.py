"""When bytes that entered one end of a line come out at the other. Times are arguments; nothing waits here."""

import random
from collections.abc import Sequence

from chaos.wire.rules import Weather


class Cap:
    """A bottleneck that many lines share: what enters waits for all that entered before."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    def through_at_s(self, now_s: float, size: int) -> float:
        """When the last of ``size`` bytes is through; they are counted."""
        self._free_at_s = max(now_s, self._free_at_s) + size / self._bytes_per_s
        return self._free_at_s


class Line:
    """One direction of one connection. Nothing overtakes: it carries TCP.

    ``open_at_s`` is when the connection would have been open, had its handshake been as late as its bytes; nothing
    can have been sent before.
    """

    def __init__(self, rng: random.Random, *, open_at_s: float) -> None:
        self._rng = rng
        self._open_at_s = open_at_s
        self._last_due_s = 0.0

    def due_s(self, now_s: float, size: int, weather: Weather, caps: Sequence[Cap]) -> float:
        """When ``size`` bytes that enter now come out."""
        through_s = max(now_s, self._open_at_s)
        for cap in caps:
            through_s = cap.through_at_s(through_s, size)
        late_s = weather.latency_s + (weather.jitter_s * self._rng.random() if weather.jitter_s else 0.0)
        self._last_due_s = max(self._last_due_s, through_s + late_s)
        return self._last_due_s
