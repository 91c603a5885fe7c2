"""Simulated time: scheduled actions in order, and the current time."""

import heapq
import itertools
from collections.abc import Callable


class TimerHandle:
    """A scheduled action that can be cancelled."""

    __slots__ = ("do",)

    def __init__(self, do: Callable[[], None]) -> None:
        self.do: Callable[[], None] | None = do

    def cancel(self) -> None:
        """Cancel the action."""
        self.do = None


class SimulatedClock:
    """Runs actions at equal times in scheduling order, so runs are reproducible.

    ``began_s`` is time 0 of the history, on this clock.
    """

    def __init__(self, now_s: float, *, began_s: float) -> None:
        self.now_s = now_s
        self.began_s = began_s
        self._heap: list[tuple[float, int, TimerHandle]] = []
        self._numbers = itertools.count()

    def at(self, at_s: float, do: Callable[[], None]) -> TimerHandle:
        """Schedule at a time; a past time means now, after actions already due."""
        appointment = TimerHandle(do)
        heapq.heappush(self._heap, (max(at_s, self.now_s), next(self._numbers), appointment))
        return appointment

    def after(self, seconds: float, do: Callable[[], None]) -> TimerHandle:
        """Schedule after a delay."""
        return self.at(self.now_s + seconds, do)

    def run(self, until_s: float) -> None:
        """Advance to this time."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            at_s, _, appointment = heapq.heappop(heap)
            if appointment.do is not None:
                self.now_s = at_s
                appointment.do()
        self.now_s = until_s
