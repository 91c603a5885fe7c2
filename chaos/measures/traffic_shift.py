"""How soon traffic left a broken engine, and returned to a healed one. Pure.

*Left alone*: the last request before the first pause in which a healthy engine would have got ten. Later requests,
such as trials, are counted separately. A dead engine logs no refused calls, so proxy counters are used, sampled
ten times a second.

*Back*: the first call of the first 0.5 s in which it gets at least 70 % of its fair share of calls.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.history.recorded_history import History
from chaos.measures.impairments import Impairment, ejectable

PAUSE_REQUESTS: Final = 10
PAUSE_S: Final = 1.0
"""Minimum pause."""

WINDOW_S: Final = 0.5
SHARE: Final = 0.7
TOGETHER_S: Final = 0.1
"""Engines healed within this time count as healed together."""

_STEP_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficStop:
    """One engine in one outage from ``start_s`` to ``end_s``.

    Traffic stopped ``quiet_s`` after the start; None if never. ``strays_s`` are the times of later requests in the
    outage.
    """

    outage: str
    engine: str
    fault: str
    start_s: float
    end_s: float
    quiet_s: float | None
    sent: int
    strays_s: tuple[float, ...]

    @property
    def strays(self) -> int:
        """Number of requests after traffic stopped."""
        return len(self.strays_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRecovery:
    """Engines healed together at ``healed_s``.

    Traffic was back ``back_s`` later; None if not within the remaining ``watched_s``.
    """

    engines: tuple[str, ...]
    healed_s: float
    back_s: float | None
    watched_s: float


def capacities_per_s(history: History) -> Mapping[str, float]:
    """Maximum requests per second of each healthy engine under test."""
    return {
        one.name: one.slots / (history.began.service_s * one.slowness)
        for one in history.began.engines
        if one.pool == history.began.pool
    }


def traffic_stops(history: History, troubles: Sequence[Impairment]) -> list[TrafficStop]:
    """One per broken engine, except flapping engines and those cut from some proxies only."""
    found = []
    capacity = capacities_per_s(history)
    for trouble in ejectable(troubles):
        if trouble.nature.flaps:
            continue
        end_s = min(trouble.end_s, history.end_s)
        sent_s = send_times_s(history, trouble, end_s)
        fair_per_s = history.began.rate_per_s * capacity[trouble.engine] / sum(capacity.values())
        pause_s = min(max(PAUSE_S, PAUSE_REQUESTS / fair_per_s), 0.5 * (end_s - trouble.start_s))
        quiet_s, last = _first_pause(sent_s, trouble.start_s, end_s, pause_s)
        found.append(
            TrafficStop(
                outage=trouble.outage,
                engine=trouble.engine,
                fault=trouble.kind,
                start_s=trouble.start_s,
                end_s=end_s,
                quiet_s=quiet_s,
                sent=len(sent_s),
                strays_s=() if quiet_s is None else tuple(sent_s[last:]),
            )
        )
    return found


def traffic_recoveries(history: History, troubles: Sequence[Impairment]) -> list[TrafficRecovery]:
    """One per time at which broken engines were healed under load."""
    groups: list[list[Impairment]] = []
    for trouble in sorted(ejectable(troubles), key=lambda one: one.end_s):
        if trouble.end_s >= history.end_s:
            continue
        if groups and trouble.end_s - groups[-1][0].end_s < TOGETHER_S:
            groups[-1].append(trouble)
        else:
            groups.append([trouble])
    calls = [(one.at_s, one.engine) for one in history.attempts]
    found = []
    for group in groups:
        healed_s = max(one.end_s for one in group)
        found.append(
            TrafficRecovery(
                engines=tuple(one.engine for one in group),
                healed_s=healed_s,
                back_s=_back_s(group, healed_s, calls, history, troubles),
                watched_s=history.end_s - healed_s,
            )
        )
    return found


def send_times_s(history: History, trouble: Impairment, end_s: float) -> list[float]:
    """Times of requests to the engine during the impairment, sorted."""
    if not trouble.nature.unseen:
        return [
            one.at_s
            for one in history.attempts
            if one.engine == trouble.engine and trouble.start_s <= one.at_s < end_s
        ]
    found: list[float] = []
    for proxy in {one.proxy for one in history.samples}:
        known: int | None = None
        for sample in (one for one in history.samples if one.proxy == proxy):
            sent = sample.sent.get(trouble.engine)
            if sent is None:
                continue
            if known is not None and sent > known and trouble.start_s <= sample.at_s < end_s:
                found += [sample.at_s] * (sent - known)
            known = sent
    return sorted(found)


def _first_pause(
    sent_s: Sequence[float], start_s: float, end_s: float, pause_s: float
) -> tuple[float | None, int]:
    """Seconds from the start to the last request before the pause, and the requests until then."""
    last_s = start_s
    for count, at_s in enumerate(sent_s):
        if at_s - last_s >= pause_s:
            return last_s - start_s, count
        last_s = at_s
    return (last_s - start_s, len(sent_s)) if end_s - last_s >= pause_s else (None, len(sent_s))


def _back_s(
    group: Sequence[Impairment],
    healed_s: float,
    calls: Sequence[tuple[float, str]],
    history: History,
    troubles: Sequence[Impairment],
) -> float | None:
    engines = {one.engine for one in group}
    capacity = capacities_per_s(history)
    at_s = healed_s
    while at_s + WINDOW_S <= history.end_s:
        out = {one.engine for one in ejectable(troubles) if one.at(at_s)}
        well = sum(per_s for engine, per_s in capacity.items() if engine not in out)
        fair = sum(capacity[engine] for engine in engines) / well if well else 1.0
        some = calls[bisect_left(calls, (at_s, "")) : bisect_left(calls, (at_s + WINDOW_S, ""))]
        theirs_s = [call_s for call_s, engine in some if engine in engines]
        if theirs_s and len(theirs_s) >= SHARE * min(1.0, fair) * len(some):
            return min(theirs_s) - healed_s
        at_s += _STEP_S
    return None
