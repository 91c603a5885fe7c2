"""Where requests may go: engines outside of a route's regions are out of its reach, whatever else happens.

A route with ``allowedRegions`` asks for endpoints on whose list its set of regions stands. Every cluster divides
its endpoints by that list, and has nothing to fall back on where none has the set: Envoy then answers 503. So the
promise rests on what Envoy holds, and holds for retries, hedges, spills between zones and regions, and while there
is no control plane.

Envoy ignores what a route asks of labels at a cluster that does not divide by them. So every cluster does, from
the beginning and whether or not a route is bound: a route that becomes bound meets a cluster that refuses what it
does not know, in whatever order a proxy is told, and also where it refuses to be told. Measured, with
alternatives: docs/adr/0019.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from envoy_data_plane.envoy.config.cluster.v3 import (
    ClusterLbSubsetConfig,
    ClusterLbSubsetConfigLbSubsetFallbackPolicy,
    ClusterLbSubsetConfigLbSubsetSelector,
    ClusterLbSubsetConfigLbSubsetSelectorLbSubsetSelectorFallbackPolicy,
)
from envoy_data_plane.envoy.config.core.v3 import Metadata
from envoy_data_plane.google.protobuf import Struct, Value

from policies.route import ModelRoute
from xds_server.decide.decisions import Decisions, Health
from xds_server.model.fleet import Fleet
from xds_server.wire.assignment import Label

RESERVED_LABEL_PREFIX: Final = "allowed/"
"""What labels made here begin with. An operator's label of such a name is not passed on: it could be a way in."""

REGION_SETS_LABEL: Final = RESERVED_LABEL_PREFIX + "*"
"""The label that lists the sets of regions an engine is in; no region has such a name."""

_INSIDE: Final = "yes"
_LB: Final = "envoy.lb"

AllowedRegions: TypeAlias = frozenset[str]
"""Regions that a route names."""


def allowed_regions(route: ModelRoute) -> AllowedRegions:
    """The regions whose engines may see the route's requests; empty: all."""
    return frozenset(route.spec.allowed_regions)


def allowed_by_pool(
    routes: Mapping[str, ModelRoute], pools: Callable[[ModelRoute], Iterable[str]]
) -> Mapping[str, tuple[AllowedRegions, ...]]:
    """The sets of regions by which engines of a pool are told apart; a pool that is not in it has none.

    ``pools`` are all that a route can reach.
    """
    found: dict[str, set[AllowedRegions]] = {}
    for route in routes.values():
        if route.spec.allowed_regions:
            for pool in pools(route):
                found.setdefault(pool, set()).add(allowed_regions(route))
    return {pool: tuple(sorted(sets, key=_name)) for pool, sets in found.items()}


def subset_labels(region: str, sets: Iterable[AllowedRegions]) -> tuple[Label, ...]:
    """The labels of an engine in this region; one without a region is in no set."""
    inside = tuple(_name(one) for one in sets if region in one)
    if not inside:
        return ()
    return ((REGION_SETS_LABEL, inside), *((RESERVED_LABEL_PREFIX + name, _INSIDE) for name in inside))


def subset_config(sets: tuple[AllowedRegions, ...]) -> ClusterLbSubsetConfig:
    """How a cluster divides its endpoints, where routes to it are bound to these sets of regions."""
    # By a label for each set: what routes asked for that a version before this one made. Such a route must find
    # nobody outside either while this cluster has come already and the route has not.
    keys = [REGION_SETS_LABEL, *(RESERVED_LABEL_PREFIX + _name(one) for one in sets)]
    return ClusterLbSubsetConfig(
        # For routes that ask for nothing. What a selector is asked for and does not have is refused.
        fallback_policy=ClusterLbSubsetConfigLbSubsetFallbackPolicy.ANY_ENDPOINT,
        subset_selectors=[
            ClusterLbSubsetConfigLbSubsetSelector(
                keys=[key],
                fallback_policy=ClusterLbSubsetConfigLbSubsetSelectorLbSubsetSelectorFallbackPolicy.NO_FALLBACK,
            )
            for key in keys
        ],
        # An engine is in as many sets as its list names.
        list_as_any=True,
        # Regions are whole localities, so a zone's weight is as right within a subset as without.
        locality_weight_aware=True,
    )


def metadata_match(route: ModelRoute) -> Metadata | None:
    """What the route asks of endpoints; None where it may go anywhere."""
    if not route.spec.allowed_regions:
        return None
    wanted = Struct(fields={REGION_SETS_LABEL: Value(string_value=_name(allowed_regions(route)))})
    return Metadata(filter_metadata={_LB: wanted})


def residency_unavailable(route: ModelRoute, pools: Iterable[str], fleet: Fleet, decisions: Decisions) -> bool:
    """Whether the route names regions, and no engine of these pools there takes requests."""
    inside = allowed_regions(route)
    return bool(inside) and not any(
        engine.region in inside
        and ((decision := decisions.engines.get(engine.id)) is None or decision.health is Health.HEALTHY)
        for pool in pools
        for engine in fleet.pools.get(pool, ())
    )


def _name(regions: AllowedRegions) -> str:
    return "+".join(sorted(regions))
