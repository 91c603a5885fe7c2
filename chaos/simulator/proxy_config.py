"""Configuration of a simulated proxy: hosts, weights, limits, retries and timers, as values.

Made from decisions with the functions that configure Envoy (``xds_server.translate``), or from a static bootstrap.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation

from chaos.simulator.caller_rules import NO_PERCENTAGES, DeadlineRoute, ShareFilters
from chaos.simulator.quota_buckets import QuotaConfig, QuotaParts
from chaos.testbed.request_shape import RequestKind

NO_LIMIT: Final = 4_294_967_295


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierDetectionConfig:
    """Outlier detection of one cluster. A count of 0 is off.

    ``split``: timeouts, resets and refused connections count separately from answers. ``local_as_gateway``: they
    count as gateway failures, in their own series that only an answer ends.
    """

    statuses: frozenset[int]
    consecutive: int
    consecutive_local: int
    split: bool
    local_as_gateway: bool
    failure_percent: int
    failure_volume: int
    interval_s: float
    base_ejection_s: float
    max_ejection_s: float
    max_ejection_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheckConfig:
    """Envoy's active health check of /health."""

    interval_s: float
    timeout_s: float
    unhealthy_after: int
    healthy_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamHost:
    """One engine of a cluster; ``draining`` ones get requests of their own sessions only."""

    engine: str
    weight: int = 1
    healthy: bool = True
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalityConfig:
    """Hosts of one zone; ``weight`` None: no traffic.

    A lower ``priority`` is used first, as far as its share of healthy hosts times ``overprovisioning`` reaches.
    """

    zone: str
    weight: int | None
    hosts: tuple[UpstreamHost, ...]
    priority: int = 0
    overprovisioning: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Limits on requests in flight, by class, and on retries."""

    interactive: int = NO_LIMIT
    batch: int = NO_LIMIT
    retry_percent: float | None = None
    retry_min_concurrency: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """A pool's configuration: ``round_robin``, else least request of ``choices``.

    Below ``panic_percent`` healthy hosts, unhealthy ones are used too. ``connections`` limits connections, one
    per request, and as many pending requests. With a ``bound_percent`` engines are picked by the hash of a key, up
    to this part of their share of the requests in flight.
    """

    round_robin: bool
    choices: int
    panic_percent: float
    connect_s: float
    outliers: OutlierDetectionConfig | None = None
    checks: HealthCheckConfig | None = None
    hedged: bool = False
    connections: int = NO_LIMIT
    bound_percent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteEntries:
    """Entries of one pool in a route whose retries may leave their pool; ``weight`` is that of each."""

    entries: int
    weight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteConfig:
    """Configuration of one route and kind of request. A time of None or 0 is off.

    ``refuse`` is why all are refused, empty if they are not; ``max_tokens`` is the longest answer allowed,
    and ``reduces_answers`` whether longer ones are shortened to it. ``weights`` is by pool, and so is ``exits``,
    empty if retries stay in their pool; answers of ``other_models`` are marked. ``retried`` uses Envoy's names.
    ``prefill_percent`` of the attempts with a prompt above ``prefill_above`` tokens name a prefill engine;
    ``prefillers`` is a fixed list of them, which all attempts of a request draw from once. ``keyed``: the
    conversation of a request is the key by which the pools of ``weights`` pick. ``sessions``: engines that keep
    strict sessions, and the percentage of them that each keeps; None without strict affinity.
    ``among``: engines that have the route's adapter, or may have it; None: the route asks for none.
    ``deadlines`` are the route's variants, if the listener reads deadlines,
    ``shares`` what refuses tenants above their share.
    """

    weights: Mapping[str, int]
    batch: bool = False
    retried: frozenset[str] = frozenset()
    statuses: frozenset[int] = frozenset()
    attempts: int = 0
    hedges: bool = False
    elsewhere: bool = False
    per_try_s: float | None = None
    per_try_idle_s: float | None = None
    idle_s: float | None = None
    total_s: float = 0.0
    stream_total_s: float = 0.0
    backoff_base_s: float = 0.025
    backoff_max_s: float = 0.25
    retry_after_most_s: float | None = None
    refuse: str = ""
    max_tokens: int | None = None
    reduces_answers: bool = False
    other_models: frozenset[str] = frozenset()
    exits: Mapping[str, RouteEntries] = field(default_factory=lambda: MappingProxyType({}))
    prefill_percent: float = 0.0
    prefill_above: int = 0
    prefillers: tuple[str, ...] = ()
    keyed: bool = False
    sessions: Mapping[str, float] | None = None
    among: frozenset[str] | None = None
    deadlines: tuple[DeadlineRoute, ...] = ()
    shares: ShareFilters | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """Complete configuration of one proxy.

    ``cut`` are the engines, as (pool, engine), whose requests it must cut.
    ``prefillers`` are the prefill engines that may be named to a decode engine, with weights, by (pool, engine).
    ``quotas`` are the buckets of tenants, ``parts`` what requests take from them here, ``mutations`` changes of
    request headers before a route is chosen, and ``percentages`` the parts of requests that routes and filters
    look up in the runtime layer.
    """

    clusters: Mapping[str, ClusterConfig]
    localities: Mapping[str, tuple[LocalityConfig, ...]]
    limits: Mapping[str, RequestLimits]
    rules: Mapping[RequestKind, RouteConfig]
    cut: frozenset[tuple[str, str]] = field(default=frozenset())
    prefillers: Mapping[tuple[str, str], tuple[tuple[str, int], ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    quotas: QuotaConfig | None = None
    parts: QuotaParts | None = None
    mutations: tuple[HeaderMutation, ...] = ()
    percentages: Mapping[str, float] = field(default_factory=lambda: NO_PERCENTAGES)


def route_settings(config: ProxyConfig) -> Mapping[RequestKind, RouteConfig]:
    """What is in the routes; weights are in the runtime layer, engines in the endpoints."""
    return {kind: replace(rules, weights={}, exits={}, among=None) for kind, rules in config.rules.items()}


EMPTY_CONFIG: Final = ProxyConfig(
    clusters=MappingProxyType({}),
    localities=MappingProxyType({}),
    limits=MappingProxyType({}),
    rules=MappingProxyType({}),
)
