"""Detects stalls of the prober itself, which must not count as engine faults."""

import asyncio
from collections.abc import Callable
from typing import Final

# Timer delay from which concurrent timeouts count as our fault.
LATE_S: Final = 0.2
_HEARTBEAT_S: Final = 0.05


class Heartbeat:
    """Records event loop stalls: timeouts that end in one prove nothing about engines.

    A timer instead of a task: timers due earlier run before timeouts due later.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._late_at_s = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    def late_since(self, at_s: float) -> bool:
        """Whether the loop stalled since ``at_s``."""
        return self._late_at_s >= at_s

    def start(self) -> None:
        """Start."""
        self._next()

    def stop(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self) -> None:
        due_at_s = self._clock() + _HEARTBEAT_S
        self._timer = asyncio.get_running_loop().call_later(_HEARTBEAT_S, self._beat, due_at_s)

    def _beat(self, due_at_s: float) -> None:
        now_s = self._clock()
        if now_s - due_at_s > LATE_S:
            self._late_at_s = now_s
        self._next()
