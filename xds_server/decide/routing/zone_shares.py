"""Zone weights: which zones serve the callers of a zone, and in what proportion.

Local first, up to the local capacity; the rest goes to other zones by their room. Capacity is slots over service
time, not the number of engines; a zone's demand is what its proxies report. Local engines are filled to nine
tenths, or to the fleet's utilization if that is higher: then every engine is equally loaded, wherever failures
are. Unknown demand is assumed to be even over the zones with proxies, and equal to the fleet's capacity.

Envoy multiplies a zone's weight by the healthy share of its listed hosts (overprovisioning factor 100, set by
``translate`` in each assignment). So a weight here is the wanted share *divided* by that share: the product is
what is wanted, in the same push as the health it was computed from. When Envoy ejects a host itself, or the
control plane is away, the weight still follows. See ``docs/adr/0003-zone-weights.md``.

Demand may be underestimated, and engines slower than learned, so what waits corrects the result: a zone where
requests wait longer than elsewhere counts with less until the difference is gone.

An engine in slow start counts with that part of its capacity. A zone where all engines are in slow start gets
the part of the furthest one, relative to that of other zones; zones ahead get the rest. Without this an engine
alone in its zone would get all of it at once, because weights within a zone are relative.

Each change of weights rebuilds Envoy's balancer. So demand is averaged until chance does not move it, weights are
rounded, small moves are skipped, and others wait half a second, unless a zone comes or goes.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from policies.resilience import Zones
from xds_server.decide.decision_memory import Demand, ZoneDemand, ZoneMemory
from xds_server.decide.decisions import Health, ZoneShares
from xds_server.decide.pool_inputs import Callers, PoolEngines
from xds_server.model.pool_traffic import RATE_S, Proxy

OVERPROVISIONING_PERCENT: Final = 100
WEIGHT_SUM: Final = 1000
_STEP: Final = 10
_SMALL_MOVE: Final = 20
MIN_INTERVAL_S: Final = 0.5

_FULL: Final = 0.9
"""Share of a zone's capacity above which requests wait there by chance while engines idle elsewhere."""

_UNEVEN_S: Final = 0.25
_EVENED_S: Final = 2.0
_LEAST_LEFT: Final = 0.02
"""Requests may wait this much longer in one zone than in another; a longer wait ends within the second time."""

