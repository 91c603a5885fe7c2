"""Endpoints: engines that receive requests, and the traffic share of each zone.

All per-engine telemetry results go here: a push changes health and weights in milliseconds, without affecting
requests in flight.

* An ejected engine stays listed, so that Envoy keeps counting its requests in flight. A dead engine has none and
  is omitted: when it returns it is a new host for Envoy, free of the local ejection that its death caused, which
  would otherwise block it for the whole cooldown.
* An engine on trial or in slow start gets part of its share by a lower weight. Picking works best with equal
  weights, so those of similar engines differ only meanwhile.
* Engines of a zone with different slots or speeds get different weights; see ``engine_weights``.
* Every zone stays listed, too. A zone without weight gets no traffic from Envoy (nor from gRPC), but its hosts
  keep their counts for when the zone is needed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from xds_server.decide.decisions import Decisions, Health, ShareRamp
from xds_server.decide.routing.zone_shares import OVERPROVISIONING_PERCENT
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.memo import Memo
from xds_server.translate.engine_selection import EngineSelection
from xds_server.translate.internal_listeners import engine_listener_name
from xds_server.translate.prefillers import NO_LISTS, PREFILLERS_LABEL
from xds_server.translate.priorities import PRIORITY_OVERPROVISIONING_PERCENT as TIERED_PERCENT
from xds_server.translate.priorities import LocalityId, LocalityPriorities, locality_priorities
from xds_server.translate.residency import RESERVED_LABEL_PREFIX, AllowedRegions, subset_labels
from xds_server.translate.strict_sessions import SESSION_LABEL, session_token
from xds_server.wire.assignment import AssignmentSpec, EndpointSpec, HostPort, InternalListener, LocalitySpec

_RESERVED_LABELS: Final = frozenset({PREFILLERS_LABEL, SESSION_LABEL})
"""Labels whose values are ours alone: those of an operator with these names do not count."""

ENGINE_LABEL: Final = "engine"
"""Label with the engine's name, before the operator's labels."""

HEALTH_STATUS: Final[Mapping[Health, int]] = MappingProxyType(
    {Health.HEALTHY: 1, Health.UNHEALTHY: 2, Health.DRAINING: 3}
)
"""Values of envoy.config.core.v3.HealthStatus."""


TYPICAL_IN_FLIGHT: Final = 1.5
"""Requests in flight per proxy and engine for which the weight of an engine on trial is exact."""

_ALL_PERCENT: Final = 100.0
_FINENESS: Final = 1000

_NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})

_NO_FACTORS: Final[Mapping[EngineId, float]] = MappingProxyType({})

_NO_RAMPS: Final[Mapping[EngineId, ShareRamp]] = MappingProxyType({})

_HEAVIEST: Final = 10_000
"""Largest computed weight: distinguishes engines up to a hundred times as large as others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointForm:
    """Common form of a pool's endpoints.

    With ``hop`` every engine is a listener inside the proxy that forwards to its address. ``allowed``: sets of
    regions that routes to the pool are limited to; ``adapters``: their selections by adapter. ``names``: host
    names required in engine certificates, by engine. ``hashed``: Envoy picks by hash (``affinity``), in proportion
    to weights. ``prefillers``: the list of prefill engines of each engine of a decode pool. ``strict``: routes
    keep sessions on engines.
    """

    hop: bool = False
    allowed: tuple[AllowedRegions, ...] = ()
    adapters: tuple[EngineSelection, ...] = ()
    names: Mapping[str, str] = field(default_factory=lambda: _NO_NAMES)
    hashed: bool = False
    prefillers: Mapping[EngineId, str] = field(default_factory=lambda: NO_LISTS)
    strict: bool = False


_PLAIN: Final = EndpointForm()


