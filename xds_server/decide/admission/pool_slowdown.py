"""Detects that a pool as a whole became slower, from the work and the calls of the last second or two.

Learned service times remember ten seconds of calls, so after a slowdown of every engine (longer answers, a slow
disk, throttled GPUs) the ceiling would let the wait grow for as long. Here, ended calls are compared with what the
work in slots should have ended at the learned service time. If clearly fewer ended on most engines, the memory is
replaced by recent work. One engine's slowdown is left to the ejectors.

A burst fills slots before it ends calls, so work that began within the window does not count.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from xds_server.decide.decision_memory import EngineWork, WorkSnapshot
from xds_server.decide.decisions import EngineDecision, Health
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pool_traffic import EngineTraffic

SPACING_S: Final = 0.25
_WINDOWS_S: Final = (1.0, 2.0)
_SLOWER: Final = 1.25
"""Smaller slowdowns are left to the average."""

_ENOUGH_CALLS: Final = 20.0
_BEYOND_CHANCE: Final = 3.1
"""Standard deviations of a count (Poisson): chance exceeds them once in a thousand checks."""

_MOST: Final = 0.75
"""Share of the work on engines that are slower, each by itself, from which the pool is slower."""


def next_work_snapshots(
    before: tuple[WorkSnapshot, ...],
    engines: Sequence[Engine],
    seen: Mapping[str, EngineTraffic],
    decisions: Mapping[EngineId, EngineDecision],
    now_s: float,
) -> tuple[WorkSnapshot, ...]:
    """The snapshots of the last two seconds; the same object until the next one is due."""
    if before and now_s - before[-1].at_s < SPACING_S:
        return before
    work = {
        engine.id: EngineWork(
            in_use=min(calls.in_flight, engine.slots), ended=calls.succeeded + calls.failed + calls.neutral
        )
        for engine in engines
        if (calls := seen.get(engine.id.engine)) is not None
        and calls.in_flight is not None
        and (decision := decisions.get(engine.id)) is not None
        and decision.health is Health.HEALTHY
        and decision.traffic_percent >= 100
    }
    if not work:
        return ()
    kept = [one for one in before if now_s - one.at_s <= _WINDOWS_S[-1] + SPACING_S]
    if kept and kept[-1].engines.keys() != work.keys():
        kept = []
    return (*kept, WorkSnapshot(at_s=now_s, engines=work))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentWork:
    """One engine's slot-seconds of work and ended calls in a window."""

    work_s: float
    ended: int
    span_s: float


def slowed_work(
    snapshots: Sequence[WorkSnapshot], service_s: Mapping[EngineId, float]
) -> Mapping[EngineId, RecentWork]:
    """Recent work by engine if the pool became slower than ``service_s``; empty if not."""
    for window_s in _WINDOWS_S:
        recent = _recent_work(snapshots, service_s, window_s)
        expected = {key: one.work_s / service_s[key] for key, one in recent.items()}
        total, ended = sum(expected.values()), sum(one.ended for one in recent.values())
        if not ended:
            continue  # no engine answers, or calls are not counted
        if total < _ENOUGH_CALLS or ended * _SLOWER > total or ended > total - _BEYOND_CHANCE * math.sqrt(total):
            continue
        slower = sum(expected[key] for key, one in recent.items() if one.ended * _SLOWER <= expected[key])
        if slower >= _MOST * total:
            return recent
    return {}


def _recent_work(
    snapshots: Sequence[WorkSnapshot], service_s: Mapping[EngineId, float], window_s: float
) -> dict[EngineId, RecentWork]:
    if not snapshots:
        return {}
    last = snapshots[-1]
    window = [one for one in snapshots if one.at_s >= last.at_s - window_s - SPACING_S / 2]
    first, span_s = window[0], last.at_s - window[0].at_s
    if span_s < window_s - SPACING_S:
        return {}
    found = {}
    for key, now in last.engines.items():
        if key not in service_s:
            continue
        work_s = sum(before.engines[key].in_use * (after.at_s - before.at_s) for before, after in pairwise(window))
        begun = max(0, now.in_use - first.engines[key].in_use)
        found[key] = RecentWork(
            work_s=max(0.0, work_s - begun * service_s[key]),
            ended=max(0, now.ended - first.engines[key].ended),
            span_s=span_s,
        )
    return found