_SLOW_S: Final = 10.0
_FAST_S: Final = 1.0
_CHANCE: Final = 3.0
"""Demand is averaged over 10 s, or over 1 s if it is off by more standard deviations than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Zones:
    """By zone: calls per second of healthy engines, engines listed in Envoy, and healthy ones.

    ``ramping``: the part, 0..1, of their share that zones get where all engines are in slow start, relative to the
    furthest zone; ``per_s`` has such parts, too, and ``full_per_s`` none.
    ``crowded``: zones where requests wait longer than elsewhere; ``per_s`` is less there.
    ``trust`` is below 1 where every healthy engine is on trial: then only this part of the zone's callers stays.
    """

    per_s: Mapping[str, float]
    full_per_s: Mapping[str, float]
    trust: Mapping[str, float]
    listed: Mapping[str, int]
    healthy: Mapping[str, int]
    ramping: Mapping[str, float]
    crowded: frozenset[str]


def zone_shares(
    engines: PoolEngines,
    policy: Zones,
    callers: Callers,
    *,
    shadow: bool,
    before: ZoneMemory,
    weighed_at_s: float = -math.inf,
    now_s: float,
) -> ZoneMemory:
    """Shares for callers of each calling zone, of each zone with engines, and of no zone.

    ``weighed_at_s`` is when weights within zones last moved. Without a ready engine the last shares stay, so that
    recovery needs no second push. In ``shadow`` mode all callers share the engines by capacity.
    """
    zones = _zones(engines, evens_waits=not shadow)
    asking = frozenset(callers.zones)
    all_callers = sorted({"", *asking, *(engine.zone for engine in engines.engines)})
    told = _reported_demand(callers.demand, callers.proxies)
    asked = {zone: _averaged(told.get(zone), before.demand.get(zone), now_s) for zone in all_callers}
    if not zones.per_s:
        kept = [caller for caller in all_callers if caller in before.shares]
        return ZoneMemory(
            shares={caller: before.shares[caller] for caller in kept},
            demand={caller: before.demand[caller] for caller in kept if caller in before.demand},
        )
        # Proxies without zone add no demand of their own: they are assumed to be everywhere.
    assumed = _assumed((asking - {""}) or frozenset(zones.per_s), asked, sum(zones.per_s.values()))
    shares, demand = {}, {}
    for caller in all_callers:
        if shadow:
            wanted, reason = _by_capacity(zones.per_s), "not enforced: by the capacity of healthy engines"
        else:
            wanted, reason = _wanted(caller, zones.per_s, zones.trust, assumed, policy)
            if zones.ramping:
                full, _ = _wanted(caller, zones.full_per_s, zones.trust, assumed, policy)
                wanted = _ramped(wanted, full, zones, assumed, least_local=_least_local(policy, caller, zones))
                reason += f"; slow start in {_names(zones.ramping)}"
            if zones.crowded:
                reason += f"; requests wait longer in {_names(zones.crowded)}"
        raw = {zone: share * zones.listed[zone] / zones.healthy[zone] for zone, share in wanted.items()}
        last, known = before.shares.get(caller), before.demand.get(caller)
        shares[caller] = _steadied(_weights(raw, policy), reason, last, weighed_at_s, now_s)
        if known is None or shares[caller] is not last or asked[caller] != known.per_s:
            known = ZoneDemand(per_s=asked[caller], at_s=now_s)
        demand[caller] = known
    return ZoneMemory(shares=shares, demand=demand)


def _names(zones: Iterable[str]) -> str:
    return ", ".join(zone or "no zone" for zone in sorted(zones))


def _zones(engines: PoolEngines, *, evens_waits: bool) -> _Zones:
    per_s: dict[str, float] = {}
    trust: dict[str, float] = {}
    listed: dict[str, int] = {}
    healthy: dict[str, int] = {}
    full_per_s: dict[str, float] = {}
    furthest: dict[str, float] = {}
    waiting: dict[str, float] = {}
    for engine in engines.engines:
        decision = engines.decisions[engine.id]
        if decision.health is Health.HEALTHY:
            able = engines.able_per_s(engine.id)
            ramp = engines.ramp_ratio(engine.id)
            full_per_s[engine.zone] = full_per_s.get(engine.zone, 0.0) + able
            per_s[engine.zone] = per_s.get(engine.zone, 0.0) + able * ramp
            furthest[engine.zone] = max(furthest.get(engine.zone, 0.0), ramp)
            trust[engine.zone] = max(trust.get(engine.zone, 0.0), decision.traffic_percent / 100)
            healthy[engine.zone] = healthy.get(engine.zone, 0) + 1
            waiting[engine.zone] = waiting.get(engine.zone, 0.0) + engines.waiting(engine.id)
        if not decision.gone:
            listed[engine.zone] = listed.get(engine.zone, 0) + 1
    most = max(furthest.values(), default=1.0)
    ramping = {zone: ramp / most for zone, ramp in furthest.items() if ramp < most}
    left = _left_by_waits(waiting if evens_waits else {}, full_per_s)
    return _Zones(
        per_s={zone: able / most * left[zone] for zone, able in per_s.items()},
        full_per_s={zone: able * left[zone] for zone, able in full_per_s.items()},
        trust=trust,
        listed=listed,
        healthy=healthy,
        ramping=ramping,
        crowded=frozenset(zone for zone, part in left.items() if part < 1),
    )


def _left_by_waits(waiting: Mapping[str, float], per_s: Mapping[str, float]) -> dict[str, float]:
    """By zone: the part of its capacity that is left for new requests, where others wait longer than elsewhere."""
    waits_s = {zone: waiting.get(zone, 0.0) / able if able > 0 else 0.0 for zone, able in per_s.items()}
    least_s = min(waits_s.values(), default=0.0)
    return {
        zone: max(_LEAST_LEFT, 1.0 - max(0.0, wait_s - least_s - _UNEVEN_S) / _EVENED_S)
        for zone, wait_s in waits_s.items()
    }


def _reported_demand(demand: Mapping[str, Demand], proxies: Mapping[str, Proxy]) -> dict[str, float]:
    """Requests per second by calling zone, as its proxies report now."""
    told: dict[str, float] = {}
    for node, one in demand.items():
        proxy = proxies.get(node)
        if proxy is not None:
            told[proxy.zone] = told.get(proxy.zone, 0.0) + one.per_s
    return told


def _averaged(told_per_s: float | None, before: ZoneDemand | None, now_s: float) -> float | None:
    """The demand in use: moves that chance explains are averaged slowly."""
    if told_per_s is None or before is None or before.per_s is None:
        return told_per_s
    known = before.per_s
    off = abs(told_per_s - known)
    if off <= 0.01 * known:
        return known
    chance = _CHANCE * math.sqrt(max(told_per_s, known) / RATE_S)
    over_s = _SLOW_S if off <= chance else _FAST_S
    passed_s = min(now_s - before.at_s, _FAST_S)
    return known + (told_per_s - known) * (1 - math.exp(-passed_s / over_s))


def _assumed(demanding: frozenset[str], asked: Mapping[str, float | None], able_per_s: float) -> dict[str, float]:
    """Assumed demand per calling zone in requests per second; a zone without reports is assumed to be average."""
    known = {zone: per_s for zone in demanding if (per_s := asked.get(zone)) is not None}
    other = sum(known.values()) / len(known) if known else able_per_s / len(demanding)
    return {zone: known.get(zone, other) for zone in demanding}


def _by_capacity(per_s: Mapping[str, float]) -> dict[str, float]:
    total = sum(per_s.values())
    return {zone: able / total for zone, able in per_s.items()}


def _wanted(
    caller: str,
    per_s: Mapping[str, float],
    trust: Mapping[str, float],
    assumed: Mapping[str, float],
    policy: Zones,
) -> tuple[dict[str, float], str]:
    """Share of the caller's requests for each zone; they add up to 1."""
    if not caller:
        return _by_capacity(per_s), "by the capacity of healthy engines"
    able = sum(per_s.values())
    local = per_s.get(caller, 0.0)
    others = {zone: room for zone, room in per_s.items() if zone != caller}
    if not others:
        return {caller: 1.0}, "every ready engine is in the zone"
    if not policy.prefer_local:
        share, reason = local / able, "by the capacity of healthy engines"
    else:
        asks = assumed.get(caller)
        if asks is None:  # no demand yet: assume the average
            asks = sum(assumed.values()) / len(assumed)
            assumed = {**assumed, caller: asks}
        filled = max(_FULL, sum(assumed.values()) / able)
        share = min(1.0, filled * local / asks) if asks > 0 else 1.0
        reason = (
            f"{share:.0%} of {asks:.3g}/s fits the zone's healthy engines ({local:.3g}/s), the rest follows room"
        )
        room = {zone: filled * one - min(filled * one, assumed.get(zone, 0.0)) for zone, one in others.items()}
        others = room if sum(room.values()) > 1e-9 * able else others
    if share > (tried := trust.get(caller, 1.0)):
        share, reason = tried, f"{tried:.0%} of its requests while its engines are on trial, the rest follows room"
    most_abroad = _most_abroad(policy)
    if local and 1 - share > most_abroad:
        share = 1 - most_abroad
        reason = f"at most {most_abroad:.0%} leaves the zone while it has a ready engine"
    elif not local:
        share, reason = 0.0, "no ready engine in the zone: by room elsewhere"
    whole = sum(others.values())
    wanted = {zone: (1 - share) * room / whole for zone, room in others.items()}
    if local:
        wanted[caller] = share
    return wanted, reason


