"""Requests stuck on ejected engines: they hold places in the ceiling, so they are added to it.

Envoy counts a request until it ends, on any engine. Without this, the requests on four hung engines kept four
healthy ones idle for as long as callers waited. Envoy's load report counts first; if a proxy sends none, the
engine's own count, divided over the gateways.

Requests that were cut, or whose engine is gone, have ended: older counts of them are ignored.

An engine in rotation with a reduced share may hold requests from before. Those beyond its part of the ceiling
count as stuck, too: otherwise callers would be refused while the other engines have room.

Requests on an engine that fails its calls come back: as retries, within seconds, to the engines in rotation. So
their places stay below the ceiling, as far as the slots in rotation stay full. Otherwise new requests would fill
the queues first, and each retry, which has waited once, would wait for as long again.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from engine.report import Verdict
from xds_server.decide.decisions import Ejector, EngineCapacity, EngineDecision, Health
from xds_server.decide.pool_inputs import PoolEngines
from xds_server.model.fleet import Engine
from xds_server.model.pool_traffic import STALE_S, PoolTraffic, Proxy, ProxyTraffic

_WHOLE_PERCENT: Final = 100.0
_ROUNDING: Final = 1e-6
_CUT_DONE_S: Final = 0.3
"""A cut was measured to end 49 requests within 0.2 s of the decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _EjectedEngine:
    """An ejected engine: since when, and the requests it is assumed to hold where no proxy counts them.

    ``fails``: it answers its requests with errors.
    """

    since_s: float
    cut: bool
    gone: bool
    fails: bool
    in_flight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckRequests:
    """Requests on ejected engines by proxy; proxies without any are absent. ``failing``: those that will fail."""

    all: Mapping[str, int]
    failing: Mapping[str, int]

    def above(self, ceiling: float, slots: float) -> dict[str, int]:
        """What each proxy may have above its part of ``ceiling``; others keep ``slots`` places of it."""
        failing = sum(self.failing.values())
        if not failing:
            return dict(self.all)
        above = 1 - min(1.0, max(0.0, ceiling - slots) / failing)
        left = {
            node: count - self.failing.get(node, 0) + math.ceil(above * self.failing.get(node, 0))
            for node, count in self.all.items()
        }
        return {node: count for node, count in left.items() if count}


def stuck_by_proxy(
    proxies: Mapping[str, Proxy],
    engines: PoolEngines,
    *,
    traffic: PoolTraffic | None,
    per_slot: float,
    gateways: Collection[str],
    sharers: int,
    now_s: float,
) -> StuckRequests:
    """Requests that each proxy holds on ejected engines, or beyond an engine's reduced share.

    ``per_slot``: requests in flight that the ceiling allows for each slot. ``sharers`` is the number of
    ``gateways``, briefly disconnected ones included.
    """
    out = {
        engine.id.engine: _ejected_engine(engine, decision, engines.capacities.get(engine.id))
        for engine in engines.engines
        if (decision := engines.decisions.get(engine.id)) is not None and decision.health is not Health.HEALTHY
    }
    failing = {name: one for name, one in out.items() if one.fails}
    told: Mapping[str, ProxyTraffic] = traffic.proxies if traffic is not None else {}
    known = {node: seen for node, seen in told.items() if node in proxies}
    found = _beyond_shares(engines, known, per_slot, now_s)
    fails: dict[str, int] = {}
    for node in {*gateways, *told} if out else ():
        proxy = proxies.get(node)
        if proxy is None:
            continue
        for those, counts in ((out, found), (failing, fails)):
            count = _stuck(proxy, told.get(node), those, gateways=gateways, sharers=sharers, now_s=now_s)
            if count:
                counts[node] = counts.get(node, 0) + count
    return StuckRequests(all=found, failing=fails)


def _beyond_shares(
    engines: PoolEngines, told: Mapping[str, ProxyTraffic], per_slot: float, now_s: float
) -> dict[str, int]:
    """Requests of each proxy on engines in rotation that exceed the engines' reduced shares."""
    parts = {
        one.id.engine: engines.capacities[one.id].slots * decision.traffic_percent / 100 * per_slot
        for one in engines.engines
        if (decision := engines.decisions.get(one.id)) is not None
        and decision.health is Health.HEALTHY
        and decision.traffic_percent < _WHOLE_PERCENT
        and one.id in engines.capacities
    }
    if not parts:
        return {}
    fresh = {
        node: seen.in_flight_on
        for node, seen in told.items()
        if seen.load_at_s is not None and now_s - seen.load_at_s <= STALE_S
    }
    held = {name: sum(counts.get(name, 0) for counts in fresh.values()) for name in parts}
    beyond = {name: 1 - part / held[name] for name, part in parts.items() if held[name] > part}
    found = {
        node: math.floor(sum(counts.get(name, 0) * share for name, share in beyond.items()) + _ROUNDING)
        for node, counts in fresh.items()
    }
    return {node: count for node, count in found.items() if count}


def _stuck(
    proxy: Proxy,
    seen: ProxyTraffic | None,
    out: Mapping[str, _EjectedEngine],
    *,
    gateways: Collection[str],
    sharers: int,
    now_s: float,
) -> int:
    """Requests that a proxy holds on the engines of ``out``."""
    if seen is not None and seen.load_at_s is not None and now_s - seen.load_at_s <= STALE_S:
        return _counted(seen.in_flight_on, seen.load_at_s, out, proxy.cuts)
    if proxy.node in gateways:
        return round(sum(one.in_flight for one in out.values() if not _ended(one, proxy.cuts)) / max(1, sharers))
    return 0  # there are many sidecars, with few requests each


def in_flight_by_proxy(
    nodes: Collection[str], traffic: PoolTraffic | None, held: Mapping[str, int], now_s: float
) -> dict[str, int]:
    """Requests of each proxy on engines in rotation, by its newest load report; absent without one."""
    found = {}
    for node in nodes if traffic is not None else ():
        seen = traffic.proxies.get(node) if traffic is not None else None
        if seen is not None and seen.load_at_s is not None and now_s - seen.load_at_s <= STALE_S:
            found[node] = max(0, sum(seen.in_flight_on.values()) - held.get(node, 0))
    return found


def _ejected_engine(engine: Engine, decision: EngineDecision, capacity: EngineCapacity | None) -> _EjectedEngine:
    told: float = 0.0  # an engine without reports was ejected for failed calls, so it does answer
    if engine.report is not None:
        said = engine.report.requests_in_flight
        told = said if said is not None else capacity.slots if capacity is not None else engine.slots
    return _EjectedEngine(
        since_s=decision.since_s,
        cut=decision.cut,
        gone=decision.gone,
        fails=decision.ejector is Ejector.ERRORS or decision.verdict is Verdict.DEGRADED,
        in_flight=told,
    )


def _counted(in_flight: Mapping[str, int], at_s: float, out: Mapping[str, _EjectedEngine], cuts: bool) -> int:
    count = 0
    for name in out if len(out) < len(in_flight) else in_flight:
        one = out.get(name)
        if one is not None and (not _ended(one, cuts) or at_s > one.since_s + _CUT_DONE_S):
            count += in_flight.get(name, 0)
    return count


def _ended(one: _EjectedEngine, cuts: bool) -> bool:
    return one.gone or (one.cut and cuts)
