"""Data residency: engines outside a route's regions are unreachable for it in every case.

A route with ``allowedRegions`` selects endpoints whose label lists its set of regions. Every cluster divides its
endpoints by that label, without fallback: if no endpoint has the set, Envoy replies 503. So the guarantee rests
on Envoy's configuration, and holds for retries, hedges, overflow between zones and regions, and without control
plane.

Envoy ignores a route's label selection for a cluster without subsets. So every cluster has them, limited routes
or not: a newly limited route meets a cluster that refuses unknown sets, whatever the order of updates, even if
the proxy refuses one. Measurements and alternatives: docs/adr/0019.
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
from xds_server.wire.assignment import Label

RESERVED_LABEL_PREFIX: Final = "allowed/"
"""Prefix of generated labels. Operator labels with this prefix are dropped: they could bypass residency."""

REGION_SETS_LABEL: Final = RESERVED_LABEL_PREFIX + "*"
"""Label that lists the region sets of an engine; no region can have this name."""

_INSIDE: Final = "yes"
_LB: Final = "envoy.lb"

AllowedRegions: TypeAlias = frozenset[str]
"""Regions that a route names."""


def allowed_regions(route: ModelRoute) -> AllowedRegions:
    """Regions whose engines may see the route's requests; empty: all."""
    return frozenset(route.spec.allowed_regions)


def allowed_by_pool(
    routes: Mapping[str, ModelRoute], pools: Callable[[ModelRoute], Iterable[str]]
) -> Mapping[str, tuple[AllowedRegions, ...]]:
    """Region sets that divide the engines of each pool; absent pools have none.

    ``pools``: all pools that a route can reach.
    """
    found: dict[str, set[AllowedRegions]] = {}
    for route in routes.values():
        if route.spec.allowed_regions:
            for pool in pools(route):
                found.setdefault(pool, set()).add(allowed_regions(route))
    return {pool: tuple(sorted(sets, key=set_name)) for pool, sets in found.items()}


def subset_labels(
    region: str, sets: Iterable[AllowedRegions], adapters: tuple[str, ...] = ()
) -> tuple[Label, ...]:
    """Labels of an engine in this region; an engine without a region is in no set.

    ``adapters``: names of the sets of engines with an adapter that it is in.
    """
    inside = tuple(set_name(one) for one in sets if region in one)
    if not inside and not adapters:
        return ()
    return (
        (REGION_SETS_LABEL, (*inside, *adapters)),
        *((RESERVED_LABEL_PREFIX + name, _INSIDE) for name in inside),
    )


def subset_config(sets: tuple[AllowedRegions, ...]) -> ClusterLbSubsetConfig:
    """Subset configuration of a cluster whose routes are limited to these region sets."""
    # One label per set, as selected by routes of an earlier version: such a route must not reach outside engines
    # while the cluster is already updated and the route is not.
    keys = [REGION_SETS_LABEL, *(RESERVED_LABEL_PREFIX + set_name(one) for one in sets)]
    return ClusterLbSubsetConfig(
        # For routes without a selection. An unknown set is refused.
        fallback_policy=ClusterLbSubsetConfigLbSubsetFallbackPolicy.ANY_ENDPOINT,
        subset_selectors=[
            ClusterLbSubsetConfigLbSubsetSelector(
                keys=[key],
                fallback_policy=ClusterLbSubsetConfigLbSubsetSelectorLbSubsetSelectorFallbackPolicy.NO_FALLBACK,
            )
            for key in keys
        ],
        # An engine is in each set on its list.
        list_as_any=True,
        # Regions are whole localities, so zone weights are also right within a subset.
        locality_weight_aware=True,
    )


def metadata_match(route: ModelRoute, adapter: str = "") -> Metadata | None:
    """The route's endpoint selection, with an adapter if given; None if unlimited."""
    if not route.spec.allowed_regions and not adapter:
        return None
    wanted = Struct(fields={REGION_SETS_LABEL: Value(string_value=set_name(allowed_regions(route), adapter))})
    return Metadata(filter_metadata={_LB: wanted})


def set_name(regions: AllowedRegions, adapter: str = "") -> str:
    """Name of a region set, and of its engines with an adapter; no region has a space or = in its name."""
    name = "+".join(sorted(regions))
    return f"{name} adapter={adapter}".lstrip() if adapter else name
