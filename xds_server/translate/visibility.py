"""Part of the policies that is visible in one view."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies.model import PolicySet
from policies.route import ModelRoute
from xds_server.model.memo import Memo
from xds_server.model.view import View
from xds_server.translate.route_configuration import by_specificity, route_pools


@dataclass(frozen=True, slots=True, kw_only=True)
class VisiblePolicies:
    """Pools by name, and routes by port in matching order."""

    pools: tuple[str, ...]
    routes: Mapping[int, Sequence[ModelRoute]]


def visible_policies(policies: PolicySet, view: View, memo: Memo | None = None) -> VisiblePolicies:
    """Visible pools and routes: the named pools, routes to them, and all pools of those routes.

    A route to an invisible pool is omitted: part of it would be a different route.
    """
    return (memo or Memo()).identical(("visible", view), (policies,), lambda: _visible(policies, view))


def _visible(policies: PolicySet, view: View) -> VisiblePolicies:
    ports: dict[int, list[ModelRoute]] = {}
    pools = {pool for pool in policies.pools if (not view.pools or pool in view.pools) and view.may_see((pool,))}
    for name in sorted(policies.routes):
        route = policies.routes[name]
        reached = route_pools(route)
        prefill = route.spec.prefill
        seen = reached if prefill is None else (*reached, prefill.pool)
        if (not view.pools or not view.pools.isdisjoint(reached)) and view.may_see(seen):
            pools.update(reached)
            ports.setdefault(route.spec.listener.port, []).append(route)
    return VisiblePolicies(
        pools=tuple(sorted(pools)), routes={port: tuple(by_specificity(ports[port])) for port in sorted(ports)}
    )
