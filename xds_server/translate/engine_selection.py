"""Which engines may serve a route: those in its regions, and for a LoRA adapter those that have it.

Every cluster divides its endpoints by the list of region sets that each engine is in (``residency``). The requests
of a route with ``adapter`` ask for an entry of that list with the adapter's name. So clusters stay as they are, a
loaded or lost adapter changes endpoints alone, and requests without an adapter see no difference.

An engine whose adapters are unknown may have each: silence takes no engine away.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from policies.model import PolicySet
from policies.route import ModelRoute
from xds_server.decide.decisions import Decisions, Health
from xds_server.model.fleet import Engine, Fleet
from xds_server.translate.residency import AllowedRegions, allowed_regions, set_name


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSelection:
    """Engines in ``regions`` that have ``adapter``, where they serve ``model``; empty ones select all.

    Pools with another model than the route's first get requests for their own model, without the adapter.
    """

    regions: AllowedRegions = frozenset()
    adapter: str = ""
    model: str = ""

    @property
    def selects_all(self) -> bool:
        """Whether every engine may serve."""
        return not self.regions and not self.adapter

    @property
    def label(self) -> str:
        """Entry in the list of each selected engine."""
        return set_name(self.regions, self.adapter)

    def admits(self, engine: Engine, model: str) -> bool:
        """Whether an engine of a pool with this model may serve."""
        return (not self.regions or engine.region in self.regions) and (
            not self.adapter or model != self.model or engine.may_have(self.adapter)
        )


EVERY_ENGINE: Final = EngineSelection()


def engine_selection(route: ModelRoute, policies: PolicySet) -> EngineSelection:
    """The engines that may serve this route."""
    adapter = route.spec.adapter_name
    model = policies.pools[route.spec.pools[0].pool].spec.model if adapter else ""
    return EngineSelection(regions=allowed_regions(route), adapter=adapter, model=model)


def adapters_by_pool(policies: PolicySet) -> Mapping[str, tuple[EngineSelection, ...]]:
    """The selections by adapter of routes to each pool; pools without are absent."""
    found: dict[str, set[EngineSelection]] = {}
    for route in policies.routes.values():
        if route.spec.adapter_name:
            selected = engine_selection(route, policies)
            chosen = [replace(selected, adapter=name) for name in route.spec.adapter_names]
            for pool in (*(share.pool for share in route.spec.pools), *route.spec.fallbacks):
                if policies.pools[pool].spec.model == selected.model:
                    found.setdefault(pool, set()).update(chosen)
    return {pool: tuple(sorted(some, key=lambda one: one.label)) for pool, some in found.items()}


def lost_pools(
    selected: EngineSelection, pools: Iterable[str], policies: PolicySet, fleet: Fleet, decisions: Decisions
) -> frozenset[str]:
    """Those of these pools without an engine in rotation that the selection admits."""
    return frozenset(
        pool
        for pool in pools
        if not any(
            selected.admits(engine, policies.pools[pool].spec.model)
            and ((decision := decisions.engines.get(engine.id)) is None or decision.health is Health.HEALTHY)
            for engine in fleet.pools.get(pool, ())
        )
    )


def canary_is_served(route: ModelRoute, policies: PolicySet, fleet: Fleet, decisions: Decisions) -> bool:
    """Whether each pool with the model of the route has an engine in rotation with its canary."""
    if route.spec.adapter_canary is None:
        return False
    selected = replace(engine_selection(route, policies), adapter=route.spec.adapter_canary.name)
    pools = (*(share.pool for share in route.spec.pools), *route.spec.fallbacks)
    return not lost_pools(selected, pools, policies, fleet, decisions)


def nobody_left(selected: EngineSelection, pools: Iterable[str], lost: frozenset[str]) -> bool:
    """Whether a route that selects engines has none of them in rotation in these pools.

    ``lost``: pools without one.
    """
    return not selected.selects_all and lost.issuperset(pools)
