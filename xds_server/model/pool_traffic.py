"""Recent telemetry: calls per engine, arrivals per proxy, as one frozen value per pool.

Made by ``telemetry`` from access logs and load reports, read by ``decide``. A value has counts and the time of the
last report; readers decide whether that is enough and recent enough. Unreported values are None or absent, never
0.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeAlias

from policies.route import PriorityClass


class TelemetrySignal(StrEnum):
    """A signal that proxies report."""

    ACCESS_LOG = "access_log"
    LOAD_REPORT = "load_report"


class CallResult(StrEnum):
    """How a call to an engine ended.

    ``shed``: the engine refused it (503, 429); ``rejected``: the caller's mistake (other 4xx); ``abandoned``: the
    caller left, a hedge lost, or the route's time was up.
    """

    SUCCESS = "success"
    FAILURE = "failure"
    SHED = "shed"
    REJECTED = "rejected"
    ABANDONED = "abandoned"


class DeadlineResult(StrEnum):
    """What became of a request that was not answered because of its deadline."""

    REFUSED = "refused"  # at once
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """One connected proxy. ``cuts``: it can cut, on order, the requests on a hung engine.

    ``region`` is as the proxy states it; empty if it does not.
    """

    node: str
    zone: str
    role: str
    cuts: bool = False
    pools: frozenset[str] = frozenset()
    region: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTail:
    """Recent quantiles of a time of healthy calls, in seconds, and the number of calls.

    ``longest_s`` is the maximum, 0 if unknown: a limit based on a quantile alone would cut the longest healthy
    responses forever. ``shortest_s`` is the minimum, 0 if unknown.
    """

    p50_s: float
    p95_s: float
    p99_s: float
    calls: int
    longest_s: float = 0.0
    shortest_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTraffic:
    """Calls (attempts, not requests) to one engine, from all reporting proxies.

    ``window_calls`` and ``window_failures`` are the newest relevant calls, at most the breaker's window and none
    older than ``WINDOW_S``; ``failures_in_a_row`` is how many of the newest failed, ``newest_failed`` has a bit
    for each failure among the newest ``NEWEST_CALLS``, the newest lowest. ``newest_answers`` are the newest calls
    that succeeded, failed or were shed, at most ``NEWEST_ANSWERS`` and none older than ``WINDOW_S``;
    ``newest_spoiled`` of them have no good answer. ``succeeded``, ``failed`` and ``neutral`` only grow; the
    extrapolated of them have no entry, because their proxies sample. ``shed`` are the neutral entries of calls
    that the engine had no room for. Rates cover the last ``RATE_S``: ``done_per_s`` are successful calls, ``busy``
    is the mean number of calls that these held open (their durations summed, per second); ``service_s`` their mean
    duration. ``in_flight`` is the sum of the newest load reports of all proxies, None if no proxy reports load.
    Times are monotonic seconds.
    """

    window_calls: int = 0
    window_failures: int = 0
    failures_in_a_row: int = 0
    newest_failed: int = 0
    newest_answers: int = 0
    newest_spoiled: int = 0
    succeeded: int = 0
    failed: int = 0
    neutral: int = 0
    extrapolated_successes: int = 0
    extrapolated_failures: int = 0
    shed: int = 0
    done_per_s: float = 0.0
    busy: float = 0.0
    service_s: float | None = None
    in_flight: int | None = None
    heard_at_s: float = 0.0

    @property
    def reported_successes(self) -> int:
        """Successes with an entry of their own: what a breaker may count as evidence."""
        return self.succeeded - self.extrapolated_successes

    @property
    def reported_failures(self) -> int:
        """Failures with an entry of their own."""
        return self.failed - self.extrapolated_failures


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyTraffic:
    """One proxy's part in a pool's traffic.

    ``arrivals_per_s``, ``shed_per_s``: requests for the pool, including refused ones, and those refused at the
    ceiling, by class, over the last ``RATE_S``; retries are not arrivals. ``retries_per_s`` are calls after the
    first of a request. ``in_flight_on``: open requests by engine, from its newest load report at ``load_at_s``
    (None: none). ``silent``: engines without requests although comparable ones got this many: this proxy has
    ejected them itself.
    """

    arrivals_per_s: Mapping[PriorityClass, float] = field(default_factory=dict)
    shed_per_s: Mapping[PriorityClass, float] = field(default_factory=dict)
    retries_per_s: float = 0.0
    in_flight_on: Mapping[str, int] = field(default_factory=dict)
    load_at_s: float | None = None
    silent: Mapping[str, int] = field(default_factory=dict)
    heard_at_s: float = 0.0


TenantId: TypeAlias = tuple[int, str]
"""Port and name of a tenant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUse:
    """One tenant's part in a pool's traffic over the last ``RATE_S``; retries are not arrivals.

    ``arrivals_per_s`` includes ``shed_per_s``, refused at the ceiling, and ``over_share_per_s``, refused as above
    its share. ``done_per_s`` are good answers, ``busy`` is the mean number of calls that these held open.
    """

    arrivals_per_s: float = 0.0
    shed_per_s: float = 0.0
    over_share_per_s: float = 0.0
    done_per_s: float = 0.0
    busy: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUses:
    """What tenants with fair shares use of a pool, as ``proxies`` report that are connected to this replica.

    ``strangers_per_s`` are arrivals at the pool of all others.
    """

    by_tenant: Mapping[TenantId, TenantUse]
    strangers_per_s: float
    proxies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillUse:
    """Requests of a decode pool that ended in the last minute, by where their first try was prefilled.

    ``named``: a proxy named a prefill engine; ``local``: it named none, and the decode engine prefilled. First
    bytes are of their successful streams; None without any.
    """

    named: float
    local: float
    named_first_byte: LatencyTail | None = None
    local_first_byte: LatencyTail | None = None

    @property
    def named_ratio(self) -> float:
        """Part of the requests for which a prefill engine was named."""
        return self.named / (self.named + self.local)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTraffic:
    """A pool's telemetry; ``engines`` by engine name, ``proxies`` by node id, ``tenants`` is None without fair
    shares, ``prefill`` without requests of the last minute or without prefill engines.

    ``answer`` is the time of whole responses without streaming, ``first_byte`` of the first byte of streams (the
    first token only behind the gate); both of successful calls. Counts and rates are already divided by the share
    of calls that a proxy reports, windows are not.
    """

    engines: Mapping[str, EngineTraffic] = field(default_factory=dict)
    proxies: Mapping[str, ProxyTraffic] = field(default_factory=dict)
    answer: LatencyTail | None = None
    first_byte: LatencyTail | None = None
    heard_at_s: float = 0.0
    tenants: TenantUses | None = None
    prefill: PrefillUse | None = None


