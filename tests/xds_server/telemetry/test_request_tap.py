"""Tries for the watchers of ``switchgear tap``: from access logs, filtered, bounded, with their reason."""

from pathlib import Path
from typing import Any

import pytest

from tests.xds_server.telemetry.test_call_latency import NOW_S, entries, record
from tests.xds_server.telemetry.test_objective_counts import with_objectives
from xds_server.admin_api.tap_types import TappedTry
from xds_server.telemetry.access_log_service import AccessLogs, record_entries
from xds_server.telemetry.request_tap import (
    MAX_WATCHERS,
    RequestTap,
    TapFullError,
    TapWatcher,
)
from xds_server.telemetry.traffic_store import TrafficStore


def watch(book: TrafficStore, *only: str, **said: Any) -> TapWatcher:
    watcher = TapWatcher(only=frozenset(only), **said)
    book.tap.open(watcher)
    return watcher


def refused_entry(*, route: str = "talk/streaming", flag: str = "", details: str = "", attempt: str = "") -> Any:
    """What a listener logs about a request."""
    message = AccessLogs()
    entry = message.http_logs.log_entry.add()
    common = entry.common_properties
    common.access_log_type = 6
    common.route_name, common.upstream_cluster = route, "chat"
    common.duration.FromMilliseconds(1500)
    if flag:
        getattr(common.response_flags, flag)
        setattr(common.response_flags, flag, True)
    entry.response.response_code.value = 504 if details else 503
    entry.response.response_code_details = details
    entry.request.request_id = "r-9"
    if attempt:
        entry.request.request_headers["x-envoy-attempt-count"] = attempt
    return message.http_logs.log_entry


def record_request(book: TrafficStore, may_see: Any = lambda _pool: True, **said: Any) -> None:
    record_entries(book, "p1", refused_entry(**said), 1.0, NOW_S, may_see=may_see)


def only(watcher: TapWatcher) -> TappedTry:
    (found,) = watcher.take()[0]
    return found


def test_try_is_shown_with_its_engine_class_and_times(book: TrafficStore) -> None:
    watcher = watch(book)
    record(book, weight=20, route="night/streaming")
    seen = only(watcher)
    assert (seen.request, seen.proxy, seen.route, seen.priority) == ("r-1", "p1", "night", "batch")
    assert (seen.pool, seen.engine, seen.number, seen.result, seen.status) == ("chat", "e0", 1, "success", 200)
    assert (seen.duration_s, seen.total_s, seen.first_byte_s, seen.calls) == (2.0, 2.0, 0.5, 20)
    assert (seen.slow, seen.reason) == (False, "")
    assert watcher.take() == ((), 0)


def test_retry_is_timed_from_the_first_try(book: TrafficStore) -> None:
    watcher = watch(book)
    record(book, code=500, duration_s=3.0, first_byte_s=0)
    record(book, attempt="2", began_s=103.5, port=8001)
    first, second = watcher.take()[0]
    assert (first.result, first.status, first.reason) == ("failure", 500, "the engine answered 500")
    assert (second.number, second.engine, second.result, second.total_s) == (2, "e1", "success", 5.5)
    assert second.first_byte_s == 4.0


@pytest.mark.parametrize(
    ("said", "result", "reason"),
    [
        ({"code": 503}, "shed", "the engine answered 503"),
        ({"code": 404}, "rejected", "the engine answered 404"),
        (
            {"code": 0, "first_byte_s": 0},
            "abandoned",
            "the caller left, another try won, or the route's time was up",
        ),
    ],
)
def test_reason_of_a_try_without_a_flag(
    book: TrafficStore, said: dict[str, Any], result: str, reason: str
) -> None:
    watcher = watch(book)
    record(book, **said)
    seen = only(watcher)
    assert (seen.result, seen.reason) == (result, reason)


@pytest.mark.parametrize(
    ("flag", "result", "reason"),
    [
        ("upstream_overflow", "refused", "overload: "),
        ("upstream_connection_failure", "failure", "connect-failure: "),
        ("upstream_connection_termination", "failure", "engine-reset: "),
        ("upstream_request_timeout", "failure", "timeout: the time limit of the try"),
        ("stream_idle_timeout", "failure", "timeout: the engine sent nothing"),
    ],
)
def test_reason_of_a_try_with_a_flag(book: TrafficStore, flag: str, result: str, reason: str) -> None:
    watcher = watch(book)
    log = entries(code=0, first_byte_s=0)
    setattr(log[0].common_properties.response_flags, flag, True)
    record_entries(book, "p1", log, 1.0, NOW_S, may_see=lambda _pool: True)
    seen = only(watcher)
    assert (seen.result, seen.status) == (result, 0)
    assert seen.reason.startswith(reason)
    assert (seen.engine == "") is (result == "refused")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({}, "overload: "),
        ({"flag": "no_healthy_upstream"}, "no-engine: "),
        ({"route": "talk/maintenance"}, "maintenance: "),
        ({"route": "talk/outside"}, "no-engine-in-region: "),
        ({"route": "talk/no-adapter"}, "no-engine-with-adapter: "),
        ({"route": "talk/too-long/max_tokens"}, "too-long-now: "),
    ],
)
def test_request_refused_without_a_try(book: TrafficStore, said: dict[str, str], reason: str) -> None:
    watcher = watch(book, "refused")
    record_request(book, **said)
    seen = only(watcher)
    assert (seen.request, seen.pool, seen.engine, seen.number, seen.result) == ("r-9", "chat", "", 0, "refused")
    assert (seen.status, seen.total_s) == (503, 1.5)
    assert seen.reason.startswith(reason)


