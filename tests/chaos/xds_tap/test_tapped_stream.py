"""What a wiretap makes of messages: what it notes, and what it spoils."""

import pytest

from chaos.history.history_events import ConfigPush, ConfigReply
from chaos.xds_tap.falsify import GARBAGE
from chaos.xds_tap.tap_control import TapControl
from chaos.xds_tap.tap_events import tap_events
from chaos.xds_tap.tap_rules import StreamTreatment, TapRule, stream_treatment
from chaos.xds_tap.tapped_stream import DELTA, SOTW, tapped_stream
from xds_server.model.type_urls import CLUSTER, ENDPOINT
from xds_server.telemetry import access_log_service, load_report_service
from xds_server.telemetry.access_log_service import AccessLogs
from xds_server.telemetry.load_report_service import LoadReport
from xds_server.wire.decode import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DiscoveryRequest,
    DiscoveryResponse,
)
from xds_server.wire.responses import delta_chunk, delta_response, sotw_chunk, sotw_response

REQUEST = {DELTA: DeltaDiscoveryRequest, SOTW: DiscoveryRequest}


def response(method: str, type_url: str, nonce: str, *names: str, removed: tuple[str, ...] = ()) -> bytes:
    if method == DELTA:
        chunks = [delta_chunk(name, "v", type_url, b"") for name in names]
        return delta_response(type_url, nonce, "v", chunks, removed)
    return sotw_response(type_url, "v", nonce, [sotw_chunk(type_url, b"") for _ in names])


@pytest.mark.parametrize("method", [DELTA, SOTW])
def test_each_push_and_its_ack_or_nack_are_recorded(method: str) -> None:
    noted: list[dict[str, str]] = []
    one = tapped_stream(method, StreamTreatment, noted.append)
    request = REQUEST[method]
    first = request(type_url=CLUSTER).SerializeToString()
    assert one.on_request(first) == first
    assert noted == []
    push = response(method, CLUSTER, "1", "chat")
    assert one.on_response(push) == push
    ack = request(type_url=CLUSTER, response_nonce="1").SerializeToString()
    assert one.on_request(ack) == ack
    assert one.on_request(ack) == ack
    one.on_response(response(method, ENDPOINT, "2", "chat"))
    nack = request(type_url=ENDPOINT, response_nonce="2")
    nack.error_detail.code = 13
    nack.error_detail.message = "no such thing"
    one.on_request(nack.SerializeToString())
    assert noted == [
        {"event": "pushed", "type": "cds", "nonce": "1"},
        {"event": "answered", "type": "cds", "nonce": "1"},
        {"event": "pushed", "type": "eds", "nonce": "2"},
        {"event": "answered", "type": "eds", "nonce": "2", "error": "no such thing"},
    ]


def test_long_nack_reason_keeps_its_beginning_and_its_end() -> None:
    noted: list[dict[str, str]] = []
    one = tapped_stream(DELTA, StreamTreatment, noted.append)
    one.on_response(response(DELTA, CLUSTER, "1", "chat"))
    nack = DeltaDiscoveryRequest(type_url=CLUSTER, response_nonce="1")
    nack.error_detail.message = f"refused {'x' * 10_000} because\n"
    one.on_request(nack.SerializeToString())
    told = noted[-1]["error"]
    assert len(told) <= 500
    assert told.startswith("refused x")
    assert told.endswith("x because")


def test_notes_become_events() -> None:
    desk = TapControl()
    note = desk.note_of("p0")
    note({"event": "pushed", "type": "cds", "nonce": "1"})
    note({"event": "answered", "type": "cds", "nonce": "1", "error": "no"})
    pushed, answered = tap_events(desk.events(), 0.0)
    assert pushed == ConfigPush(at_s=pushed.at_s, proxy="p0", type="cds", nonce="1")
    assert answered == ConfigReply(at_s=answered.at_s, proxy="p0", type="cds", nonce="1", error="no")
    assert tap_events(desk.events(), 100.0)[0].at_s == pytest.approx(pushed.at_s - 100)


