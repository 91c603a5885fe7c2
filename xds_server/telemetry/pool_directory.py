"""Maps addresses to engines and route names to requests: the policies, as telemetry needs them.

Access logs and load reports have clusters, addresses and route names. A cluster is named after its pool, a route
``<ModelRoute>/<kind>``; other clusters and routes are not ours and are ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from policies.model import PolicySet
from policies.objectives import Objective
from policies.route import PriorityClass
from policies.tenants import BYTES_PER_TOKEN

INTERNAL_PREFIX: Final = "engine/"
"""Internal listeners are named ``engine/<pool>/<engine>`` (``translate.hops``)."""

STREAMING: Final = "streaming"
"""The kind of a route whose answers are streamed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """A pool: its engines by address, by listener, by zone; the statuses that count; its usual class.

    ``fewest``: number of engines of its smallest zone. ``gpus_per_slot`` is by engine, ``routes`` are
    those that may send it requests; ``objectives`` judge all of these. ``prefilled``: by engines of another pool.
    """

    name: str
    at: Mapping[tuple[str, int], str]
    behind: Mapping[str, str]
    by_zone: Mapping[str, tuple[str, ...]]
    zone_of: Mapping[str, str]
    window_calls: int
    count_statuses: frozenset[int]
    fewest: int
    hedged: bool
    priority: PriorityClass
    gpus_per_slot: Mapping[str, float] = field(default_factory=dict)
    routes: Mapping[str, "RouteFacts"] = field(default_factory=dict)
    objectives: tuple[Objective, ...] = ()
    prefilled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteFacts:
    """An Envoy route: its ModelRoute, pool of refused requests, class, whether it streams, and objectives.

    ``prefill_above_bytes``: the size of bodies above which it names prefill engines; None: for none.
    """

    name: str
    pool: str
    priority: PriorityClass
    streaming: bool
    objectives: tuple[Objective, ...] = ()
    prefill_above_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDirectory:
    """All pools, and the routes by ModelRoute name: as matched, and for streams. ``size``: pools and engines."""

    pools: Mapping[str, PoolFacts]
    routes: Mapping[str, RouteFacts]
    streams: Mapping[str, RouteFacts]
    size: int = 0

    def route(self, name: str) -> RouteFacts | None:
        """The Envoy route of this name; None if it is not ours."""
        model_route, _, kind = name.partition("/")
        return (self.streams if kind.startswith(STREAMING) else self.routes).get(model_route)


EMPTY_DIRECTORY: Final = PoolDirectory(
    pools=MappingProxyType({}), routes=MappingProxyType({}), streams=MappingProxyType({})
)


def build_directory(policies: PolicySet, addresses: Mapping[str, str]) -> PoolDirectory:
    """The directory of these policies; ``addresses`` are the IP addresses of host names."""
    routes = {
        name: RouteFacts(
            name=name,
            pool=route.spec.pools[0].pool,
            priority=route.spec.priority,
            streaming=bool(route.spec.match.stream),
            objectives=tuple(route.spec.objectives.all()),
            prefill_above_bytes=None
            if route.spec.prefill is None
            else float(BYTES_PER_TOKEN * (route.spec.prefill.tokens_above or 0)),
        )
        for name, route in policies.routes.items()
    }
    return PoolDirectory(
        pools=MappingProxyType({name: _pool(policies, name, addresses, routes) for name in policies.pools}),
        routes=MappingProxyType(routes),
        streams=MappingProxyType({name: replace(route, streaming=True) for name, route in routes.items()}),
        size=len(policies.pools) + sum(len(one.spec.endpoints) for one in policies.pools.values()),
    )


def _pool(
    policies: PolicySet, name: str, addresses: Mapping[str, str], known: Mapping[str, RouteFacts]
) -> PoolFacts:
    spec = policies.effective[name]
    endpoints = policies.pools[name].spec.endpoints
    routes = {
        route_name: known[route_name]
        for route_name, route in policies.routes.items()
        if name in {*route.spec.fallbacks, *(share.pool for share in route.spec.pools)}
    }
    zones: dict[str, list[str]] = {}
    for one in endpoints:
        zones.setdefault(one.zone, []).append(one.name)
    return PoolFacts(
        name=name,
        at=MappingProxyType({(addresses.get(one.address, one.address), one.port): one.name for one in endpoints}),
        behind=MappingProxyType({f"{INTERNAL_PREFIX}{name}/{one.name}": one.name for one in endpoints}),
        by_zone=MappingProxyType({zone: tuple(names) for zone, names in zones.items()}),
        zone_of=MappingProxyType({one.name: one.zone for one in endpoints}),
        window_calls=spec.breaker.window_calls,
        count_statuses=frozenset(spec.breaker.count_statuses),
        fewest=min((len(names) for names in zones.values()), default=0),
        hedged=spec.hedging.enabled,
        gpus_per_slot=MappingProxyType(
            {one.name: one.gpus / (one.slots or policies.pools[name].spec.slots_per_engine) for one in endpoints}
        ),
        priority=PriorityClass.BATCH
        if {one.priority for one in routes.values()} == {PriorityClass.BATCH}
        else PriorityClass.INTERACTIVE,
        routes=MappingProxyType(routes),
        objectives=tuple(policies.pools[name].spec.objectives.all()),
        prefilled=any(
            route.spec.prefill is not None and any(share.pool == name for share in route.spec.pools)
            for route in policies.routes.values()
        ),
    )