def load_assignment(
    pool: str,
    engines: tuple[Engine, ...],
    decisions: Decisions,
    zone: str,
    memo: Memo,
    *,
    region: str = "",
    form: EndpointForm = _PLAIN,
) -> AssignmentSpec:
    """Endpoints of a pool for callers in ``zone`` of ``region``, engines in policy order.

    Addresses must be IP addresses: host names are resolved earlier.
    """
    hop = form.hop
    in_tiers = locality_priorities(decisions, pool, engines, zone=zone, region=region)
    peers: dict[LocalityId, list[Engine]] = {}
    for engine in engines:
        peers.setdefault((engine.region, engine.zone), []).append(engine)
    by_place: dict[LocalityId, list[EndpointSpec]] = {}
    decided = decisions.pools.get(pool)
    factors = decided.weight_factors if decided is not None else _NO_FACTORS
    ramps = decided.ramps if decided is not None else _NO_RAMPS
    for place, there in peers.items():
        # Computed from all declared engines, so that weights do not change when an engine comes or goes.
        shares = [_traffic_percent(engine, decisions, ramps) for engine in there]
        equal = engine_weights(there, factors, hashed=form.hashed)
        for engine, weight in zip(there, trial_weights(equal, shares, hashed=form.hashed), strict=True):
            decision = decisions.engines.get(engine.id)
            if decision is None or not decision.gone:
                health = _health(engine, decisions)
                if health is Health.HEALTHY and in_tiers is not None and not in_tiers.serves(engine):
                    health = Health.UNHEALTHY
                name = form.names.get(engine.id.engine, "")
                endpoint = _endpoint(engine, health, weight, memo, form=form, hostname=name)
                by_place.setdefault(place, []).append(endpoint)
    if in_tiers is not None:
        return _tiered(pool, in_tiers, by_place, memo, hop=hop)
    weights = zone_weights(pool, engines, decisions, zone)
    if form.hashed and not decisions.zone_weights.keys().isdisjoint(((pool, zone), (pool, ""))):
        weights = _of_healthy(weights, by_place)
    return AssignmentSpec(
        cluster=pool,
        localities=tuple(
            _locality(pool, place, weights.get(place[1]) or None, tuple(by_place[place]), memo, hop=hop)
            for place in sorted(by_place)
        ),
        # The weights were divided by exactly the healthy share that Envoy multiplies them with.
        overprovisioning_percent=OVERPROVISIONING_PERCENT,
    )


def _tiered(
    pool: str,
    in_tiers: LocalityPriorities,
    by_place: Mapping[LocalityId, list[EndpointSpec]],
    memo: Memo,
    *,
    hop: bool,
) -> AssignmentSpec:
    """Engines in rotation by tier, then all others; priorities without gaps, which gRPC's client refuses."""
    ready, others = (
        {
            place: kept
            for place, there in sorted(by_place.items())
            if (kept := tuple([one for one in there if (one.health == HEALTH_STATUS[Health.HEALTHY]) is healthy]))
        }
        for healthy in (True, False)
    )
    levels: list[list[tuple[LocalityId, int | None]]] = [sorted(tier.items()) for tier in in_tiers.weights]
    filled = [[(at, weight, ready[at]) for at, weight in level if at in ready] for level in levels]
    filled.append([(at, None, there) for at, there in others.items()])
    return AssignmentSpec(
        cluster=pool,
        localities=tuple(
            _locality(pool, place, weight, endpoints, memo, hop=hop, priority=priority)
            for priority, level in enumerate([level for level in filled if level])
            for place, weight, endpoints in level
        ),
        overprovisioning_percent=TIERED_PERCENT,
    )


def _of_healthy(
    weights: Mapping[str, int], by_place: Mapping[LocalityId, Sequence[EndpointSpec]]
) -> Mapping[str, int]:
    """Decided weights times the healthy share of each zone, which Envoy does itself except where it hashes."""
    listed: dict[str, list[bool]] = {}
    for (_, zone), there in by_place.items():
        listed.setdefault(zone, []).extend(one.health == HEALTH_STATUS[Health.HEALTHY] for one in there)
    if all(all(healthy) for healthy in listed.values()):
        return weights
    return {
        zone: max(1, round(weight * _FINENESS * sum(healthy) / len(healthy)))
        for zone, weight in weights.items()
        if (healthy := listed.get(zone)) is not None
    }


def engine_weights(
    engines: Sequence[Engine], factors: Mapping[EngineId, float] = _NO_FACTORS, *, hashed: bool = False
) -> tuple[int, ...]:
    """Weight of each engine among its peers in a zone, in input order; all 1 if equal.

    With equal weights Envoy picks the engine with fewer requests, so all hold the same number, whatever their
    slots. With unequal weights it picks by weight / (requests in flight + 1): the requests of an engine then
    follow the square root of its weight (measured: 10:20:30:40 gives 16:23:28:33 %). Weights proportional to the
    square of the slots therefore fill engines in proportion to their slots. ``factors`` lower the weights of
    slower engines (``decide.routing.endpoint_weights``). ``hashed``: requests follow the weights themselves.
    """
    alike = len({engine.slots for engine in engines}) == 1
    declared = [engine.weight * (1 if alike else engine.slots ** (1 if hashed else 2)) for engine in engines]
    scaled = any(engine.id in factors for engine in engines)
    if alike and not scaled:
        return tuple(declared)
    fineness = _FINENESS if scaled else 1
    weights = [
        max(1, round(weight * fineness * factors.get(engine.id, 1)))
        for engine, weight in zip(engines, declared, strict=True)
    ]
    heaviest, common = max(weights), math.gcd(*weights)
    scale = min(1 / common, _HEAVIEST / heaviest)
    return tuple(max(1, round(weight * scale)) for weight in weights)


