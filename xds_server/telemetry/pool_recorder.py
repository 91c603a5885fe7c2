"""Recent history of pools in fixed intervals, and calls from zone to zone.

Every ``INTERVAL_S`` the totals of the traffic store are compared with those before, so recording costs nothing per
call. A ring of ``KEPT`` intervals per pool bounds the memory (about 100 bytes each); a pool that the policies no
longer have is forgotten. A restart forgets the history. Each replica records what its own proxies report.

Percentiles are interpolated in the buckets of the latency histograms, as Prometheus does.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final, NamedTuple

from xds_server.admin_api.pool_history_types import PoolHistory, PoolHistoryList, PoolPoint
from xds_server.metrics.fleet_metrics import LATENCY_BOUNDS_S
from xds_server.model.pool_traffic import CallResult
from xds_server.telemetry.call_latency import CallHistogram, RouteLatency
from xds_server.telemetry.pool_totals import PoolTotals
from xds_server.telemetry.traffic_store import TrafficStore

INTERVAL_S: Final = 10.0
KEPT: Final = 90
"""Intervals: 15 minutes."""

FLOW_INTERVALS: Final = 6
"""Intervals over which calls from zone to zone are averaged: a minute."""

_SHARES: Final = (0.50, 0.95, 0.99)
_NO_TIMES: Final = (None, None, None)
_SUCCESS: Final = CallResult.SUCCESS.value

Flows = Mapping[tuple[str, str], float]
"""Calls per second by zone of the callers and zone of the engines."""

_Times = tuple[float | None, float | None, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGauges:
    """State of a pool next to its totals; ``heard``: whether a proxy reports on it."""

    ceiling: int | None
    in_flight: int | None
    heard: bool


class _Totals(NamedTuple):
    """Totals of a pool since the start; calls by bucket of their time."""

    good: float = 0.0
    refused: float = 0.0
    failed: float = 0.0
    first_bytes: Sequence[float] = ()
    durations: Sequence[float] = ()


class PoolRecorder:
    """Records the pools of ``store``; call ``sample`` every ``INTERVAL_S``."""

    def __init__(
        self,
        store: TrafficStore,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._clock = clock
        self._wall = wall
        self._began_s = self._sampled_s = clock()
        self._totals: dict[str, _Totals] = {}
        self._points: dict[str, deque[tuple[float, PoolPoint]]] = {}
        self._flows: deque[tuple[float, Mapping[str, Mapping[tuple[str, str], int]]]] = deque(
            maxlen=FLOW_INTERVALS
        )

    def sample(self, pools: Mapping[str, PoolGauges], zones: Mapping[str, str]) -> None:
        """End an interval; ``pools`` are all pools, ``zones`` has the zone of each connected proxy by node id."""
        now_s = self._clock()
        passed_s = now_s - self._sampled_s
        if passed_s <= 0:
            return
        self._sampled_s = now_s
        totals, latency = self._store.totals(), self._store.latency()
        before, self._totals = self._totals, {}
        points, self._points = self._points, {}
        for name, gauges in pools.items():
            now = self._totals[name] = _totals(totals.get(name), latency.get(name, {}))
            ring = self._points[name] = points.get(name) or deque(maxlen=KEPT)
            ring.append((now_s, _point(before.get(name, _Totals()), now, gauges, passed_s)))
        calls = {
            pool: _by_zones(by_proxy, zones)
            for pool, by_proxy in self._store.take_zone_calls().items()
            if pool in pools
        }
        self._flows.append((passed_s, calls))

    def history(self, pool: str = "") -> PoolHistoryList:
        """Every pool by name, or only this one."""
        offset_s = self._wall() - self._clock()
        return PoolHistoryList(
            interval_s=INTERVAL_S,
            kept_s=INTERVAL_S * KEPT,
            since_unix_s=round(self._began_s + offset_s, 3),
            pools=tuple(
                PoolHistory(
                    pool=name,
                    points=tuple(replace(one, at_unix_s=round(at_s + offset_s, 3)) for at_s, one in ring),
                )
                for name, ring in sorted(self._points.items())
                if pool in ("", name)
            ),
        )

    def flows(self) -> Mapping[str, Flows]:
        """Calls from zone to zone by pool, over the last minute."""
        whole_s = sum(passed_s for passed_s, _ in self._flows)
        found: dict[str, dict[tuple[str, str], float]] = {}
        for _, pools in self._flows:
            for pool, calls in pools.items():
                known = found.setdefault(pool, {})
                for zones, count in calls.items():
                    known[zones] = known.get(zones, 0.0) + count / whole_s
        return found


def _totals(totals: PoolTotals | None, routes: Mapping[str, RouteLatency]) -> _Totals:
    if totals is None:
        return _Totals()
    return _Totals(
        good=totals.attempts[CallResult.SUCCESS],
        refused=sum(totals.refused.values()),
        failed=totals.attempts[CallResult.FAILURE],
        first_bytes=_summed([one.first_bytes[_SUCCESS] for one in routes.values()]),
        durations=_summed([one.durations[_SUCCESS] for one in routes.values()]),
    )


def _summed(histograms: Sequence[CallHistogram]) -> Sequence[float]:
    return [sum(column) for column in zip(*(one.counts for one in histograms), strict=True)]


def _point(before: _Totals, now: _Totals, gauges: PoolGauges, passed_s: float) -> PoolPoint:
    def per_s(had: float, has: float) -> float | None:
        return float(f"{_grown(had, has) / passed_s:.4g}") if gauges.heard else None

    first_bytes = quantiles(_growth(before.first_bytes, now.first_bytes))
    durations = quantiles(_growth(before.durations, now.durations))
    return PoolPoint(
        at_unix_s=0.0,
        good_per_s=per_s(before.good, now.good),
        refused_per_s=per_s(before.refused, now.refused),
        failed_per_s=per_s(before.failed, now.failed),
        first_byte_p50_s=first_bytes[0],
        first_byte_p95_s=first_bytes[1],
        first_byte_p99_s=first_bytes[2],
        total_p50_s=durations[0],
        total_p95_s=durations[1],
        total_p99_s=durations[2],
        ceiling=gauges.ceiling,
        in_flight=gauges.in_flight,
    )


def _grown(had: float, has: float) -> float:
    """The growth of a total; all of it if it started again."""
    return has - had if has >= had else has


def _growth(had: Sequence[float], has: Sequence[float]) -> Sequence[float]:
    # A bucket shrinks when a route left or changed its class: its histograms started again.
    if len(had) != len(has) or any(now < before for before, now in zip(had, has, strict=True)):
        return has
    return [now - before for before, now in zip(had, has, strict=True)]


def quantiles(counts: Sequence[float]) -> _Times:
    """Median, p95 and p99 of calls by bucket, in seconds; None without calls.

    Calls beyond all bounds count as the last bound.
    """
    whole = sum(counts)
    if whole <= 0:
        return _NO_TIMES
    reached = list(accumulate(counts))
    p50, p95, p99 = (_quantile(counts, reached, share * whole) for share in _SHARES)
    return p50, p95, p99


def _quantile(counts: Sequence[float], reached: Sequence[float], rank: float) -> float:
    # Sums of weights are not exact: the last bucket with calls has every rank that no other has.
    place = next((n for n, upto in enumerate(reached) if upto >= rank and counts[n]), len(counts) - 1)
    if place >= len(LATENCY_BOUNDS_S):
        return LATENCY_BOUNDS_S[-1]
    lower = LATENCY_BOUNDS_S[place - 1] if place else 0.0
    share = (rank - (reached[place] - counts[place])) / counts[place]
    return float(f"{lower + (LATENCY_BOUNDS_S[place] - lower) * share:.3g}")


def _by_zones(
    by_proxy: Mapping[str, Mapping[str, int]], zones: Mapping[str, str]
) -> Mapping[tuple[str, str], int]:
    """Calls by zone of the proxy and of the engine; a proxy that left has no zone."""
    found: dict[tuple[str, str], int] = {}
    for node, calls in by_proxy.items():
        for to, count in calls.items():
            key = (zones.get(node, ""), to)
            found[key] = found.get(key, 0) + count
    return found
