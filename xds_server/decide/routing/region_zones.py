"""Regions first, then the zones of each: the two decisions on where a pool's requests go, joined.

Zones share within a region what the region gets, by the same rule as in a pool that is all in one. Engines that
are out do not count among them: where regions are in force Envoy finds those in a tier of their own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from policies.resilience import ResilienceSpec
from xds_server.decide.decisions import Capacity, EngineDecision, Health, PoolDecisions, ZoneShares
from xds_server.decide.regional import RegionRevisions, RegionShares
from xds_server.decide.remembered import Demand
from xds_server.decide.routing.regions import region_shares, regions_by_node, revisions_by_region
from xds_server.decide.routing.zones import zone_shares
from xds_server.fleet import Engine, EngineId
from xds_server.fleet.traffic import Proxy


@dataclass(frozen=True, slots=True, kw_only=True)
class Regional:
    """``shares`` by the region of callers, ``zones`` by region and calling zone, ``revisions`` by region."""

    shares: Mapping[str, RegionShares] = field(default_factory=dict)
    zones: Mapping[str, Mapping[str, ZoneShares]] = field(default_factory=dict)
    revisions: Mapping[str, RegionRevisions] = field(default_factory=dict)


def regional(
    engines: Sequence[Engine],
    decisions: Mapping[EngineId, EngineDecision],
    resilience: ResilienceSpec,
    *,
    capacities: Mapping[EngineId, Capacity],
    demand: Mapping[str, Demand],
    proxies: Mapping[str, Proxy],
    calling_zones: frozenset[str],
    before: PoolDecisions,
    picked_at_s: float = -math.inf,
    now_s: float,
) -> Regional:
    """Who serves the callers of each region, and in which zones; only revisions where all engines are in one."""
    revisions = revisions_by_region(engines, before.revisions, now_s)
    if len(revisions) < 2:
        return Regional(revisions=revisions)
    regions = regions_by_node(proxies, engines)
    shares = region_shares(
        engines,
        decisions,
        resilience.regions,
        capacities=capacities,
        demand=demand,
        regions=regions,
        revisions=revisions,
        shadow=resilience.shadowed(resilience.regions.mode),
        previous=before.regions,
        now_s=now_s,
    )
    zones = {}
    for region in revisions:
        there = [one for one in engines if one.region == region and decisions[one.id].health is Health.HEALTHY]
        here = {node: proxy for node, proxy in proxies.items() if regions[node] == region}
        own_zones = {engine.zone for engine in engines if engine.region == region}
        zones[region] = zone_shares(
            there,
            decisions,
            resilience.zones,
            callers={proxy.zone for proxy in here.values()} | (calling_zones & own_zones),
            capacities=capacities,
            demand=demand,
            proxies=here,
            shadow=resilience.shadowed(resilience.zones.mode),
            previous=before.region_zones.get(region, {}),
            picked_at_s=picked_at_s,
            now_s=now_s,
        )
    return Regional(shares=shares, zones=zones, revisions=revisions)