def _ramped(
    wanted: Mapping[str, float],
    full: Mapping[str, float],
    zones: _Zones,
    assumed: Mapping[str, float],
    *,
    least_local: Mapping[str, float],
) -> dict[str, float]:
    """The wanted shares, where ramping zones get at most a part of their ``full`` share.

    The rest goes to zones ahead by room, or by capacity if none has any. ``least_local`` stays in the caller's
    zone.
    """
    kept = {
        zone: max(least_local.get(zone, 0.0), min(share, full[zone] * zones.ramping[zone]))
        if zone in zones.ramping
        else share
        for zone, share in wanted.items()
    }
    rest = 1 - sum(kept.values())
    ahead = {zone: per_s for zone, per_s in zones.per_s.items() if zone not in zones.ramping}
    room = {zone: max(0.0, per_s - assumed.get(zone, 0.0)) for zone, per_s in ahead.items()}
    by = room if sum(room.values()) > 1e-9 * sum(ahead.values()) else ahead
    whole = sum(by.values())
    return {zone: share + rest * by.get(zone, 0.0) / whole for zone, share in kept.items()}


def _least_local(policy: Zones, caller: str, zones: _Zones) -> dict[str, float]:
    """What the policy keeps in the caller's zone, if it has a ready engine: that outranks a ramp."""
    return {caller: 1 - _most_abroad(policy)} if caller in zones.per_s else {}


def _most_abroad(policy: Zones) -> float:
    """The largest part of a zone's requests that may leave it."""
    return policy.max_cross_zone_percent / 100 if policy.spill or not policy.prefer_local else 0.0


def _weights(raw: Mapping[str, float], policy: Zones) -> dict[str, int]:
    """Rounded weights that add up to about a thousand.

    A zone that should get nothing still gets the smallest weight where crossing is allowed: one request in a
    thousand is the price of an immediate alternative when the own zone is lost.
    """
    total = sum(raw.values())
    crossing = policy.max_cross_zone_percent > 0 and (policy.spill or not policy.prefer_local)
    weights = {}
    for zone in sorted(raw):
        weight = round(WEIGHT_SUM * raw[zone] / total / _STEP) * _STEP
        if weight or raw[zone] > 0 or crossing:
            weights[zone] = max(1, weight)
    return weights


def _steadied(
    weights: dict[str, int], reason: str, before: ZoneShares | None, weighed_at_s: float, now_s: float
) -> ZoneShares:
    """The new shares, or the old ones if the difference is not worth a rebuild yet."""
    if before is not None and before.weights.keys() == weights.keys():
        move = max((abs(weights[zone] - before.weights[zone]) for zone in weights), default=0)
        if move <= _SMALL_MOVE or now_s - max(before.since_s, weighed_at_s) < MIN_INTERVAL_S:
            return before
    return ZoneShares(weights=MappingProxyType(weights), reason=reason, since_s=now_s)
