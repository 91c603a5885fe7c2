"""Unanswered responses: order, limit, and the single retry."""

from xds_server.model.snapshot import Resource, resource
from xds_server.model.type_urls import CLUSTER
from xds_server.xds.in_flight import InFlight, PendingResponse


def pending(nonce: str, *, sent_at_s: float = 0.0, **content: str) -> PendingResponse:
    items: dict[str, Resource | None] = {
        name: resource(CLUSTER, name, value.encode()) if value else None for name, value in content.items()
    }
    resources = tuple(item for item in items.values() if item)
    return PendingResponse(nonce=nonce, sent_at_s=sent_at_s, content=items, resources=resources, adds=False)


def in_flight(*responses: PendingResponse) -> InFlight:
    made = InFlight(limit=2)
    for response in responses:
        made.add(response)
    return made


def test_an_answer_passes_over_the_responses_before_it() -> None:
    flight = in_flight(pending("1"), pending("2"), pending("3"))
    answered = flight.answer("2")
    assert answered is not None
    assert answered.response.nonce == "2"
    assert [response.nonce for response in answered.passed_over] == ["1"]
    assert [response.nonce for response in flight.responses] == ["3"]
    assert flight.answer("1") is None
    assert flight.last_nonce == "3"


def test_second_try_exceeds_the_limit_once_until_the_next_answer() -> None:
    flight = in_flight(pending("1"), pending("2"))
    assert flight.is_full
    assert flight.try_again()
    assert not flight.is_full
    flight.add(pending("3"))
    assert flight.is_full
    assert not flight.try_again()
    flight.answer("2")
    assert flight.try_again()


def test_outcome_is_what_the_peer_holds_once_it_has_accepted_everything() -> None:
    known = {"kept": resource(CLUSTER, "kept", b"1"), "gone": resource(CLUSTER, "gone", b"1")}
    flight = in_flight(pending("1", new="a", gone="b"), pending("2", gone=""))
    assert {name: item.value for name, item in flight.outcome(known).items()} == {"kept": b"1", "new": b"a"}
    assert flight.carries("gone")
    assert not flight.carries("kept")


def test_each_response_is_reported_stuck_once() -> None:
    flight = in_flight(pending("1"), pending("2", sent_at_s=10.0))
    assert [response.nonce for response in flight.newly_stuck(20.0, 20.0)] == ["1"]
    assert [response.nonce for response in flight.newly_stuck(30.0, 20.0)] == ["2"]
    assert list(flight.newly_stuck(99.0, 20.0)) == []
