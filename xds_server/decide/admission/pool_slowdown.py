"""Detects that a pool as a whole became slower, from the work and the calls of the last second or two.

Learned service times remember ten seconds of calls, so after a slowdown of every engine (longer answers, a slow
disk, throttled GPUs) the ceiling would let the wait grow for as long. Here, ended calls are compared with what the
work in slots should have ended at the learned service time. If clearly fewer ended on most engines, the memory is
replaced by recent work. One engine's slowdown is left to the ejectors.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from xds_server.decide.decision_memory import EngineWork, WorkSnapshot
from xds_server.decide.decisions import EngineDecision, Health
from xds_server.decide.recent_work import SPACING_S, RecentWork, recent_work
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pool_traffic import EngineTraffic

_WINDOWS_S: Final = (1.0, 2.0)
_SLOWER: Final = 1.25
"""Smaller slowdowns are left to the average."""

_ENOUGH_CALLS: Final = 20.0
_BEYOND_CHANCE: Final = 3.1
"""Standard deviations of a count (Poisson): chance exceeds them once in a thousand checks."""

_OF_POOL_CALLS: Final = 4.0
"""Calls that weigh as much as the pool's ratio in that of one engine."""

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
    kept = (one for one in before if now_s - one.at_s <= _WINDOWS_S[-1] + SPACING_S)
    return (*kept, WorkSnapshot(at_s=now_s, engines=work))


def slowed_work(
    snapshots: Sequence[WorkSnapshot], service_s: Mapping[EngineId, float]
) -> Mapping[EngineId, RecentWork]:
    """Recent work by engine if the pool became slower than ``service_s``; empty if not."""
    for window_s in _WINDOWS_S:
        recent = recent_work(snapshots, service_s, window_s)
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


def slowed_times(
    recent: Mapping[EngineId, RecentWork], service_s: Mapping[EngineId, float]
) -> Mapping[EngineId, float]:
    """How many times slower than ``service_s`` each engine of a slower pool is; ``recent`` as of ``slowed_work``.

    Calls end in bursts, and a slow engine ends few of them: each one's ratio is drawn towards that of the pool.
    """
    expected = {key: one.work_s / service_s[key] for key, one in recent.items()}
    ended = sum(one.ended for one in recent.values())
    if not ended:
        return {}
    times = sum(expected.values()) / ended
    return {
        key: (expected[key] + _OF_POOL_CALLS) / (one.ended + _OF_POOL_CALLS / times) for key, one in recent.items()
    }
