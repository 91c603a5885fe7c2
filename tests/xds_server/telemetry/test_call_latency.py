"""Histograms of calls: by route, class and outcome, with weights and retries, from access logs."""

from typing import Any

import pytest

from tests.xds_server.telemetry.conftest import documents, policies_of
from xds_server.metrics.fleet_metrics import LATENCY_BOUNDS_S
from xds_server.metrics.metric_registry import Metrics
from xds_server.telemetry import Telemetry, call_latency
from xds_server.telemetry.access_log_service import AccessLogs, record_entries
from xds_server.telemetry.call_latency import MAX_FIRST_TRIES, CallHistogram, FirstTries
from xds_server.telemetry.pool_directory import build_directory
from xds_server.telemetry.traffic_store import TrafficStore
from xds_server.translate.access_log_config import ATTEMPT_HEADER

NOW_S = 1000.0


def entries(
    *, duration_s: float = 2.0, first_byte_s: float = 0.5, route: str = "talk/streaming", code: int = 200,
    attempt: str = "1", request: str = "r-1", began_s: float = 100.0, port: int = 8000, cluster: str = "chat",
) -> Any:  # fmt: skip
    message = AccessLogs()
    entry = message.http_logs.log_entry.add()
    common = entry.common_properties
    common.access_log_type = 9
    common.start_time.FromNanoseconds(round(began_s * 1e9))
    address = common.upstream_remote_address.socket_address
    address.address, address.port_value = "10.0.0.1", port
    common.upstream_cluster, common.route_name = cluster, route
    common.duration.FromMilliseconds(round(duration_s * 1000))
    if first_byte_s:
        common.time_to_first_upstream_rx_byte.FromMilliseconds(round(first_byte_s * 1000))
        common.time_to_last_upstream_rx_byte.FromMilliseconds(round(duration_s * 1000))
    entry.response.response_code.value = code
    entry.request.request_id = request
    entry.request.request_headers[ATTEMPT_HEADER] = attempt
    return message.http_logs.log_entry


def record(book: TrafficStore, weight: float = 1.0, node: str = "p1", **said: Any) -> None:
    record_entries(book, node, entries(**said), weight, NOW_S, may_see=lambda _pool: True)


def samples(book: TrafficStore) -> dict[tuple[str, str, str, str], dict[str, float]]:
    """Count, sum and cumulative buckets by metric, route, class and outcome."""
    found: dict[tuple[str, str, str, str], dict[str, float]] = {}
    for family in call_latency.families(book.latency()):
        for sample in family.samples:
            labels = sample.labels
            assert labels["pool"] == "chat"
            key = (family.name.split("_", 1)[1], labels["route"], labels["class"], labels["outcome"])
            name = labels.get("le") or sample.name.rsplit("_", 1)[1]
            found.setdefault(key, {})[name] = sample.value
    return found


DURATION, FIRST_BYTE = "attempt_duration_seconds", "attempt_first_byte_seconds"


def test_stream_counts_its_duration_and_its_first_byte(book: TrafficStore) -> None:
    record(book)
    duration = samples(book)[DURATION, "talk", "interactive", "success"]
    assert (duration["count"], duration["sum"]) == (1, 2.0)
    assert (duration["1.5"], duration["2.0"], duration["+Inf"]) == (0, 1, 1), "a bound belongs to its bucket"
    first_byte = samples(book)[FIRST_BYTE, "talk", "interactive", "success"]
    assert (first_byte["0.35"], first_byte["0.5"], first_byte["sum"]) == (0, 1, 0.5)


def test_answer_without_streaming_has_no_first_byte(book: TrafficStore) -> None:
    record(book, route="night/non-streaming")
    found = samples(book)
    assert found[DURATION, "night", "batch", "success"]["count"] == 1
    assert found[FIRST_BYTE, "night", "batch", "success"]["count"] == 0, "present at 0, for rates"


