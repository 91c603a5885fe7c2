"""History of pools: rates and percentiles per interval, bounded, from the totals of the traffic store."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.xds_server.telemetry.test_call_latency import record
from xds_server.admin_api.pool_history_types import PoolPoint
from xds_server.metrics.fleet_metrics import LATENCY_BOUNDS_S
from xds_server.telemetry.pool_recorder import INTERVAL_S, KEPT, PoolGauges, PoolRecorder, quantiles
from xds_server.telemetry.traffic_store import TrafficStore

HEARD = PoolGauges(ceiling=12, in_flight=3, heard=True)
POOLS = {"chat": HEARD}
WALL_S = 1_700_000_000.0


class Recorded:
    """A recorder whose clock moves one interval with each sample."""

    def __init__(self, book: TrafficStore) -> None:
        self.now_s = 50.0
        self.recorder = PoolRecorder(book, lambda: self.now_s, lambda: WALL_S + self.now_s)

    def sample(self, pools: Mapping[str, PoolGauges] = POOLS, zones: Mapping[str, str] | None = None) -> None:
        self.now_s += INTERVAL_S
        self.recorder.sample(pools, zones or {})

    def points(self, pool: str = "chat") -> tuple[PoolPoint, ...]:
        (found,) = self.recorder.history(pool).pools
        return found.points


def test_interval_has_rates_percentiles_and_load(book: TrafficStore) -> None:
    recorded = Recorded(book)
    for _ in range(40):
        record(book)
    for _ in range(10):
        record(book, code=500)
    recorded.sample()
    (point,) = recorded.points()
    assert point.at_unix_s == WALL_S + 60
    assert (point.good_per_s, point.failed_per_s, point.refused_per_s) == (4.0, 1.0, 0.0)
    assert (point.ceiling, point.in_flight) == (12, 3)
    # Every answer took 2.0 s, which is the upper bound of its bucket.
    assert point.total_p50_s == pytest.approx(1.75)
    assert point.total_p99_s == pytest.approx(2.0, abs=0.01)
    assert point.first_byte_p50_s is not None
    assert 0.35 < point.first_byte_p50_s <= 0.5


def test_second_interval_has_only_its_own_calls(book: TrafficStore) -> None:
    recorded = Recorded(book)
    record(book)
    recorded.sample()
    recorded.sample()
    quiet = recorded.points()[1]
    assert (quiet.good_per_s, quiet.total_p50_s) == (0.0, None)


def test_refused_requests_are_counted(book: TrafficStore) -> None:
    recorded = Recorded(book)
    facts = book.directory.pools["chat"]
    for _ in range(20):
        book.record_shed("p1", facts, facts.priority, weight=2.0, now_s=1.0)
    recorded.sample()
    assert recorded.points()[0].refused_per_s == 4.0


def test_pool_without_telemetry_has_no_rates(book: TrafficStore) -> None:
    recorded = Recorded(book)
    recorded.sample({"chat": PoolGauges(ceiling=12, in_flight=None, heard=False)})
    point = recorded.points()[0]
    assert (point.good_per_s, point.refused_per_s, point.failed_per_s, point.in_flight) == (None, None, None, None)
    assert point.ceiling == 12


def test_ring_keeps_fifteen_minutes_and_forgets_removed_pools(book: TrafficStore) -> None:
    recorded = Recorded(book)
    for _ in range(3 * KEPT):
        recorded.sample({"chat": HEARD, "small": HEARD})
    points = recorded.points()
    assert len(points) == KEPT
    assert points[-1].at_unix_s - points[0].at_unix_s == (KEPT - 1) * INTERVAL_S
    recorded.sample()
    history = recorded.recorder.history()
    assert [one.pool for one in history.pools] == ["chat"]
    assert history.kept_s == 900
    assert history.since_unix_s == WALL_S + 50
    assert recorded.recorder.history("small").pools == ()


def test_totals_that_restart_give_the_new_calls_only(book: TrafficStore) -> None:
    recorded = Recorded(book)
    directory = book.directory
    for _ in range(10):
        record(book)
    recorded.sample()
    book.set_directory(type(directory)(pools={}, routes={}, streams={}))
    book.set_directory(directory)
    record(book)
    recorded.sample()
    assert recorded.points()[1].good_per_s == 0.1
    assert recorded.points()[1].total_p50_s is not None


def test_calls_are_counted_from_zone_to_zone(book: TrafficStore) -> None:
    recorded = Recorded(book)
    facts = book.directory.pools["chat"]  # e0 and e2 are in zone a, e1 and e3 in b
    book.record_load("p1", facts, {"e0": (1, 30), "e1": (0, 10)}, 1.0)
    book.record_load("p1", facts, {"e0": (1, 30), "e2": (0, 20)}, 2.0)
    book.record_load("p2", facts, {"e1": (1, 50)}, 2.0)
    book.record_load("p3", facts, {"e3": (1, 7)}, 2.0)
    zones = {"p1": "a", "p2": "b"}
    recorded.sample(zones=zones)
    assert recorded.recorder.flows() == {
        "chat": {("a", "a"): 8.0, ("a", "b"): 1.0, ("b", "b"): 5.0, ("", "b"): 0.7}
    }
    recorded.sample(zones=zones)
    assert recorded.recorder.flows()["chat"]["a", "a"] == 4.0, "the mean of both intervals"
    for _ in range(6):
        recorded.sample(zones=zones)
    assert recorded.recorder.flows() == {}, "older than a minute"


def test_sample_without_elapsed_time_is_ignored(book: TrafficStore) -> None:
    recorded = Recorded(book)
    recorded.recorder.sample(POOLS, {})
    assert recorded.recorder.history().pools == ()


@given(st.lists(st.floats(0, 1e6), min_size=len(LATENCY_BOUNDS_S) + 1, max_size=len(LATENCY_BOUNDS_S) + 1))
def test_percentiles_rise_and_lie_in_a_bucket_with_calls(counts: list[float]) -> None:
    found: tuple[Any, ...] = quantiles(counts)
    if sum(counts) <= 0:
        assert found == (None, None, None)
        return
    assert list(found) == sorted(found)
    bounds = (0.0, *LATENCY_BOUNDS_S, LATENCY_BOUNDS_S[-1])
    for one in found:
        assert any(
            count and low * 0.99 <= one <= high * 1.01
            for count, low, high in zip(counts, bounds, bounds[1:], strict=True)
        )
