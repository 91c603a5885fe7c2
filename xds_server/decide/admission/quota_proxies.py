"""Proxies that divide the quotas of tenants: evenly, so that all together keep the limit.

Only Envoys that serve a route of the port count, those of other replicas too. A proxy that disconnected a moment
ago still counts: it keeps admitting with its last part.
"""

from collections import Counter

from policies.model import PolicySet
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.view import GRPC_ROLE


def quota_proxies(policies: PolicySet, proxies: ConnectedProxies) -> dict[int, int]:
    """Number of proxies of each port with tenants, at least 1; empty without tenants."""
    reached: dict[int, list[frozenset[str]]] = {}
    for route in policies.routes.values():
        if route.spec.listener.tenants is not None:
            pools = frozenset((*(share.pool for share in route.spec.pools), *route.spec.fallbacks))
            reached.setdefault(route.spec.listener.port, []).append(pools)
    if not reached:
        return {}
    kinds = {kind: count for kind, count in proxies.kinds.counts.items() if kind[0] != GRPC_ROLE}
    here: Counter[str] = Counter()
    for (role, _), count in kinds.items():
        here[role] += count
    away = sum(max(0, count - here[role]) for role, count in proxies.by_role.items() if role != GRPC_ROLE)
    return {
        port: max(
            1,
            away
            + sum(
                count
                for (_, pools), count in kinds.items()
                if not pools or any(not pools.isdisjoint(one) for one in routes)
            ),
        )
        for port, routes in reached.items()
    }
