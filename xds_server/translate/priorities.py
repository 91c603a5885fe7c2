"""Regions as Envoy's priorities: who is asked first, and who when nobody there is left.

Envoy sends to a lower priority what does not fit the healthy share of those above, whether anybody wants that or
not. So a tier has only engines that are in: those that are out stand in a last one, where Envoy goes on counting
what they hold, and shift nothing. What goes to another region because of a shortage is decided
(``routing.regions``) and stands in the first tier by weight. Lower tiers get nothing until the ones above have
nobody, which Envoy sees by itself. Measured, with alternatives: docs/adr/0019.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from xds_server.decide.decisions import Decisions, Health, PoolDecisions
from xds_server.decide.routing.region_shares import region_of
from xds_server.decide.routing.zone_shares import WEIGHT_SUM
from xds_server.model.fleet import Engine, EngineId

PRIORITY_OVERPROVISIONING_PERCENT: Final = 200
"""A tier counts as whole while half of its engines are. What Envoy ejects by itself for a second or two, at most
half of a pool unless the policy has another capacity floor, then moves nothing to another region."""

LocalityId: TypeAlias = tuple[str, str]
"""Region and zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalityPriorities:
    """Weights by place, the first tier first; a place that is in none gets nothing, nor do ``excluded``
    engines.
    """

    weights: tuple[Mapping[LocalityId, int], ...]
    excluded: frozenset[EngineId]

    def serves(self, engine: Engine) -> bool:
        """Whether the engine takes requests of these callers while it is in.

        What a tier lists without a weight, Envoy would use once nothing in that tier has any; so nothing is.
        """
        place = engine.region, engine.zone
        return engine.id not in self.excluded and any(place in tier for tier in self.weights)


def locality_priorities(
    decisions: Decisions, pool: str, engines: Sequence[Engine], *, zone: str, region: str
) -> LocalityPriorities | None:
    """The tiers of a pool for callers from here; None where regions make no difference."""
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
    """By place, the share of engines that are in which may serve; places without barred engines are left out."""
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
