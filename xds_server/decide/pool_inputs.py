"""Values that the steps of a round share: a pool's policy, engines, proxies and callers."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from policies.pool import EnginePoolSpec
from policies.resilience import ResilienceSpec
from policies.route import PriorityClass
from xds_server.decide.decision_memory import Demand
from xds_server.decide.decisions import EngineCapacity, EngineDecision, Health, ShareRamp
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pool_traffic import NO_DEMAND, Proxy, TenantDemand, TenantId
from xds_server.model.view import GATEWAY

_NO_PROXIES: Final[Mapping[str, Proxy]] = MappingProxyType({})  # one object: decisions compare it by identity


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRule:
    """What the policy says of one tenant's share of a pool. ``enforced`` is False in shadow mode."""

    weight: float
    min_percent: float
    enforced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPolicy:
    """A pool's policies, and of the routes that lead to it: their priority classes, and the sets of regions that
    limit some of them.

    ``move_within_s``: in which sessions leave a draining engine; 0 without strict affinity. ``return_after_s``:
    how long a returned engine is healthy before it has its keys again; 0 without soft affinity. ``deadlines``: a
    route that takes its limits from the pool reads deadlines of callers. ``shares``: tenants with fair shares.
    ``compares_prefill``: prefill engines are named to most requests only while they are faster.
    """

    spec: EnginePoolSpec
    resilience: ResilienceSpec
    classes: frozenset[PriorityClass]
    residency: frozenset[frozenset[str]] = frozenset()
    move_within_s: float = 0.0
    return_after_s: float = 0.0
    deadlines: bool = False
    shares: Mapping[TenantId, ShareRule] = field(default_factory=dict)
    compares_prefill: bool = False


def able_per_s(decision: EngineDecision, capacity: EngineCapacity) -> float:
    """Answers per second that an engine yields: its capacity by its share; 0 out of rotation.

    The one measure of ability: limits, zones, regions and fallbacks add it up.
    """
    if decision.health is not Health.HEALTHY:
        return 0.0
    return capacity.per_s * decision.traffic_percent / 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEngines:
    """A pool's engines, the decision on each, their capacity, those in slow start, and their requests in flight.

    ``in_flight`` is by engine name; absent where no proxy reports it.
    """

    engines: Sequence[Engine]
    decisions: Mapping[EngineId, EngineDecision]
    capacities: Mapping[EngineId, EngineCapacity]
    ramps: Mapping[EngineId, ShareRamp] = field(default_factory=dict)
    in_flight: Mapping[str, int] = field(default_factory=dict)

    def waiting(self, engine: EngineId) -> float:
        """Requests in flight to an engine beyond its slots."""
        return max(0.0, self.in_flight.get(engine.engine, 0) - self.capacities[engine].slots)

    def able_per_s(self, engine: EngineId) -> float:
        """Answers per second that an engine yields now."""
        return able_per_s(self.decisions[engine], self.capacities[engine])

    def ramp_ratio(self, engine: EngineId) -> float:
        """The part, 0..1, of its share that an engine gets in slow start; 1 for all others."""
        ramp = self.ramps.get(engine)
        return 1.0 if ramp is None else ramp.percent / 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyKinds:
    """What decisions ask of proxies as a whole.

    ``gateways`` are by node id, ``counts`` by role and pools. ``places`` are regions, as stated, and zones.
    """

    gateways: Mapping[str, Proxy]
    counts: Mapping[tuple[str, frozenset[str]], int]
    places: frozenset[tuple[str, str]]


_NO_KINDS: Final = ProxyKinds(gateways=_NO_PROXIES, counts={}, places=frozenset())


def proxy_kinds(proxies: Mapping[str, Proxy]) -> ProxyKinds:
    """The kinds of these proxies, from nothing but them."""
    return ProxyKinds(
        gateways=MappingProxyType({node: one for node, one in proxies.items() if one.role == GATEWAY}),
        counts=Counter((one.role, one.pools) for one in proxies.values()),
        places=frozenset((one.region, one.zone) for one in proxies.values()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedProxies:
    """The proxies that share the pools, by node id, and their ``kinds``.

    ``by_role`` and ``calling_zones`` also count proxies that disconnected a moment ago and may return.
    ``demand``: what tenants ask of those that are connected to this replica.
    """

    by_node: Mapping[str, Proxy] = field(default_factory=lambda: _NO_PROXIES)
    by_role: Mapping[str, int] = field(default_factory=dict)
    calling_zones: frozenset[str] = frozenset()
    kinds: ProxyKinds = _NO_KINDS
    demand: TenantDemand = NO_DEMAND

    def __post_init__(self) -> None:
        if self.kinds is _NO_KINDS and self.by_node:
            object.__setattr__(self, "kinds", proxy_kinds(self.by_node))


@dataclass(frozen=True, slots=True, kw_only=True)
class Callers:
    """A pool's callers: ``zones`` with callers, connected proxies, and the demand of those that report it."""

    zones: Collection[str]
    proxies: Mapping[str, Proxy] = field(default_factory=dict)
    demand: Mapping[str, Demand] = field(default_factory=dict)