def test_only_the_selected_xds_type_is_corrupted() -> None:
    one = tapped_stream(DELTA, lambda: StreamTreatment(corrupt=frozenset({"cds"})), lambda _: None)
    endpoints = response(DELTA, ENDPOINT, "1", "chat")
    assert one.on_response(endpoints) == endpoints
    spoilt = DeltaDiscoveryResponse.FromString(
        one.on_response(response(DELTA, CLUSTER, "2", "a", "b", removed=("c",)))
    )
    assert [(each.name, each.resource.value) for each in spoilt.resources] == [("a", GARBAGE), ("b", GARBAGE)]
    assert list(spoilt.removed_resources) == ["c", "c"]
    one = tapped_stream(SOTW, lambda: StreamTreatment(corrupt=frozenset({"cds"})), lambda _: None)
    for names in (("a", "b"), ()):
        whole = DiscoveryResponse.FromString(one.on_response(response(SOTW, CLUSTER, "2", *names)))
        assert [each.value for each in whole.resources] == [GARBAGE] * max(1, len(names))
        assert whole.nonce == "2"


def test_unparsable_messages_pass_unchanged() -> None:
    for method in (DELTA, SOTW, access_log_service.METHOD, load_report_service.METHOD, "/other"):
        one = tapped_stream(
            method, lambda: StreamTreatment(says="all-good", corrupt=frozenset({"cds"})), lambda _: None
        )
        assert one.on_request(GARBAGE) == GARBAGE
        assert one.on_response(GARBAGE) == GARBAGE
        assert one.telemetry == (method in (access_log_service.METHOD, load_report_service.METHOD))


def logs() -> bytes:
    batch = AccessLogs()
    good, bad, shed = (batch.http_logs.log_entry.add() for _ in range(3))
    good.common_properties.upstream_remote_address.socket_address.port_value = 1
    good.common_properties.time_to_last_upstream_rx_byte.seconds = 1
    good.response.response_code.value = 200
    bad.common_properties.upstream_remote_address.socket_address.port_value = 1
    bad.common_properties.duration.seconds = 2
    bad.common_properties.response_flags.upstream_protocol_error = True
    shed.common_properties.response_flags.upstream_overflow = True
    batch.identifier.log_name = "kept"
    return batch.SerializeToString()


def told(says: str) -> AccessLogs:
    one = tapped_stream(access_log_service.METHOD, lambda: StreamTreatment(says=says), lambda _: None)  # type: ignore[arg-type]
    return AccessLogs.FromString(one.on_request(logs()))


def test_als_access_log_outcomes_are_falsified() -> None:
    for entry in told("all-good").http_logs.log_entry[:2]:
        assert entry.response.response_code.value == 200
        assert not entry.common_properties.HasField("response_flags")
        assert entry.common_properties.HasField("time_to_last_upstream_rx_byte")
    for entry in told("all-failed").http_logs.log_entry[:2]:
        assert not entry.response.HasField("response_code")
        assert entry.common_properties.response_flags.upstream_remote_reset
        assert not entry.common_properties.HasField("time_to_last_upstream_rx_byte")
    for says in ("all-good", "all-failed"):
        message = told(says)
        assert message.identifier.log_name == "kept"
        assert message.http_logs.log_entry[2] == AccessLogs.FromString(logs()).http_logs.log_entry[2]
    assert told("") == AccessLogs.FromString(logs())


def test_lrs_load_reports_are_falsified_alike() -> None:
    report = LoadReport()
    locality = report.cluster_stats.add().upstream_locality_stats.add(
        total_successful_requests=3, total_error_requests=2, total_requests_in_progress=7
    )
    locality.upstream_endpoint_stats.add(total_successful_requests=1)
    for says, (good, bad) in {"all-good": (5, 0), "all-failed": (0, 5)}.items():
        one = tapped_stream(
            load_report_service.METHOD, lambda says=says: StreamTreatment(says=says), lambda _: None
        )  # type: ignore[misc]
        (cluster,) = LoadReport.FromString(one.on_request(report.SerializeToString())).cluster_stats
        (stats,) = cluster.upstream_locality_stats
        assert (stats.total_successful_requests, stats.total_error_requests) == (good, bad)
        assert stats.total_requests_in_progress == 7
        (endpoint,) = stats.upstream_endpoint_stats
        assert endpoint.total_successful_requests == (1 if good else 0)


def test_rules_of_one_proxy_combine_and_the_latest_wins() -> None:
    orders = {
        "a": TapRule(proxy="p0", corrupt="cds", says="all-failed"),
        "b": TapRule(proxy="p0", corrupt="eds", says="all-good"),
        "c": TapRule(proxy="p1", lost=True),
    }
    assert stream_treatment(orders, "p0") == StreamTreatment(says="all-good", corrupt=frozenset({"cds", "eds"}))
    assert stream_treatment(orders, "p1") == StreamTreatment(lost=True)
    assert stream_treatment(orders, "p2") == StreamTreatment()
