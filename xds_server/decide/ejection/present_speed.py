"""The share of traffic of a busy engine that makes tokens more slowly than its peers right now.

Learned service times remember ten seconds of calls, and an engine counts as a straggler only after a while of
clear slowness. Meanwhile it would get as many requests as its peers, and those wait longest. So a busy engine gets
the share that its tokens per second allow, within two seconds, beyond what its learned service time explains. Busy
is one with three quarters of its slots in use: a slow one fills the rest before its next report.

Reports of a pool that slows down as a whole arrive one by one, so its first engines look slower than the rest.
Calls tell these cases apart: the share falls at once if the other engines end as many calls as they learned to,
otherwise after ``CONFIRM_S``, and not at all if the engine itself does. It falls in steps, and rises only after a
while: noise must not move weights. Only agents count: a prober reads tokens too rarely to know how many requests
made them.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from engine.report import ReportSource
from xds_server.decide.decision_memory import PresentSpeed, WorkSnapshot
from xds_server.decide.decisions import EngineCapacity
from xds_server.decide.ejection.slowness import tokens_per_running
from xds_server.decide.recent_work import RecentWork, recent_work
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pool_traffic import EngineTraffic

SLOWER: Final = 1.5
"""Ratio to its peers from which an engine's share falls."""

_WORSE: Final = 1.1
_ALIKE: Final = 1.25
"""Smaller moves down and up are noise; below the latter ratio an engine is as fast as its peers."""

CONFIRM_S: Final = 0.75
"""How long an engine must be slower where its peers do not prove their pace."""

_PACE_S: Final = 0.5
_PACE_CALLS: Final = 12.0
"""Window, and calls that peers should end in it, from which they prove their pace."""

_OWN_CALLS: Final = 4.0
"""The same for the engine itself: its requests in flight and its tokens are of different moments."""

_PACE: Final = 1.33
"""Ratio of expected to ended calls up to which peers keep their pace."""

_BUSY: Final = 0.75
"""Share of slots in use from which requests are about to wait."""

RISES_S: Final = 2.0
"""How long a share must be too small before it rises."""

_FORGOTTEN_S: Final = 5.0
"""Without evidence for this long, the share is whole again."""


def present_speeds(
    engines: Sequence[Engine],
    calls: Mapping[str, EngineTraffic],
    capacities: Mapping[EngineId, EngineCapacity],
    *,
    min_peers: int,
    work: Sequence[WorkSnapshot],
    before: Mapping[EngineId, PresentSpeed],
    now_s: float,
) -> dict[EngineId, PresentSpeed]:
    """The engines that are slower now; ``engines`` are those whose speeds are comparable.

    ``work``: of the last seconds, on engines with their full share.
    """
    rates = {
        engine.id: rate
        for engine in engines
        if engine.report is not None
        and engine.report.source is ReportSource.AGENT
        and (rate := tokens_per_running(engine.report, engine.slots, now_s)) is not None
    }
    found = {}
    if len(rates) < min_peers:
        return {key: one for key, one in before.items() if now_s - one.seen_at_s < _FORGOTTEN_S}
    usual = median(rates.values())
    learned = {key: capacities[key].usual_s for key in rates if key in capacities}
    typical_s = median(learned.values()) if learned else 1.0
    for engine in engines:
        known = before.get(engine.id)
        if engine.id in rates and usual > 0:
            explained = max(1.0, learned.get(engine.id, typical_s) / typical_s)
            times = usual / max(rates[engine.id], usual / 1000) / explained
            one = _next(known, times, _is_busy(engine, calls.get(engine.id.engine)), now_s)
        else:
            one = known if known is not None and now_s - known.seen_at_s < _FORGOTTEN_S else None
        if one is not None:
            found[engine.id] = one
    waits = [key for key, one in found.items() if not one.confirmed]
    if waits:
        peers = [key for key, rate in rates.items() if rate * SLOWER > usual]
        recent = recent_work(work, learned, _PACE_S)
        proven = len(peers) >= min_peers - 1 and _keep_pace(peers, recent, learned, _PACE_CALLS)
        for key in waits:
            began_s = found[key].began_s
            covered = bool(work) and began_s <= work[-1].at_s
            if covered and _keep_pace((key,), recent, learned, _OWN_CALLS):
                del found[key]  # its tokens only looked fewer: more requests run than made them
            elif (covered and proven) or now_s - began_s >= CONFIRM_S:
                found[key] = replace(found[key], confirmed=True)
    return found


def _keep_pace(
    keys: Collection[EngineId],
    recent: Mapping[EngineId, RecentWork],
    service_s: Mapping[EngineId, float],
    enough: float,
) -> bool:
    """Whether these engines end as many calls as they learned to; False with too few calls."""
    expected = math.fsum(recent[key].work_s / service_s[key] for key in keys if key in recent)
    ended = sum(recent[key].ended for key in keys if key in recent)
    return expected >= enough and ended * _PACE >= expected


def _next(known: PresentSpeed | None, times: float, busy: bool, now_s: float) -> PresentSpeed | None:
    if known is None:
        return PresentSpeed(times=times, seen_at_s=now_s, began_s=now_s) if busy and times >= SLOWER else None
    if times < SLOWER and not known.confirmed:
        return None
    if times >= known.times:
        worse = times >= _WORSE * known.times
        return replace(known, times=times if worse else known.times, seen_at_s=now_s, better_since_s=None)
    if times * _ALIKE > known.times and times >= _ALIKE:
        return replace(known, seen_at_s=now_s, better_since_s=None)
    since_s = now_s if known.better_since_s is None else known.better_since_s
    if now_s - since_s < RISES_S:
        return replace(known, seen_at_s=now_s, better_since_s=since_s)
    return replace(known, times=times, seen_at_s=now_s, better_since_s=None) if times >= _ALIKE else None


def _is_busy(engine: Engine, calls: EngineTraffic | None) -> bool:
    """Whether most slots are in use, by the newest count of proxies or of the engine."""
    counts = [calls.in_flight if calls is not None else None]
    counts.append(engine.report.requests_in_flight if engine.report is not None else None)
    return max((one for one in counts if one is not None), default=0) >= _BUSY * engine.slots
