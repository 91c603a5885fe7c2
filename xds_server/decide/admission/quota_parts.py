"""Parts of tenants' quotas by use: a proxy's part of a tenant's quota follows what that tenant asks of it.

The parts of a tenant add up to the whole quota at most. A proxy without requests of a tenant keeps a little, so
that the first request of a newcomer is served; few requests say little, so the parts are nearly even then. Proxies
whose requests are not known here, of other replicas or gone a moment ago, keep an even part.

Measurements and alternatives: docs/adr/0053-quotas-divided-by-use.md.
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from policies.model import PolicySet
from xds_server.decide.decisions import NO_PORT_PARTS, PortParts
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.pool_traffic import Proxy
from xds_server.model.view import GRPC_ROLE

MOVE_EACH_S: Final = 2.0
"""Shortest time between two divisions among the same proxies."""

FLOOR: Final = 0.01
"""Part of a quota that is divided evenly, whatever proxies ask for; those that ask for nothing leave it unused."""

UNSURE_REQUESTS: Final = 0.25
"""Requests in memory that weigh as much as none at all: with few, the parts are nearly even."""

NEAR: Final = 0.1
"""Relative change of a part that is worth a push; parts that are nearer stay."""

_Parts = Mapping[str, float]


def divided(demand: Mapping[str, float], proxies: Collection[str], *, count: int) -> _Parts:
    """The parts of these proxies of one quota, from 0 to 1; ``demand``: their recent requests, by node id.

    ``count`` is the number of all proxies; those that are not in ``proxies`` keep an even part.
    """
    count = max(count, len(proxies))
    whole = len(proxies) / count
    total = sum(demand.get(node, 0.0) for node in proxies)
    blind = max(FLOOR, UNSURE_REQUESTS / (UNSURE_REQUESTS + total))
    evenly = whole * blind / max(1, len(proxies))
    by_use = whole * (1 - blind) / total if total else 0.0
    return {node: evenly + by_use * demand.get(node, 0.0) for node in proxies}


def quota_parts(
    policies: PolicySet,
    counts: Mapping[int, int],
    proxies: ConnectedProxies,
    before: Mapping[int, PortParts],
    now_s: float,
) -> Mapping[int, PortParts]:
    """The division of each port with tenants; ``counts``: the number of its proxies, ``before``: the last one."""
    found, demand = {}, proxies.demand
    for port, count in counts.items():
        here = _serving(policies, port, (proxies.by_node[one] for one in demand.nodes if one in proxies.by_node))
        last = before.get(port, NO_PORT_PARTS)
        same = last.proxies == here and last.count == count
        if same and now_s < last.moved_at_s + MOVE_EACH_S:
            found[port] = last
            continue
        parts = {
            tenant: _kept_if_near(last.by_tenant.get(tenant), divided(asked, here, count=count))
            for (of_port, tenant), asked in demand.by_tenant.items()
            if of_port == port and here
        }
        found[port] = PortParts(proxies=here, count=count, moved_at_s=now_s, by_tenant=MappingProxyType(parts))
    return found


def _kept_if_near(before: _Parts | None, now: _Parts) -> _Parts:
    """The parts before, if none differs by much: a push for each request would tell proxies nothing."""
    if before is None or before.keys() != now.keys():
        return now
    if all(abs(part - before[node]) <= NEAR * before[node] for node, part in now.items()):
        return before
    return now


def _serving(policies: PolicySet, port: int, proxies: Iterable[Proxy]) -> tuple[str, ...]:
    """Node ids of the Envoys among these that serve a route of the port."""
    routes = [
        frozenset((*(share.pool for share in route.spec.pools), *route.spec.fallbacks))
        for route in policies.routes.values()
        if route.spec.listener.port == port
    ]
    return tuple(
        sorted(
            one.node
            for one in proxies
            if one.role != GRPC_ROLE
            and (not one.pools or any(not one.pools.isdisjoint(reached) for reached in routes))
        )
    )