def trial_weights(weights: Sequence[int], percents: Sequence[float], *, hashed: bool = False) -> tuple[int, ...]:
    """Lower the weights of engines on trial or in slow start, to get these shares of their normal traffic.

    Otherwise the weights are unchanged. With unequal weights Envoy picks by weight / (requests in flight + 1): a
    weight lowered to 25 % gives 25 % of the traffic in an idle pool, and 50 % in a busy one. So it is
    lowered to give the wanted share where the others have ``TYPICAL_IN_FLIGHT`` each. Measured for 25 %: 14 % for
    an idle engine, 34 % in a pool with 30 in flight on each. ``hashed``: the share is the weight.
    """
    if all(percent >= _ALL_PERCENT for percent in percents):
        return tuple(weights)
    scaled = [
        max(1, round(weight * _FINENESS * (share if hashed else _weight_for(share))))
        for weight, percent in zip(weights, percents, strict=True)
        for share in (min(percent, _ALL_PERCENT) / _ALL_PERCENT,)
    ]
    common = math.gcd(*scaled)
    return tuple(weight // common for weight in scaled)


def _weight_for(share: float) -> float:
    return share * (share * TYPICAL_IN_FLIGHT + 1) / (TYPICAL_IN_FLIGHT + 1)


def zone_weights(pool: str, engines: tuple[Engine, ...], decisions: Decisions, zone: str) -> Mapping[str, int]:
    """Weight of each engine zone for callers in ``zone``; absent zones get no traffic.

    Callers from a zone without decision are shared over the engines by slots.
    """
    for caller in (zone, ""):
        decided = decisions.zone_weights.get((pool, caller))
        if decided is not None:
            return decided
    slots: dict[str, int] = {}
    for engine in engines:
        if _health(engine, decisions) is Health.HEALTHY:
            slots[engine.zone] = slots.get(engine.zone, 0) + engine.slots
    return slots


def _locality(
    pool: str,
    place: LocalityId,
    weight: int | None,
    endpoints: tuple[EndpointSpec, ...],
    memo: Memo,
    *,
    hop: bool,
    priority: int = 0,
) -> LocalitySpec:
    region, zone = place
    return memo.of(
        ("locality", pool, place, weight, hop, priority),
        (endpoints,),
        lambda: LocalitySpec(region=region, zone=zone, weight=weight, priority=priority, endpoints=endpoints),
    )


def _endpoint(
    engine: Engine,
    health: Health,
    weight: int,
    memo: Memo,
    *,
    form: EndpointForm,
    hostname: str,
) -> EndpointSpec:
    address = HostPort(host=engine.address, port=engine.port)
    hop = form.hop
    adapters = tuple([one.label for one in form.adapters if one.admits(engine, one.model)])
    inside = subset_labels(engine.region, form.allowed, adapters)
    if listed := form.prefillers.get(engine.id):
        inside = (*inside, (PREFILLERS_LABEL, listed))
    token = ((SESSION_LABEL, session_token(engine.id)),) if form.strict else ()
    # Reuse the previous object if unchanged: the encoder has its bytes cached.
    return memo.of(
        ("endpoint", engine.id, health, hop),
        (engine.address, engine.port, weight, engine.labels, inside, token, hostname),
        lambda: EndpointSpec(
            address=_listener_of(engine, address) if hop else address,
            health=HEALTH_STATUS[health],
            weight=weight,
            hostname=hostname,
            labels=((ENGINE_LABEL, engine.id.engine), *_own_labels(engine), *inside, *token),
        ),
    )


def _own_labels(engine: Engine) -> list[tuple[str, str]]:
    return sorted(
        one
        for one in engine.labels.items()
        if one[0] not in _RESERVED_LABELS and not one[0].startswith(RESERVED_LABEL_PREFIX)
    )


def _listener_of(engine: Engine, address: HostPort) -> InternalListener:
    return InternalListener(name=engine_listener_name(engine.id.pool, engine.id.engine), destination=address)


def _traffic_percent(engine: Engine, decisions: Decisions, ramps: Mapping[EngineId, ShareRamp]) -> float:
    """Percent of its normal traffic that an engine gets; ejected engines do not affect the weights of others."""
    decision = decisions.engines.get(engine.id)
    if decision is None or decision.health is not Health.HEALTHY:
        return _ALL_PERCENT
    # A paced engine has a weight factor instead.
    percent = _ALL_PERCENT if decision.paced else decision.traffic_percent
    ramp = ramps.get(engine.id)
    return percent if ramp is None else min(percent, ramp.percent)


def _health(engine: Engine, decisions: Decisions) -> Health:
    """An engine without decision is healthy, as it is without a control plane."""
    decision = decisions.engines.get(engine.id)
    return Health.HEALTHY if decision is None else decision.health