def test_failures_and_shed_calls_are_outcomes_of_their_own(book: TrafficStore) -> None:
    record(book, code=500, first_byte_s=0)
    record(book, code=503, duration_s=0.004)
    found = samples(book)
    assert found[DURATION, "talk", "interactive", "success"]["count"] == 0
    assert found[DURATION, "talk", "interactive", "failure"]["count"] == 1
    assert found[DURATION, "talk", "interactive", "shed"]["0.01"] == 1
    assert (FIRST_BYTE, "talk", "interactive", "failure") not in found, "no byte arrived"


def test_sampled_calls_count_with_their_weight(book: TrafficStore) -> None:
    record(book, weight=20)
    duration = samples(book)[DURATION, "talk", "interactive", "success"]
    assert (duration["count"], duration["sum"]) == (20, 40.0)


def test_retry_counts_from_the_start_of_the_first_try(book: TrafficStore) -> None:
    record(book, code=500, duration_s=3.0, first_byte_s=0)
    record(book, attempt="2", began_s=103.5, port=8001)
    found = samples(book)
    assert found[DURATION, "talk", "interactive", "success"]["sum"] == 5.5, "3.5 s before its own start"
    assert found[FIRST_BYTE, "talk", "interactive", "success"]["sum"] == 4.0
    assert found[DURATION, "talk", "interactive", "failure"]["sum"] == 3.0


@pytest.mark.parametrize("other", [{"node": "p2"}, {"request": "r-2"}, {"began_s": 90.0}])
def test_retry_without_a_known_first_try_counts_from_its_own_start(
    book: TrafficStore, other: dict[str, Any]
) -> None:
    record(book, code=500, first_byte_s=0)
    record(book, **{"attempt": "2", "began_s": 103.5, **other})
    assert samples(book)[DURATION, "talk", "interactive", "success"]["sum"] == 2.0


def test_first_tries_are_bounded() -> None:
    tries = FirstTries()
    for number in range(MAX_FIRST_TRIES + 1):
        tries.add("p", str(number), 1.0, counted=True)
    assert tries.find("p", "0", 3.0) == (0.0, False)
    assert tries.find("p", "1", 3.0) == (2.0, True)


def test_calls_of_unknown_routes_and_other_pools_are_not_counted(book: TrafficStore) -> None:
    record(book, route="elsewhere/streaming")
    assert {key[1:] for key in samples(book)} == {
        ("talk", "interactive", "success"),
        ("night", "batch", "success"),
    }
    assert all(one["count"] == 0 for one in samples(book).values())


def test_latency_of_a_removed_route_is_forgotten(book: TrafficStore, tmp_path: Any) -> None:
    record(book)
    record(book, route="night/streaming")
    rest = [one for one in documents() if one["metadata"]["name"] != "night"]
    book.set_directory(build_directory(policies_of(tmp_path, rest), {}))
    assert {key[1] for key in samples(book)} == {"talk"}
    assert samples(book)[DURATION, "talk", "interactive", "success"]["count"] == 1, "the other one is kept"


def test_histograms_are_on_the_metrics_page(policies: Any) -> None:
    metrics = Metrics()
    telemetry = Telemetry(metrics, clock=lambda: NOW_S)
    telemetry.watch(policies)
    metrics.observe(telemetry.families)
    record(telemetry.traffic_store, duration_s=400.0)
    text = metrics.text().decode()
    of_route = 'outcome="success",pool="chat",route="talk"'
    name = "switchgear_attempt_duration_seconds"
    assert f'{name}_bucket{{class="interactive",le="300.0",{of_route}}} 0.0' in text
    assert f'{name}_sum{{class="interactive",{of_route}}} 400.0' in text


def test_bounds_reach_from_a_refusal_to_the_longest_answers() -> None:
    assert (LATENCY_BOUNDS_S[0], LATENCY_BOUNDS_S[-1]) == (0.01, 300.0)
    assert list(LATENCY_BOUNDS_S) == sorted(LATENCY_BOUNDS_S)
    one = CallHistogram()
    one.add(1e9, 1)
    assert one.cumulative()[-2:] == [("300.0", 0.0), ("+Inf", 1.0)]
