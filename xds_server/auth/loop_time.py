"""How much of the event loop's time is CPU time, by the kernel's count of what it waits for a core.

A second of CPU time takes longer where others use the cores, and peers are limited in what they take of the loop.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

CHECK_EACH_S: Final = 0.5

BUSY: Final = 0.5
"""Share of the time in which the loop runs or waits for a core, from which on time is short."""

MAX_FACTOR: Final = 4.0

_SCHEDULE: Final = Path("/proc/thread-self/schedstat")


class LoopTime:
    """Wall-clock time of the loop for each second of its CPU time. ``read_s``: CPU time, and waiting time."""

    def __init__(
        self,
        read_s: Callable[[], tuple[float, float]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_s = read_s or scheduled_s
        self._clock = clock
        self._checked_at_s = clock()
        self._before_s = self._read_s()
        self._factor = 1.0

    def factor(self) -> float:
        """1 if the loop has time left or the system does not say; at most ``MAX_FACTOR``. Call in its thread."""
        now_s = self._clock()
        passed_s = now_s - self._checked_at_s
        if passed_s >= CHECK_EACH_S:
            (cpu_before_s, waited_before_s), self._before_s = self._before_s, self._read_s()
            self._checked_at_s = now_s
            cpu_s, waited_s = self._before_s[0] - cpu_before_s, self._before_s[1] - waited_before_s
            short = cpu_s > 0 and cpu_s + waited_s > BUSY * passed_s
            self._factor = min(MAX_FACTOR, 1 + waited_s / cpu_s) if short else 1.0
        return self._factor


def scheduled_s() -> tuple[float, float]:
    """CPU time of this thread, and its time waiting for a core; zeros where the system does not say."""
    try:
        cpu_ns, waited_ns, _ = _SCHEDULE.read_text().split()
    except (OSError, ValueError):
        return 0.0, 0.0
    return int(cpu_ns) / 1e9, int(waited_ns) / 1e9
