"""How soon a bad engine was left alone, and how soon a good one had its traffic back. Pure.

*Left alone*: the last request before the first pause in which an engine that is well would have got ten. What
comes after that pause (trial requests, for instance) is counted apart. An engine that crashed keeps no book of
what was refused, so for those the Envoys' counters are read, which are looked at ten times a second.

*Back*: from its first call of the first half second in which it gets at least seven tenths of its fair share of
all calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.failover.history import History
from benchmarks.failover.scenarios import Outage
from benchmarks.failover.setting import Setting
from chaos.fake_engine import Crash, Flap

PAUSE_REQUESTS: Final = 10
PAUSE_S: Final = 1.0
"""Shortest pause that counts."""

WINDOW_S: Final = 0.5
SHARE: Final = 0.7
_STEP_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """One engine in one outage: ``quiet_s`` after its beginning it was left alone, None when it never was;
    ``strays`` requests came after that, before the outage ended.
    """

    engine: int
    fault: str
    quiet_s: float | None
    sent: int
    strays: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Engines whose outage ended together: ``back_s`` after that their traffic was back, None when it was not."""

    engines: tuple[int, ...]
    back_s: float | None


def silences(history: History, setting: Setting) -> list[Silence]:
    """One for each outage; a flapping engine, which is well in between, has none."""
    found = []
    for outage in history.outages:
        if isinstance(outage.fault, Flap):
            continue
        sent_s = _sent_s(history, outage)
        fair_per_s = setting.rate_per_s * setting.engine_capacity_per_s(outage.engine) / setting.capacity_per_s
        pause_s = max(PAUSE_S, PAUSE_REQUESTS / fair_per_s)
        pause_s = min(pause_s, 0.5 * (outage.end_s - outage.start_s))
        at_s, last = _first_pause(sent_s, outage, pause_s)
        found.append(
            Silence(
                engine=outage.engine,
                fault=outage.fault.kind,
                quiet_s=at_s,
                sent=len(sent_s),
                strays=0 if at_s is None else len(sent_s) - last,
            )
        )
    return found


def recoveries(history: History, setting: Setting) -> list[Recovery]:
    """One for each moment at which outages ended, those within a tenth of a second together."""
    groups: list[list[Outage]] = []
    for outage in sorted(history.outages, key=lambda one: one.end_s):
        if groups and outage.end_s - groups[-1][0].end_s < 0.1:
            groups[-1].append(outage)
        else:
            groups.append([outage])
    calls = [(one.arrived_at_s, one.engine) for one in history.attempts]
    return [
        Recovery(engines=tuple(one.engine for one in group), back_s=_back_s(group, calls, history, setting))
        for group in groups
    ]


def _sent_s(history: History, outage: Outage) -> list[float]:
    """When something was sent to the engine during the outage, by time."""
    if not isinstance(outage.fault, Crash):
        return [
            one.arrived_at_s
            for one in history.attempts
            if one.engine == outage.engine and outage.start_s <= one.arrived_at_s < outage.end_s
        ]
    found: list[float] = []
    for proxy in {one.proxy for one in history.samples}:
        known: int | None = None
        for sample in (one for one in history.samples if one.proxy == proxy):
            sent = sample.sent.get(outage.engine)
            if sent is None:
                continue
            if known is not None and sent > known and outage.start_s <= sample.at_s < outage.end_s:
                found += [sample.at_s] * (sent - known)
            known = sent
    return sorted(found)


def _first_pause(sent_s: Sequence[float], outage: Outage, pause_s: float) -> tuple[float | None, int]:
    """Seconds from the outage's beginning to the last request before the pause, and how many came until then."""
    last_s = outage.start_s
    for count, at_s in enumerate(sent_s):
        if at_s - last_s >= pause_s:
            return last_s - outage.start_s, count
        last_s = at_s
    return (last_s - outage.start_s, len(sent_s)) if outage.end_s - last_s >= pause_s else (None, len(sent_s))


def _back_s(
    group: Sequence[Outage], calls: Sequence[tuple[float, int]], history: History, setting: Setting
) -> float | None:
    end_s = max(one.end_s for one in group)
    engines = {one.engine for one in group}
    at_s = end_s
    while at_s + WINDOW_S <= history.end_s:
        out = {one.engine for one in history.outages if one.start_s <= at_s < one.end_s}
        well = [engine for engine in range(setting.engines) if engine not in out]
        capacity = sum(setting.engine_capacity_per_s(engine) for engine in well)
        fair = sum(setting.engine_capacity_per_s(engine) for engine in engines) / capacity if capacity else 1.0
        some = [(call_s, engine) for call_s, engine in calls if at_s <= call_s < at_s + WINDOW_S]
        theirs_s = [call_s for call_s, engine in some if engine in engines]
        if theirs_s and len(theirs_s) >= SHARE * min(1.0, fair) * len(some):
            return min(theirs_s) - end_s
        at_s += _STEP_S
    return None
