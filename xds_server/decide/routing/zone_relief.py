"""What engines of a pool can do for the callers of others: the arbitration asks before it empties a zone.

Zones of another region help, too, where the policy lets regions help each other: with the revisions that may take
over, and never for a route that its ``allowedRegions`` keep at home. In active-standby one region serves all
callers, so only its zones help each other.
"""

from collections.abc import Collection, Mapping, Sequence

from policies.resilience import ResilienceSpec, Serving
from xds_server.decide.decision_memory import PoolMemory
from xds_server.decide.ejection.arbitration import ZoneRelief
from xds_server.decide.routing.region_shares import excluded_engines, revisions_by_region
from xds_server.model.fleet import Engine, EngineId


def zone_relief(
    resilience: ResilienceSpec,
    engines: Sequence[Engine],
    residency: Collection[frozenset[str]],
    before: PoolMemory,
    now_s: float,
) -> ZoneRelief | None:
    """As of the last round; None if callers may not leave their zone, one of several, or their demand is unknown.

    ``residency``: the sets of regions that routes to the pool are limited to.
    """
    zones, admission = resilience.zones, before.admission
    crossing = zones.max_cross_zone_percent >= 100 and (zones.spill or not zones.prefer_local)
    if admission is None or not admission.demand:
        return None
    several = len({(engine.region, engine.zone) for engine in engines}) > 1
    if several and (not crossing or resilience.shadowed(zones.mode)):
        return None
    return ZoneRelief(
        per_s={key: one.per_s for key, one in before.capacity.capacities.items()},
        asked_per_s=sum(one.per_s for one in admission.demand.values()),
        apart=_engines_apart(resilience, engines, residency, before, now_s),
    )


def _engines_apart(
    resilience: ResilienceSpec,
    engines: Sequence[Engine],
    residency: Collection[frozenset[str]],
    before: PoolMemory,
    now_s: float,
) -> Mapping[str, frozenset[EngineId]]:
    """By region: the engines that may not serve all of its callers; absent where all may."""
    regions = {engine.region for engine in engines}
    if len(regions) < 2:
        return {}
    policy = resilience.regions
    alone = resilience.shadowed(policy.mode) or policy.serving is Serving.ACTIVE_STANDBY
    revisions = revisions_by_region(engines, before.regions.revisions, now_s)
    apart = {}
    for home in regions:
        kept_in = [allowed for allowed in residency if home in allowed]
        apart[home] = excluded_engines(engines, home, revisions, policy) | {
            engine.id
            for engine in engines
            if engine.region != home and (alone or any(engine.region not in allowed for allowed in kept_in))
        }
    return apart
