"""Notices when the judge itself was late, so that its own sleep is not held against anyone."""

import asyncio
from collections.abc import Callable
from typing import Final

# How late our own timer may be before time-outs of that moment are put down to us.
LATE_S: Final = 0.2
_HEARTBEAT_S: Final = 0.05


class Heartbeat:
    """Notes when the event loop stood still: time-outs that end in such a moment say nothing about anyone else.

    A timer and not a task, because a timer that was due first runs before the time-outs that were due later.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._late_at_s = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    def late_since(self, at_s: float) -> bool:
        """Whether the loop has been late since ``at_s``."""
        return self._late_at_s >= at_s

    def start(self) -> None:
        """Beat until stopped."""
        self._next()

    def stop(self) -> None:
        """Beat no more."""
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
