"""Work and ended calls of engines within the last second or two, from the snapshots that rounds keep.

Rates of telemetry cover two seconds, and learned service times ten: this shows a change sooner.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from xds_server.decide.decision_memory import WorkSnapshot
from xds_server.model.fleet import EngineId

SPACING_S: Final = 0.25
"""Time between two snapshots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentWork:
    """One engine's slot-seconds of work and ended calls in a window."""

    work_s: float
    ended: int
    span_s: float


def recent_work(
    snapshots: Sequence[WorkSnapshot], service_s: Mapping[EngineId, float], window_s: float
) -> dict[EngineId, RecentWork]:
    """The work of the last ``window_s`` of each engine in all of its snapshots; empty while they cover less.

    A burst fills slots before it ends calls, so work that began within the window does not count.
    """
    if not snapshots:
        return {}
    last = snapshots[-1]
    window = [one for one in snapshots if one.at_s >= last.at_s - window_s - SPACING_S / 2]
    first, span_s = window[0], last.at_s - window[0].at_s
    if span_s < window_s - SPACING_S:
        return {}
    found = {}
    for key, now in last.engines.items():
        if key not in service_s or any(key not in one.engines for one in window):
            continue
        work_s = sum(before.engines[key].in_use * (after.at_s - before.at_s) for before, after in pairwise(window))
        begun = max(0, now.in_use - first.engines[key].in_use)
        found[key] = RecentWork(
            work_s=max(0.0, work_s - begun * service_s[key]),
            ended=max(0, now.ended - first.engines[key].ended),
            span_s=span_s,
        )
    return found
