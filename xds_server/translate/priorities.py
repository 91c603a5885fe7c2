"""Regions as Envoy priorities: the order in which regions are used when engines are missing.

Envoy sends traffic beyond the healthy share of a priority to the next one, unconditionally. So a tier contains
only engines in rotation; all others are in a last tier, where Envoy keeps counting their requests without
shifting traffic. Overflow to other regions is decided by us (``routing.regions``) and expressed by weights in the
first tier. Lower tiers get nothing until those above are empty, which Envoy detects itself. Measurements and
alternatives: docs/adr/0019.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from xds_server.decide.decisions import Decisions, Health, PoolDecisions
from xds_server.decide.routing.region_shares import region_of
from xds_server.decide.routing.zone_shares import WEIGHT_SUM
from xds_server.model.fleet import Engine, EngineId

PRIORITY_OVERPROVISIONING_PERCENT: Final = 200
"""A tier counts as whole while half of its engines are healthy. So Envoy's own short ejections, at most half of a
pool unless the policy has another capacity floor, move nothing to another region.
"""

LocalityId: TypeAlias = tuple[str, str]
"""Region and zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalityPriorities:
    """Weights by locality, first tier first; other localities and ``excluded`` engines get nothing."""

    weights: tuple[Mapping[LocalityId, int], ...]
    excluded: frozenset[EngineId]

    def serves(self, engine: Engine) -> bool:
        """Whether the engine serves these callers while in rotation.

        Envoy would use endpoints without weight once no other endpoint of the tier has any, so they are not
        listed.
        """
        place = engine.region, engine.zone
        return engine.id not in self.excluded and any(place in tier for tier in self.weights)


def locality_priorities(
    decisions: Decisions, pool: str, engines: Sequence[Engine], *, zone: str, region: str
) -> LocalityPriorities | None:
    """Tiers of a pool for callers from here; None if regions make no difference."""
    decided = decisions.pools.get(pool)
    if decided is None or not decided.regions:
        return None
    own = region_of(region, zone, engines)
    shares = decided.regions.get(own) or decided.regions[""]
    if not shares.in_force:
        return None
    left = _share_in(engines, decided, shares.excluded)
    return LocalityPriorities(
        weights=tuple(
            _weights(decided, tier, own=own, zone=zone, left=left) for tier in (shares.shares, *shares.failover)
        ),
        excluded=shares.excluded,
    )


def _weights(
    decided: PoolDecisions, tier: Mapping[str, float], *, own: str, zone: str, left: Mapping[LocalityId, float]
) -> dict[LocalityId, int]:
    raw: dict[LocalityId, float] = {}
    for region, share in tier.items():
        known = decided.region_zones.get(region, {})
        of_zones = known.get(zone if region == own else "") or known.get("")
        weights = {} if of_zones is None else of_zones.weights
        there = {(region, one): weight * left.get((region, one), 1.0) for one, weight in weights.items()}
        whole = sum(there.values()) or 1.0
        raw |= {
            place: weight * share * (WEIGHT_SUM / whole if len(tier) > 1 else 1) for place, weight in there.items()
        }
    return {place: max(1, round(weight)) for place, weight in raw.items() if weight > 0}


def _share_in(
    engines: Iterable[Engine], decided: PoolDecisions, barred: frozenset[EngineId]
) -> dict[LocalityId, float]:
    """By locality, the share of engines in rotation that may serve; without localities that have no barred
    engine.
    """
    if not barred:
        return {}
    whole: dict[LocalityId, int] = {}
    may: dict[LocalityId, int] = {}
    for engine in engines:
        decision = decided.engines.get(engine.id)
        if decision is not None and decision.health is Health.HEALTHY:
            place = engine.region, engine.zone
            whole[place] = whole.get(place, 0) + 1
            may[place] = may.get(place, 0) + (engine.id not in barred)
    return {place: may[place] / count for place, count in whole.items() if may[place] < count}
