"""Affinity: the key of a request, and a hash table of engines in each cluster whose routes have one.

Envoy's Maglev table has each engine in rotation as often as its weight asks for, and a key belongs to one of its
entries. When an engine leaves, nearly only its own keys move. An engine with more in flight than ``1 + slack``
times its share is passed over. A request without a key gets a random entry, under the same bound.

Measurements and alternatives: docs/adr/0028-affinity.md.
"""

import math
from collections.abc import Iterable, Mapping

from envoy_data_plane.envoy.config.cluster.v3 import (
    ClusterCommonLbConfigConsistentHashingLbConfig,
)
from envoy_data_plane.envoy.config.route.v3 import (
    RouteActionHashPolicy,
    RouteActionHashPolicyCookie,
    RouteActionHashPolicyFilterState,
    RouteActionHashPolicyHeader,
)

from policies.route import ModelRoute
from xds_server.translate.envoy_values import seconds
from xds_server.translate.prompt_prefix import prefix_state


def slack_by_pool(routes: Mapping[str, ModelRoute]) -> Mapping[str, float]:
    """The slack of each target pool of routes with soft affinity, in percent; the smallest of its routes'.

    Fallbacks keep least-request: they serve for a short time, and all of another pool's requests at once.
    """
    found: dict[str, float] = {}
    for route in routes.values():
        affinity = route.spec.affinity
        if affinity is not None and not affinity.is_strict:
            for share in route.spec.pools:
                found[share.pool] = min(found.get(share.pool, math.inf), affinity.slack_percent)
    return found


def prefix_lengths(routes: Iterable[ModelRoute]) -> tuple[int, ...]:
    """Lengths of the prompt that are hashed on a port with these routes, ascending."""
    return tuple(
        sorted(
            {
                route.spec.affinity.prefix.characters
                for route in routes
                if route.spec.affinity is not None and route.spec.affinity.prefix is not None
            }
        )
    )


def bounded_load(slack_percent: float) -> ClusterCommonLbConfigConsistentHashingLbConfig:
    """The bound above which an engine is passed over."""
    return ClusterCommonLbConfigConsistentHashingLbConfig(hash_balance_factor=100 + round(slack_percent))


def hash_policy(route: ModelRoute) -> list[RouteActionHashPolicy]:
    """The key of the route's requests; empty without soft affinity."""
    affinity = route.spec.affinity
    if affinity is None or affinity.is_strict:
        return []
    if affinity.cookie is not None:
        ttl_s = affinity.cookie.ttl
        return [
            RouteActionHashPolicy(
                cookie=RouteActionHashPolicyCookie(
                    name=affinity.cookie.name,
                    ttl=None if ttl_s is None else seconds(ttl_s),
                    path="" if ttl_s is None else affinity.cookie.path,
                )
            )
        ]
    if affinity.prefix is not None:
        key = prefix_state(affinity.prefix.characters)
        return [RouteActionHashPolicy(filter_state=RouteActionHashPolicyFilterState(key=key))]
    tenants = route.spec.listener.tenants
    header = tenants.header if affinity.tenant and tenants is not None else affinity.header
    return [RouteActionHashPolicy(header=RouteActionHashPolicyHeader(header_name=header or ""))]
