"""What a wiretap makes of messages: what it notes, and what it spoils."""

import pytest

from chaos.history.events import Answered, Pushed
from chaos.wiretap.desk import Desk
from chaos.wiretap.orders import Order, Treatment, treatment
from chaos.wiretap.seen import pushes_and_answers
from chaos.wiretap.spoil import GARBAGE
from chaos.wiretap.streams import DELTA, SOTW, stream
from xds_server.sources.telemetry import access_logs, load_reports
from xds_server.sources.telemetry.access_logs import AccessLogs
from xds_server.sources.telemetry.load_reports import LoadReport
from xds_server.type_urls import CLUSTER, ENDPOINT
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
def test_each_push_and_its_first_answer_are_noted(method: str) -> None:
    noted: list[dict[str, str]] = []
    one = stream(method, Treatment, noted.append)
    request = REQUEST[method]
    first = request(type_url=CLUSTER).SerializeToString()
    assert one.asked(first) == first
    assert noted == []
    push = response(method, CLUSTER, "1", "chat")
    assert one.answered(push) == push
    ack = request(type_url=CLUSTER, response_nonce="1").SerializeToString()
    assert one.asked(ack) == ack
    assert one.asked(ack) == ack
    one.answered(response(method, ENDPOINT, "2", "chat"))
    nack = request(type_url=ENDPOINT, response_nonce="2")
    nack.error_detail.code = 13
    nack.error_detail.message = "no such thing"
    one.asked(nack.SerializeToString())
    assert noted == [
        {"event": "pushed", "type": "cds", "nonce": "1"},
        {"event": "answered", "type": "cds", "nonce": "1"},
        {"event": "pushed", "type": "eds", "nonce": "2"},
        {"event": "answered", "type": "eds", "nonce": "2", "error": "no such thing"},
    ]


def test_a_long_reason_keeps_its_beginning_and_its_end() -> None:
    noted: list[dict[str, str]] = []
    one = stream(DELTA, Treatment, noted.append)
    one.answered(response(DELTA, CLUSTER, "1", "chat"))
    nack = DeltaDiscoveryRequest(type_url=CLUSTER, response_nonce="1")
    nack.error_detail.message = f"refused {'x' * 10_000} because\n"
    one.asked(nack.SerializeToString())
    told = noted[-1]["error"]
    assert len(told) <= 500
    assert told.startswith("refused x")
    assert told.endswith("x because")


def test_what_is_noted_becomes_events() -> None:
    desk = Desk()
    note = desk.note_of("p0")
    note({"event": "pushed", "type": "cds", "nonce": "1"})
    note({"event": "answered", "type": "cds", "nonce": "1", "error": "no"})
    pushed, answered = pushes_and_answers(desk.seen(), 0.0)
    assert pushed == Pushed(at_s=pushed.at_s, proxy="p0", type="cds", nonce="1")
    assert answered == Answered(at_s=answered.at_s, proxy="p0", type="cds", nonce="1", error="no")
    assert pushes_and_answers(desk.seen(), 100.0)[0].at_s == pytest.approx(pushed.at_s - 100)


def test_only_the_type_that_is_meant_is_spoilt_and_all_of_it() -> None:
    one = stream(DELTA, lambda: Treatment(corrupt=frozenset({"cds"})), lambda _: None)
    endpoints = response(DELTA, ENDPOINT, "1", "chat")
    assert one.answered(endpoints) == endpoints
    spoilt = DeltaDiscoveryResponse.FromString(
        one.answered(response(DELTA, CLUSTER, "2", "a", "b", removed=("c",)))
    )
    assert [(each.name, each.resource.value) for each in spoilt.resources] == [("a", GARBAGE), ("b", GARBAGE)]
    assert list(spoilt.removed_resources) == ["c", "c"]
    one = stream(SOTW, lambda: Treatment(corrupt=frozenset({"cds"})), lambda _: None)
    for names in (("a", "b"), ()):
        whole = DiscoveryResponse.FromString(one.answered(response(SOTW, CLUSTER, "2", *names)))
        assert [each.value for each in whole.resources] == [GARBAGE] * max(1, len(names))
        assert whole.nonce == "2"


def test_messages_that_are_none_go_on_as_they_are() -> None:
    for method in (DELTA, SOTW, access_logs.METHOD, load_reports.METHOD, "/other"):
        one = stream(method, lambda: Treatment(says="all-good", corrupt=frozenset({"cds"})), lambda _: None)
        assert one.asked(GARBAGE) == GARBAGE
        assert one.answered(GARBAGE) == GARBAGE
        assert one.telemetry == (method in (access_logs.METHOD, load_reports.METHOD))


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
    one = stream(access_logs.METHOD, lambda: Treatment(says=says), lambda _: None)  # type: ignore[arg-type]
    return AccessLogs.FromString(one.asked(logs()))


def test_every_call_that_reached_an_engine_is_said_to_have_ended_so() -> None:
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


def test_load_reports_say_the_same() -> None:
    report = LoadReport()
    locality = report.cluster_stats.add().upstream_locality_stats.add(
        total_successful_requests=3, total_error_requests=2, total_requests_in_progress=7
    )
    locality.upstream_endpoint_stats.add(total_successful_requests=1)
    for says, (good, bad) in {"all-good": (5, 0), "all-failed": (0, 5)}.items():
        one = stream(load_reports.METHOD, lambda says=says: Treatment(says=says), lambda _: None)  # type: ignore[misc]
        (cluster,) = LoadReport.FromString(one.asked(report.SerializeToString())).cluster_stats
        (stats,) = cluster.upstream_locality_stats
        assert (stats.total_successful_requests, stats.total_error_requests) == (good, bad)
        assert stats.total_requests_in_progress == 7
        (endpoint,) = stats.upstream_endpoint_stats
        assert endpoint.total_successful_requests == (1 if good else 0)


def test_orders_of_one_proxy_come_together_and_the_latest_lie_counts() -> None:
    orders = {
        "a": Order(proxy="p0", corrupt="cds", says="all-failed"),
        "b": Order(proxy="p0", corrupt="eds", says="all-good"),
        "c": Order(proxy="p1", lost=True),
    }
    assert treatment(orders, "p0") == Treatment(says="all-good", corrupt=frozenset({"cds", "eds"}))
    assert treatment(orders, "p1") == Treatment(lost=True)
    assert treatment(orders, "p2") == Treatment()
