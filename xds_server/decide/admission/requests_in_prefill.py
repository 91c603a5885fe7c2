"""Requests that prefill engines hold for a decode pool: they count as in flight there, but take no slot.

Proxies see one request from the side-car of a decode engine until its answer ends. While a prefill engine
computes its prompt, the decode engine does nothing for it. Without a correction the time of prompts counts as
service time of decode engines, and a slow prefill stage shrinks the ceiling of decode engines that idle.

- **Service time**: durations of the pool are reduced to the share that is in decode. Counts of one moment are left
  out: those of prefill engines are of another, and the difference looks like a pool that became slower.
- **Ceiling**: ``P`` requests in prefill get ``P x min(1, E / X)`` places of their own, where prefill engines
  complete ``X`` prompts a second, and decode engines end ``E`` answers: as many as these end while the prompts are
  computed. A decode pool that is full still admits nothing, so no prefill begins: of ``d`` in decode and ``D``
  that the limits allow, ``d + P x (1 - E / X) <= D``, hence ``d`` never exceeds ``D``.

These places are given in steps (``settled_places``), so ``d`` may exceed ``D`` by about a step for a second.

``P`` is what fresh reports of prefill engines say; pools that share these engines divide it by their requests in
flight.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from xds_server.decide.decisions import EngineCapacity, EngineDecision
from xds_server.decide.pool_inputs import able_per_s
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pool_traffic import STALE_S, PoolTraffic

_FEW: Final = 0.1
"""Share of the ceiling below which requests in prefill get no places: they vary, and each move is a push."""

_STEP: Final = 0.25
"""Places are whole multiples of this share of the ceiling, while decode engines have room."""

_ROOM: Final = 0.25
"""More places are given when less than this share of the ceiling is free: before requests need them."""

_FULL: Final = 0.9
"""Share of the ceiling in decode from which places are no more than the requests in prefill justify."""

_FALLS: Final = 0.5
"""Otherwise places stay until these justify only this share of them."""

MOVED_EACH_S: Final = 1.0
"""Places move at most this often: reports of prefill engines are as old."""

_FALLS_AFTER_S: Final = 5.0
"""How long places stay at least while decode engines have room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillLoad:
    """Requests of one decode pool at prefill engines, and prompts that these complete per second now."""

    in_flight: float
    per_s: float


def prefill_load(
    engines: Sequence[Engine],
    decisions: Mapping[EngineId, EngineDecision],
    capacities: Mapping[EngineId, EngineCapacity],
    *,
    part: float,
    now_s: float,
) -> PrefillLoad | None:
    """What these prefill engines hold for a pool that has ``part`` of their work; None if they hold nothing."""
    held = per_s = 0.0
    for engine in engines:
        report, at_s = engine.report, engine.received_at_s
        if report is None or not report.requests_in_flight or at_s is None or now_s - at_s >= STALE_S:
            continue
        held += report.requests_in_flight
        decision, capacity = decisions.get(engine.id), capacities.get(engine.id)
        if decision is not None and capacity is not None:
            per_s += able_per_s(decision, capacity) * min(1.0, report.requests_in_flight / capacity.slots)
    return PrefillLoad(in_flight=part * held, per_s=part * per_s) if held and part else None


def in_flight(traffic: PoolTraffic | None) -> int:
    """Requests in flight at a pool, as proxies report them."""
    return 0 if traffic is None else sum(one.in_flight or 0 for one in traffic.engines.values())


def traffic_in_decode(traffic: PoolTraffic | None, load: PrefillLoad | None) -> PoolTraffic | None:
    """The traffic of decode engines without the time in prefill; the same object if there is none."""
    whole = in_flight(traffic)
    if traffic is None or load is None or not whole:
        return traffic
    part = max(0.0, 1 - load.in_flight / whole)
    in_decode = {name: replace(one, busy=part * one.busy, in_flight=None) for name, one in traffic.engines.items()}
    return replace(traffic, engines=in_decode)


def prefill_places(load: PrefillLoad | None, whole: float, decode: tuple[float, float]) -> float:
    """Places for the requests in prefill, of ``whole`` in flight. ``decode``: slots, and answers per second."""
    if load is None:
        return 0.0
    slots, per_s = decode
    waiting = min(load.in_flight, whole)
    ends_per_s = per_s * min(1.0, (whole - waiting) / slots) if slots else 0.0
    return waiting if load.per_s <= ends_per_s else waiting * ends_per_s / load.per_s


def settled_places(places: float, before: int, ceiling: int, *, decoding: float, held: float, age_s: float) -> int:
    """Places from now on; ``before`` were given ``age_s`` ago.

    Of ``held`` requests in flight ``decoding`` are in decode. Counts of prefill engines jump from report to
    report. Each move is a push to every proxy, so places follow only if a request may need them, or if those
    given would fill the decode engines beyond ``ceiling``.
    """
    wanted = math.ceil(places) if places >= _FEW * ceiling else 0
    if wanted == before or age_s < MOVED_EACH_S:
        return before
    full = decoding >= _FULL * ceiling
    step = math.ceil(_STEP * ceiling)
    stepped = wanted if full else step * math.ceil(wanted / step)
    if wanted > before:
        return stepped if held + _ROOM * ceiling >= ceiling + before else before
    if full:
        return wanted
    return stepped if wanted <= _FALLS * before and age_s >= _FALLS_AFTER_S else before
