"""CPU time of short work in one thread, mostly by the wall clock.

Asking the kernel for a thread's CPU time takes 2 to 4 us on a virtual machine, and an ACK takes 20.
"""

import time
from collections.abc import Callable
from typing import Final

SHORT_S: Final = 0.001
"""Work that took no longer is charged by the wall clock: hardly any of it waited for a core."""


class MessageCost:
    """For work without other metered work in between. ``wall`` and ``cpu``: clocks in seconds."""

    __slots__ = ("_cpu", "_cpu_s", "_read_at_s", "_wall")

    def __init__(
        self, wall: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.thread_time
    ) -> None:
        self._wall = wall
        self._cpu = cpu
        self._read_at_s = float("-inf")
        self._cpu_s = 0.0

    def begin(self) -> float:
        """The time at which work begins, for ``since``."""
        now_s = self._wall()
        if now_s - self._read_at_s >= SHORT_S:
            self._cpu_s, self._read_at_s = self._cpu(), now_s
        return now_s

    def since(self, began_s: float) -> float:
        """CPU time in seconds since ``begin``, up to ``SHORT_S`` too much, never too little."""
        wall_s = self._wall() - began_s
        return wall_s if wall_s < SHORT_S else min(wall_s, self._cpu() - self._cpu_s)

    def exceeds(self, began_s: float, limit_s: float) -> bool:
        """Whether work took at least this much CPU time since ``begin``; ``limit_s`` is above ``SHORT_S``."""
        return self._wall() - began_s >= limit_s and self.since(began_s) >= limit_s
