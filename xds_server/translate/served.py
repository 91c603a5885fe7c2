"""Which part of the policies one view gets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies.model import PolicySet
from policies.route import ModelRoute
from xds_server.translate.routes import by_specificity, route_pools
from xds_server.translate.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Pools by name, and routes by port, those that are matched first in front."""

    pools: tuple[str, ...]
    routes: Mapping[int, Sequence[ModelRoute]]


def served(policies: PolicySet, view: View) -> Served:
    """Pools and routes of a view: the named pools, the routes that lead to them, and all those routes lead to.

    A route that leads to a pool which this view may not see is left out: a part of it would be another route.
    """
    ports: dict[int, list[ModelRoute]] = {}
    pools = {pool for pool in policies.pools if (not view.pools or pool in view.pools) and view.may_see((pool,))}
    for name in sorted(policies.routes):
        route = policies.routes[name]
        reached = route_pools(route)
        if (not view.pools or not view.pools.isdisjoint(reached)) and view.may_see(reached):
            pools.update(reached)
            ports.setdefault(route.spec.listener.port, []).append(route)
    return Served(
        pools=tuple(sorted(pools)), routes={port: tuple(by_specificity(ports[port])) for port in sorted(ports)}
    )
