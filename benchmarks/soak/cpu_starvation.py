"""When somebody who is needed for an answer was kept from running: a machine with too much to do, and no defect.

Each process of a soak stands in line for a core some of the time. A second in which one of its threads stood in
line for most of it tells nothing of Switchgear: whoever was asked then could not answer. Threads count one by one:
many of them that each wait for a little add up to nobody who was kept from running.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

MOSTLY: Final = 0.5
"""Share of a time that a thread must have stood in line for it to count as kept from running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuWait:
    """Between two looks, the longest that one thread stood in line; ``who`` is its process."""

    from_s: float
    to_s: float
    waited_s: float
    who: str


@dataclass(slots=True, kw_only=True)
class CpuWaitRecorder:
    """Fed with what each thread says it has waited in all; gives what came of it between looks."""

    waits: list[CpuWait] = field(default_factory=list)
    _before: dict[tuple[str, int], float] = field(default_factory=dict)
    _at_s: float | None = None

    def sample(self, at_s: float, waited_s: Mapping[tuple[str, int], float]) -> None:
        """Note what each thread, by its process and its id, has waited so far."""
        since_s, self._at_s = self._at_s, at_s
        found = [
            (total_s - self._before[thread], thread[0])
            for thread, total_s in waited_s.items()
            if thread in self._before
        ]
        self._before = dict(waited_s)
        if since_s is not None and found:
            longest_s, who = max(found)
            # What is looked at one after the other is seen at slightly different times.
            self.waits.append(CpuWait(from_s=since_s, to_s=at_s, waited_s=min(longest_s, at_s - since_s), who=who))


def starvation(waits: Sequence[CpuWait], from_s: float, to_s: float) -> str:
    """Who stood in line for most of this time, and for how long of it; empty when nobody did."""
    waited_s, who = 0.0, dict[str, float]()
    for one in waits:
        inside_s = min(one.to_s, to_s) - max(one.from_s, from_s)
        if inside_s > 0:
            share_s = one.waited_s * inside_s / (one.to_s - one.from_s)
            waited_s += share_s
            who[one.who] = who.get(one.who, 0.0) + share_s
    if waited_s < MOSTLY * (to_s - from_s):
        return ""
    return f"{max(who, key=lambda name: who[name])} stood in line for {waited_s:.1f} of {to_s - from_s:.1f} s"


def starved_s(waits: Sequence[CpuWait]) -> float:
    """Seconds of looks in which somebody stood in line for most of it."""
    return sum(one.to_s - one.from_s for one in waits if one.waited_s >= MOSTLY * (one.to_s - one.from_s))
