"""Requests stuck on ejected engines: they hold places in the ceiling, so they are added to it.

Envoy counts a request until it ends, on any engine. Without this, the requests on four hung engines kept four
healthy ones idle for as long as callers waited. Envoy's load report counts first; if a proxy sends none, the
engine's own count, divided over the gateways.

Requests that were cut, or whose engine is gone, have ended: older counts of them are ignored.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from xds_server.decide.decisions import EngineCapacity, EngineDecision, Health
from xds_server.decide.pool_inputs import PoolEngines
from xds_server.model.fleet import Engine
from xds_server.model.pool_traffic import STALE_S, PoolTraffic, Proxy, ProxyTraffic

_CUT_DONE_S: Final = 0.3
"""A cut was measured to end 49 requests within 0.2 s of the decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _EjectedEngine:
    """An ejected engine: since when, and the requests it is assumed to hold where no proxy counts them."""

    since_s: float
    cut: bool
    gone: bool
    in_flight: float


def stuck_by_proxy(
    proxies: Mapping[str, Proxy],
    engines: PoolEngines,
    *,
    traffic: PoolTraffic | None,
    gateways: Collection[str],
    sharers: int,
    now_s: float,
) -> dict[str, int]:
    """Requests that each proxy holds on ejected engines; proxies without any are absent.

    ``sharers`` is the number of ``gateways``, briefly disconnected ones included.
    """
    out = {
        engine.id.engine: _ejected_engine(engine, decision, engines.capacities.get(engine.id))
        for engine in engines.engines
        if (decision := engines.decisions.get(engine.id)) is not None and decision.health is not Health.HEALTHY
    }
    if not out:
        return {}
    found = {}
    told: Mapping[str, ProxyTraffic] = traffic.proxies if traffic is not None else {}
    for node in {*gateways, *told}:
        proxy, seen = proxies.get(node), told.get(node)
        if proxy is None:
            continue
        if seen is not None and seen.load_at_s is not None and now_s - seen.load_at_s <= STALE_S:
            count = _counted(seen.in_flight_on, seen.load_at_s, out, proxy.cuts)
        elif proxy.node in gateways:
            count = round(
                sum(one.in_flight for one in out.values() if not _ended(one, proxy.cuts)) / max(1, sharers)
            )
        else:
            count = 0  # there are many sidecars, with few requests each
        if count:
            found[proxy.node] = count
    return found


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
