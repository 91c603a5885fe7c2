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
from policies.tenants import Quota
from xds_server.decide.decisions import NO_PORT_PARTS, PortParts
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.pool_traffic import Proxy
from xds_server.model.view import GRPC_ROLE

MOVE_EACH_S: Final = 2.0
"""Shortest time between two divisions among the same proxies."""

FLOOR: Final = 0.01
"""Part of a quota that is divided evenly, whatever proxies ask for; those that ask for nothing leave it unused."""

UNSURE_REQUESTS: Final = 0.1
"""Requests in memory for each proxy that weigh as much as none at all: with few, the parts are nearly even."""

NEAR: Final = 0.1
"""Relative change of a part that is worth a push; parts that are nearer stay."""

SIZE_AGAIN: Final = 2.0
"""Ratio of a part to the one that its bucket was chosen by, from which it is chosen again. The next bucket may be
full, so a proxy that went back and forth would admit twice its part.
"""

SPARE: Final = 0.75
"""Part of what a tenant leaves of its quota that is divided evenly, for its next requests may come to any proxy;
with the rest each proxy may admit more than it is asked for.
"""

_Parts = Mapping[str, float]
_NO_PARTS: Final[_Parts] = MappingProxyType({})


def divided(demand: Mapping[str, float], proxies: Collection[str], *, count: int, used: float = 1.0) -> _Parts:
    """The parts of these proxies of one quota, from 0 to 1; ``demand``: their recent requests, by node id.

    ``count`` is the number of all proxies; those that are not in ``proxies`` keep an even part. ``used``: the
    ratio of what the tenant asks of these proxies to what they may admit.
    """
    count = max(count, len(proxies))
    whole = len(proxies) / count
    total = sum(demand.get(node, 0.0) for node in proxies)
    unsure = UNSURE_REQUESTS * len(proxies)
    blind = max(FLOOR, SPARE * (1 - used), unsure / (unsure + total) if unsure else 1.0)
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
        quotas = _quotas(policies, port)
        parts = {
            tenant: _kept_if_near(
                last.by_tenant.get(tenant),
                divided(
                    asked,
                    here,
                    count=count,
                    used=_used(
                        quotas.get(tenant),
                        demand.per_s[of_port, tenant],
                        demand.tokens_per_s.get((of_port, tenant), 0.0),
                    )
                    * count
                    / len(here),
                ),
            )
            for (of_port, tenant), asked in demand.by_tenant.items()
            if of_port == port and here
        }
        sized_by = {
            tenant: _sized_by(last.sized_by.get(tenant, _NO_PARTS), now, last.even)
            for tenant, now in parts.items()
        }
        found[port] = PortParts(
            proxies=here,
            count=count,
            moved_at_s=now_s,
            by_tenant=MappingProxyType(parts),
            sized_by=MappingProxyType(sized_by),
        )
    return found


def _quotas(policies: PolicySet, port: int) -> Mapping[str, Quota]:
    """By tenant; all routes of a port have the same."""
    tenants = next(
        route.spec.listener.tenants for route in policies.routes.values() if route.spec.listener.port == port
    )
    return {} if tenants is None else tenants.quotas()


def _used(quota: Quota | None, per_s: float, tokens_per_s: float) -> float:
    """Ratio of what a tenant asks for to its quota, of requests or tokens, whichever is more."""
    if quota is None:
        return 1.0
    requests = 0.0 if quota.requests is None else per_s / quota.requests
    tokens = 0.0 if quota.tokens is None else tokens_per_s / quota.tokens
    return max(requests, tokens) * quota.per.seconds


def _kept_if_near(before: _Parts | None, now: _Parts) -> _Parts:
    """The parts before, if none differs by much: a push for each request would tell proxies nothing."""
    if before is None or before.keys() != now.keys():
        return now
    if all(abs(part - before[node]) <= NEAR * before[node] for node, part in now.items()):
        return before
    return now


def _sized_by(before: _Parts, now: _Parts, even: float) -> _Parts:
    return {
        node: sized if part <= SIZE_AGAIN * (sized := before.get(node, even)) <= SIZE_AGAIN**2 * part else part
        for node, part in now.items()
    }


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