WINDOW_S = 30.0
"""Older calls do not count."""

NEWEST_CALLS = 32
"""Number of newest calls whose individual results are kept."""

NEWEST_ANSWERS = 8
"""Number of newest calls that show what an engine yields now: more of them would hide a new fault."""

RATE_S = 2.0
"""Rates cover this many seconds."""

STALE_S = 5.0
"""Age from which a proxy's telemetry counts as lost: decisions then treat it as absent."""


_NO_DEMAND: Final[Mapping[TenantId, Mapping[str, float]]] = MappingProxyType({})
_NO_RATES: Final[Mapping[TenantId, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantDemand:
    """Recent requests of tenants, refused ones included, by tenant and node id.

    ``per_s``: those of a second at all proxies; ``tokens_per_s``: their estimated tokens, where quotas count them.
    ``nodes``: the proxies that are connected here, with or without requests.
    """

    by_tenant: Mapping[TenantId, Mapping[str, float]] = field(default_factory=lambda: _NO_DEMAND)
    per_s: Mapping[TenantId, float] = field(default_factory=lambda: _NO_RATES)
    tokens_per_s: Mapping[TenantId, float] = field(default_factory=lambda: _NO_RATES)
    nodes: Collection[str] = ()


NO_DEMAND: Final = TenantDemand()
