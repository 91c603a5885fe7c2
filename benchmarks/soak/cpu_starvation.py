"""CPU starvation: intervals in which a process needed for an answer could not run, because the machine was busy.

If a thread waits for a core for most of a second, a missing answer in that second proves no defect. Threads are
counted one by one: many short waits do not add up to starvation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

MOSTLY: Final = 0.5
"""Share of an interval that a thread must have waited for a core to count as starved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuWait:
    """The longest wait of one thread for a core between two samples; ``who`` is its process."""

    from_s: float
    to_s: float
    waited_s: float
    who: str


@dataclass(slots=True, kw_only=True)
class CpuWaitRecorder:
    """Turns each thread's total waiting time into waits between samples."""

    waits: list[CpuWait] = field(default_factory=list)
    _before: dict[tuple[str, int], float] = field(default_factory=dict)
    _at_s: float | None = None

    def sample(self, at_s: float, waited_s: Mapping[tuple[str, int], float]) -> None:
        """Add the total waiting time of each thread, by process and thread id."""
        since_s, self._at_s = self._at_s, at_s
        found = [
            (total_s - self._before[thread], thread[0])
            for thread, total_s in waited_s.items()
            if thread in self._before
        ]
        self._before = dict(waited_s)
        if since_s is not None and found:
            longest_s, who = max(found)
            # Threads are sampled one after the other, at slightly different times.
            self.waits.append(CpuWait(from_s=since_s, to_s=at_s, waited_s=min(longest_s, at_s - since_s), who=who))


def starvation(waits: Sequence[CpuWait], from_s: float, to_s: float) -> str:
    """The process starved for most of this interval, and for how long; empty if none was."""
    waited_s, who = 0.0, dict[str, float]()
    for one in waits:
        inside_s = min(one.to_s, to_s) - max(one.from_s, from_s)
        if inside_s > 0:
            share_s = one.waited_s * inside_s / (one.to_s - one.from_s)
            waited_s += share_s
            who[one.who] = who.get(one.who, 0.0) + share_s
    if waited_s < MOSTLY * (to_s - from_s):
        return ""
    return f"{max(who, key=lambda name: who[name])} waited for a core for {waited_s:.1f} of {to_s - from_s:.1f} s"


def starved_s(waits: Sequence[CpuWait]) -> float:
    """Seconds of samples in which a process was starved."""
    return sum(one.to_s - one.from_s for one in waits if one.waited_s >= MOSTLY * (one.to_s - one.from_s))