def test_request_ended_by_the_limit_of_its_route(book: TrafficStore) -> None:
    watcher = watch(book, "failed")
    record_request(book, flag="upstream_request_timeout", details="response_timeout", attempt="3")
    seen = only(watcher)
    assert (seen.result, seen.number, seen.status) == ("timed-out", 3, 504)
    assert seen.reason == "timeout: the time limit of the route expired"


def test_filters_select_by_result_and_pool(book: TrafficStore) -> None:
    watchers = {name: watch(book, name) for name in ("refused", "slow", "failed")}
    both, other = watch(book, "refused", "failed"), watch(book, pool="small")
    record(book)
    record(book, code=500)
    record(book, code=503)
    record_request(book)
    assert [one.result for one in watchers["refused"].take()[0]] == ["shed", "refused"]
    assert [one.result for one in watchers["failed"].take()[0]] == ["failure"]
    assert watchers["slow"].take()[0] == ()
    assert [one.result for one in both.take()[0]] == ["failure", "shed", "refused"]
    assert other.take()[0] == ()


def test_slow_is_beyond_the_smallest_objective(tmp_path: Path) -> None:
    book = TrafficStore()
    objectives = {"firstToken": {"p95": "1s"}, "total": {"p95": "3s", "p99": "5s"}}
    book.set_directory(with_objectives(tmp_path, objectives))
    watcher = watch(book, "slow")
    record(book, duration_s=3.0, first_byte_s=1.0)
    assert watcher.take()[0] == ()
    record(book, duration_s=3.5)
    assert only(watcher).reason == "slow: total 3.50 s, objective 3 s"
    record(book, duration_s=2.0, first_byte_s=1.25)
    assert only(watcher).reason == "slow: first-token 1.25 s, objective 1 s"
    record(book, code=500, duration_s=9.0)
    assert watcher.take()[0] == (), "a failure is not a slow answer"


def test_slow_without_objectives_is_beyond_p95_of_the_pool(book: TrafficStore) -> None:
    watcher = watch(book, "slow")
    record(book, first_byte_s=9.0, duration_s=9.5)
    assert watcher.take()[0] == (), "nothing to compare with yet"
    for _ in range(100):
        record(book, first_byte_s=0.5)
    book.traffic(NOW_S)
    record(book, first_byte_s=1.5)
    assert only(watcher).reason.startswith("slow: first byte 1.50 s, p95 of the pool 0.")


def test_own_limit_replaces_what_is_slow(book: TrafficStore) -> None:
    watcher = watch(book, "slow", slower_s=1.5)
    record(book, duration_s=1.5)
    record(book, duration_s=1.6)
    seen = only(watcher)
    assert (seen.slow, seen.reason) == (True, "slow: total 1.60 s")


def test_slow_reader_loses_the_oldest_tries_and_their_count_is_known(book: TrafficStore) -> None:
    watcher = watch(book, most=3)
    for number in range(5):
        record(book, request=f"r-{number}")
    tries, dropped = watcher.take()
    assert ([one.request for one in tries], dropped) == (["r-2", "r-3", "r-4"], 2)
    assert watcher.take() == ((), 0)


def test_pool_that_the_proxy_may_not_see_is_not_shown(book: TrafficStore) -> None:
    watcher = watch(book)
    record_request(book, may_see=lambda _pool: False)
    record_entries(book, "p1", entries(), 1.0, NOW_S, may_see=lambda _pool: False)
    assert watcher.take() == ((), 0)


def test_watching_changes_no_count(book: TrafficStore) -> None:
    for watched in (False, True):
        if watched:
            watch(book)
        record(book)
        record(book, attempt="2", began_s=103.5)
    histogram = book.latency()["chat"]["talk"].durations["success"]
    assert histogram.sum_s == 8.0, "a successful first try is not remembered for a second one"


def test_watchers_are_limited_and_ids_are_cut(book: TrafficStore) -> None:
    tap = RequestTap()
    assert not tap
    watchers = [TapWatcher() for _ in range(MAX_WATCHERS)]
    for one in watchers:
        tap.open(one)
    with pytest.raises(TapFullError):
        tap.open(TapWatcher())
    tap.close(watchers[0])
    tap.open(TapWatcher())
    watcher = watch(book)
    record(book, request="x" * 5000)
    assert only(watcher).request == "x" * 64
