"""Latency of calls since the server started: histograms by route, class and outcome, from access logs.

Measured by the proxy: the *duration* of a call from its start to its end, and for streams the time to the *first
byte*. Behind the first-token gate that byte is the first token; without the gate vLLM sends headers at once. A
retry counts from the start of the first try of its request, if that try's entry is known: the caller waited for
both. A sampled entry counts with its full weight.

Bounds are the same for all histograms, so that they can be added up over routes, pools and replicas.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import Final

from prometheus_client.core import Metric

from policies.route import PriorityClass
from xds_server.metrics.fleet_metrics import LATENCY_BOUNDS_S, CallerMetrics
from xds_server.model.pool_traffic import CallResult
from xds_server.telemetry.objective_counts import ObjectivesCount, same_counts
from xds_server.telemetry.objective_history import ObjectiveKey, ObjectiveTotals
from xds_server.telemetry.pool_directory import RouteFacts

MAX_FIRST_TRIES: Final = 4_096
"""First tries remembered for their retries: more than a second of failures of 1 000 calls per second."""

_ZERO: Final = 0.0
_LE: Final = (*map(str, LATENCY_BOUNDS_S), "+Inf")


class CallHistogram:
    """Calls by duration. ``counts`` are per bucket, not cumulative; the last has those beyond all bounds."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [_ZERO] * (len(LATENCY_BOUNDS_S) + 1)
        self.sum_s = _ZERO

    def add(self, seconds: float, weight: float) -> None:
        """Add ``weight`` calls of this duration."""
        self.counts[bisect_left(LATENCY_BOUNDS_S, seconds)] += weight
        self.sum_s += weight * seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus buckets: upper bound and number of calls up to it."""
        return list(zip(_LE, accumulate(self.counts), strict=True))


class RouteLatency:
    """Latency of one route's calls to one pool, by outcome; success is there from the start."""

    __slots__ = ("durations", "first_bytes", "objectives", "priority")

    def __init__(self, priority: PriorityClass, objectives: ObjectivesCount | None = None) -> None:
        self.priority = priority
        self.objectives = objectives
        self.durations: dict[str, CallHistogram] = {CallResult.SUCCESS.value: CallHistogram()}
        self.first_bytes: dict[str, CallHistogram] = {CallResult.SUCCESS.value: CallHistogram()}

    def add(self, outcome: str, duration_s: float, first_byte_s: float, weight: float) -> None:
        """Add ended calls; ``first_byte_s`` 0: not a stream, or no byte arrived."""
        durations = self.durations.get(outcome)
        if durations is None:
            durations = self.durations[outcome] = CallHistogram()
        durations.add(duration_s, weight)
        if first_byte_s:
            first_bytes = self.first_bytes.get(outcome)
            if first_bytes is None:
                first_bytes = self.first_bytes[outcome] = CallHistogram()
            first_bytes.add(first_byte_s, weight)


class FirstTries:
    """When the first try of a request began, by proxy and request ID; the newest ``MAX_FIRST_TRIES``."""

    __slots__ = ("_tries",)

    def __init__(self) -> None:
        self._tries: dict[tuple[str, str], tuple[float, bool]] = {}

    def add(self, node: str, request: str, began_s: float, *, counted: bool) -> None:
        """Remember a first try that may be retried: when it began, and whether it counted its request."""
        if len(self._tries) >= MAX_FIRST_TRIES:
            del self._tries[next(iter(self._tries))]
        self._tries[node, request] = began_s, counted

    def find(self, node: str, request: str, began_s: float) -> tuple[float, bool]:
        """How long before ``began_s`` the first try began, and whether it counted its request; 0 if unknown."""
        first_s, counted = self._tries.get((node, request), (began_s, False))
        return max(0.0, began_s - first_s), counted


def route_latency(facts: RouteFacts, before: RouteLatency | None) -> RouteLatency:
    """Latency of a route; ``before`` is kept as far as class and objectives are the same."""
    found = before if before is not None and before.priority is facts.priority else RouteLatency(facts.priority)
    found.objectives = same_counts(facts.objectives, found.objectives)
    return found


RoutesOfPools = Mapping[str, Mapping[str, RouteLatency]]
"""Latency by pool and route."""


ObjectivesOfPools = Mapping[str, ObjectivesCount]
"""Counts of the pools that have objectives of their own."""

_NO_POOLS: Final[ObjectivesOfPools] = MappingProxyType({})


def families(pools: RoutesOfPools, own: ObjectivesOfPools = _NO_POOLS) -> Iterator[Metric]:
    """All histograms, and calls within and beyond objectives, for a scrape."""
    routes = [(pool, name, route) for pool, routes in pools.items() for name, route in routes.items()]
    yield CallerMetrics.attempt_duration_seconds.family(
        {
            (pool, name, route.priority.value, outcome): (one.cumulative(), one.sum_s)
            for pool, name, route in routes
            for outcome, one in route.durations.items()
        }
    )
    yield CallerMetrics.attempt_first_byte_seconds.family(
        {
            (pool, name, route.priority.value, outcome): (one.cumulative(), one.sum_s)
            for pool, name, route in routes
            for outcome, one in route.first_bytes.items()
        }
    )
    totals = objective_totals(pools, own)
    yield CallerMetrics.objective_calls.family({key: one.calls for key, one in totals.items()})
    yield CallerMetrics.objective_good_calls.family({key: one.good for key, one in totals.items()})
    yield CallerMetrics.objective_target_ratio.family({key: one.objective.target for key, one in totals.items()})


def objective_totals(
    pools: RoutesOfPools, own: ObjectivesOfPools = _NO_POOLS
) -> Mapping[ObjectiveKey, ObjectiveTotals]:
    """Calls within and beyond objectives, over all pools of a route, and of pools by themselves (``own``)."""
    totals: dict[ObjectiveKey, ObjectiveTotals] = {
        (pool, "", name): ObjectiveTotals(objective=one.objective, pools=(pool,), calls=one.calls, good=one.good)
        for pool, counts in own.items()
        for name, one in counts.counts.items()
    }
    for pool, routes in pools.items():
        for name, route in routes.items():
            for one in () if route.objectives is None else route.objectives.counts.values():
                key = ("", name, one.objective.name)
                known = totals.get(key)
                totals[key] = ObjectiveTotals(
                    objective=one.objective,
                    pools=(pool,) if known is None else (*known.pools, pool),
                    calls=one.calls + (0.0 if known is None else known.calls),
                    good=one.good + (0.0 if known is None else known.good),
                )
    return totals
