"""Simulated time: what is to happen at which moment, in order, and the moment it is now."""

import heapq
import itertools
from collections.abc import Callable


class TimerHandle:
    """Something that will be done once, unless it is cancelled first."""

    __slots__ = ("do",)

    def __init__(self, do: Callable[[], None]) -> None:
        self.do: Callable[[], None] | None = do

    def cancel(self) -> None:
        """Not to be done."""
        self.do = None


class SimulatedClock:
    """What is done at the same moment is done in the order in which it was asked for, so that a run repeats.

    ``began_s`` is the moment from which a history counts, in the time of this clock.
    """

    def __init__(self, now_s: float, *, began_s: float) -> None:
        self.now_s = now_s
        self.began_s = began_s
        self._heap: list[tuple[float, int, TimerHandle]] = []
        self._numbers = itertools.count()

    def at(self, at_s: float, do: Callable[[], None]) -> TimerHandle:
        """Do it then; at once, after what is already asked for, where that moment is over."""
        appointment = TimerHandle(do)
        heapq.heappush(self._heap, (max(at_s, self.now_s), next(self._numbers), appointment))
        return appointment

    def after(self, seconds: float, do: Callable[[], None]) -> TimerHandle:
        """Do it so much later."""
        return self.at(self.now_s + seconds, do)

    def run(self, until_s: float) -> None:
        """Let time pass until then."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            at_s, _, appointment = heapq.heappop(heap)
            if appointment.do is not None:
                self.now_s = at_s
                appointment.do()
        self.now_s = until_s
