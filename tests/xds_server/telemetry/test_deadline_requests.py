"""Requests that a deadline refused or ended: counted by themselves, and no demand of the pool."""

import pytest

from policies.route import PriorityClass
from tests.xds_server.telemetry.test_call_latency import NOW_S
from tests.xds_server.telemetry.test_request_tap import only, record_request, watch
from xds_server.model.pool_traffic import DeadlineResult
from xds_server.telemetry.attempt_outcome import deadline_result
from xds_server.telemetry.traffic_store import TrafficStore

REFUSAL = "talk/deadline-too-short/streaming/2"
EXPIRED = "max_duration_timeout"


@pytest.mark.parametrize(
    ("route", "details", "result"),
    [
        (REFUSAL, "lua_response", DeadlineResult.REFUSED),
        ("talk/streaming/deadline", EXPIRED, DeadlineResult.EXPIRED),
        ("talk/non-streaming/short-deadline", EXPIRED, DeadlineResult.EXPIRED),
        ("talk/streaming", "response_timeout", None),
        ("deadline-too-short/streaming", "", None),  # a ModelRoute of this name
    ],
)
def test_name_and_details_tell_what_a_deadline_did(
    route: str, details: str, result: DeadlineResult | None
) -> None:
    assert deadline_result(route, details) is result


def test_refused_and_expired_requests_count_apart_from_demand(book: TrafficStore) -> None:
    record_request(book, route=REFUSAL)
    record_request(book, route="talk/streaming/deadline", details=EXPIRED, attempt="1")
    record_request(book, route="talk/streaming/deadline", details=EXPIRED, attempt="")
    totals = book.totals()["chat"]
    assert totals.deadlines == {DeadlineResult.REFUSED: 1, DeadlineResult.EXPIRED: 2}
    assert sum(totals.refused.values()) == totals.requests[PriorityClass.INTERACTIVE] == totals.timed_out == 0
    assert "p1" not in getattr(book.traffic(NOW_S).get("chat"), "proxies", {})


def test_pool_that_a_reporter_must_not_see_is_not_counted(book: TrafficStore) -> None:
    record_request(book, lambda _pool: False, route=REFUSAL)
    assert "chat" not in book.totals()


def test_tap_shows_the_reason(book: TrafficStore) -> None:
    watcher = watch(book)
    record_request(book, route=REFUSAL)
    assert only(watcher).reason == "deadline-too-short: no answer could be complete in time"
    record_request(book, route="talk/streaming/deadline", details=EXPIRED, attempt="1")
    seen = only(watcher)
    assert (seen.result, seen.reason) == ("timed-out", "timeout: the deadline of the request expired")
