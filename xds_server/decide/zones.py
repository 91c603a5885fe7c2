"""Which zones serve the callers of a zone, and in what proportion.

Local first, up to what the local engines can hold; the rest goes to zones by what they have to spare. Without
knowing the demand, callers are taken to ask evenly from every zone that has proxies, for as much as the healthy
fleet can hold: then every engine ends up equally loaded, wherever the failures are.

Envoy multiplies a zone's weight by the share of its listed hosts that are healthy (overprovisioning factor 100,
which ``translate`` says in each assignment). So a weight here is the wanted share *divided* by that share: the
product is what is wanted, in the same push as the health it was computed from, and when Envoy ejects a host on
its own, or the control plane is away, the weight still follows. See ``docs/adr/0003-zone-weights.md``.

Each change of weights rebuilds Envoy's balancer: weights are rounded, small moves are skipped, and other moves
wait for half a second, except where a zone comes or goes.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from policies.resilience import Zones
from xds_server.decide.decisions import EngineDecision, Health, ZoneShares
from xds_server.fleet import Engine, EngineId

OVERPROVISIONING_PERCENT: Final = 100
WEIGHT_SUM: Final = 1000
_STEP: Final = 10
_SMALL_MOVE: Final = 20
MIN_INTERVAL_S: Final = 0.5


def zone_shares(
    engines: Sequence[Engine],
    decisions: Mapping[EngineId, EngineDecision],
    policy: Zones,
    *,
    callers: Iterable[str],
    previous: Mapping[str, ZoneShares],
    now_s: float,
) -> dict[str, ZoneShares]:
    """Shares for callers of each zone in ``callers``, and of each zone with engines, and of no zone.

    When no engine is ready the previous shares stay, so that recovery needs no second push.
    """
    capacity, listed, healthy = _capacity(engines, decisions)
    asking = frozenset(callers)
    # Proxies that do not say where they are add no demand of their own: they are taken to be everywhere.
    demanding = (asking - {""}) or frozenset(capacity)
    shares = {}
    for caller in sorted({"", *asking, *(engine.zone for engine in engines)}):
        before = previous.get(caller)
        if not capacity:
            if before is not None:
                shares[caller] = before
            continue
        wanted, reason = _wanted(caller, capacity, demanding, policy)
        raw = {zone: share * listed[zone] / healthy[zone] for zone, share in wanted.items()}
        shares[caller] = _steadied(_weights(raw, policy), reason, before, now_s)
    return shares


def _capacity(
    engines: Sequence[Engine], decisions: Mapping[EngineId, EngineDecision]
) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Slots of healthy engines, number of engines Envoy is told of, and number of healthy ones, by zone."""
    capacity: dict[str, int] = {}
    listed: dict[str, int] = {}
    healthy: dict[str, int] = {}
    for engine in engines:
        decision = decisions[engine.id]
        if decision.health is Health.HEALTHY:
            capacity[engine.zone] = capacity.get(engine.zone, 0) + engine.slots
            healthy[engine.zone] = healthy.get(engine.zone, 0) + 1
        if not decision.gone:
            listed[engine.zone] = listed.get(engine.zone, 0) + 1
    return capacity, listed, healthy


def _wanted(
    caller: str, capacity: Mapping[str, int], demanding: frozenset[str], policy: Zones
) -> tuple[dict[str, float], str]:
    """Share of the caller's requests each zone should get; they add up to 1."""
    total = sum(capacity.values())
    if not caller:
        return {zone: slots / total for zone, slots in capacity.items()}, "by the slots of healthy engines"
    local = capacity.get(caller, 0)
    if not policy.prefer_local:
        share = local / total
        reason = "by the slots of healthy engines"
        spare: Mapping[str, float] = capacity
    else:
        demand = total / len(demanding | {caller})
        share = min(1.0, local / demand)
        spare = {
            zone: slots - (min(slots, demand) if zone in demanding else 0.0) for zone, slots in capacity.items()
        }
        reason = f"{share:.0%} fits the {local} healthy slots of the zone, the rest by spare slots elsewhere"
    others = {zone: room for zone, room in spare.items() if zone != caller}
    if sum(others.values()) <= 0:
        others = {zone: float(slots) for zone, slots in capacity.items() if zone != caller}
    most_abroad = policy.max_cross_zone_percent / 100 if policy.spill or not policy.prefer_local else 0.0
    if not others:
        return {caller: 1.0}, "every ready engine is in the zone"
    if local and 1 - share > most_abroad:
        share = 1 - most_abroad
        reason = f"at most {most_abroad:.0%} leaves the zone while it has a ready engine"
    elif not local:
        reason = "no ready engine in the zone: by spare slots elsewhere"
    room = sum(others.values())
    wanted = {zone: (1 - share) * slots / room for zone, slots in others.items()}
    if local:
        wanted[caller] = share
    return wanted, reason


def _weights(raw: Mapping[str, float], policy: Zones) -> dict[str, int]:
    """Rounded weights that add up to about a thousand.

    A zone that should get nothing still gets the smallest weight where crossing is allowed: one request in a
    thousand in good times is the price for having somewhere to go at once when the own zone is lost.
    """
    total = sum(raw.values())
    crossing = policy.max_cross_zone_percent > 0 and (policy.spill or not policy.prefer_local)
    weights = {}
    for zone in sorted(raw):
        weight = round(WEIGHT_SUM * raw[zone] / total / _STEP) * _STEP
        if weight or raw[zone] > 0 or crossing:
            weights[zone] = max(1, weight)
    return weights


def _steadied(weights: dict[str, int], reason: str, before: ZoneShares | None, now_s: float) -> ZoneShares:
    """The new shares, or the old ones where the difference is not worth a rebuild yet."""
    if before is not None and before.weights.keys() == weights.keys():
        move = max((abs(weights[zone] - before.weights[zone]) for zone in weights), default=0)
        if move <= _SMALL_MOVE or now_s - before.since_s < MIN_INTERVAL_S:
            return before
    return ZoneShares(weights=MappingProxyType(weights), reason=reason, since_s=now_s)
