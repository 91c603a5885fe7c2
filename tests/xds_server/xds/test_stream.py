"""One example for each rule of the protocol."""

from typing import Any

import pytest

from xds_server.model.snapshot import Snapshot, resource, snapshot
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE, RUNTIME, SECRET, SHORT_NAMES
from xds_server.xds import (
    Acked,
    Confirmed,
    DeltaRequest,
    Nacked,
    NodeInfo,
    Response,
    SotwRequest,
    Stream,
    StreamError,
    StuckResponse,
    UnknownType,
    XdsVariant,
)
from xds_server.xds.messages import ADD_WAIT_S, MAX_NAMES, MAX_TYPES, REMOVAL_WAIT_S

ENVOY = NodeInfo(id="n1", user_agent_name="envoy")
GRPC = NodeInfo(id="g1", user_agent_name="gRPC Python")


def serve(**named: dict[str, str]) -> Snapshot:
    """``serve(CDS={"c": "content"})``."""
    urls = {short: url for url, short in SHORT_NAMES.items()}
    return snapshot(
        resource(urls[short], name, content.encode())
        for short, contents in named.items()
        for name, content in contents.items()
    )


def delta(first: Snapshot, node: NodeInfo = GRPC) -> Stream:
    return Stream(XdsVariant.DELTA, node, first, sequence=1, now_s=0.0)


def sotw(first: Snapshot, node: NodeInfo = GRPC) -> Stream:
    return Stream(XdsVariant.SOTW, node, first, sequence=1, now_s=0.0)


def names(response: Response) -> list[str]:
    return [item.name for item in response.resources]


def ask(stream: Stream, type_url: str, *subscribe: str, now_s: float = 0.0) -> list[Response]:
    stream.request(DeltaRequest(type_url=type_url, subscribe=subscribe), now_s)
    return stream.due(now_s)


def ack(stream: Stream, response: Response, now_s: float = 0.0, error: str | None = None) -> list[Response]:
    stream.request(DeltaRequest(type_url=response.type_url, nonce=response.nonce, error=error), now_s)
    return stream.due(now_s)


def test_empty_first_cds_request_is_a_wildcard_subscription() -> None:
    stream = delta(serve(CDS={"a": "1", "b": "1"}))
    (response,) = ask(stream, CLUSTER)
    assert names(response) == ["a", "b"]


def test_empty_first_eds_request_subscribes_to_nothing() -> None:
    assert ask(delta(serve(EDS={"a": "1"})), ENDPOINT) == []


def test_empty_cds_snapshot_is_a_response() -> None:
    (response,) = ask(delta(serve()), CLUSTER)
    assert (response.resources, response.removed) == ((), ())


def test_wildcard_and_named_subscriptions_are_removed_separately() -> None:
    stream = delta(serve(CDS={"a": "1", "b": "1"}))
    (first,) = ask(stream, CLUSTER, "*", "a")
    assert ack(stream, first) == []
    stream.request(DeltaRequest(type_url=CLUSTER, unsubscribe=("*",)), 0.0)
    stream.offer(serve(CDS={"a": "2", "b": "2"}), 2)
    (response,) = stream.due(0.0)
    assert names(response) == ["a"]
    # Dropping all names after naming one is not a wildcard.
    stream.request(DeltaRequest(type_url=CLUSTER, unsubscribe=("a",)), 0.0)
    stream.offer(serve(CDS={"a": "3", "b": "3"}), 3)
    assert stream.due(0.0) == []


def test_name_unsubscribed_under_a_wildcard_is_resent() -> None:
    stream = delta(serve(CDS={"a": "1"}))
    ack(stream, ask(stream, CLUSTER, "*", "a")[0])
    stream.request(DeltaRequest(type_url=CLUSTER, unsubscribe=("a",)), 0.0)
    (response,) = stream.due(0.0)
    assert names(response) == ["a"]


def test_resubscribed_resource_is_resent() -> None:
    stream = delta(serve(EDS={"a": "1"}))
    ack(stream, ask(stream, ENDPOINT, "a")[0])
    (response,) = ask(stream, ENDPOINT, "a")
    assert names(response) == ["a"]


def test_subscription_to_a_missing_resource_is_answered_and_sent_later() -> None:
    stream = delta(serve())
    for type_url in (SECRET, RUNTIME, ENDPOINT, ROUTE):
        (response,) = ask(stream, type_url, "x")
        assert response.removed == ("x",)
        assert ack(stream, response) == []
    stream.offer(serve(SDS={"x": "1"}), 2)
    (response,) = stream.due(0.0)
    assert names(response) == ["x"]


def test_missing_rtds_layer_is_empty_in_sotw() -> None:
    stream = sotw(serve())
    stream.request(SotwRequest(type_url=RUNTIME, names=("live",)), 0.0)
    (response,) = stream.due(0.0)
    assert [(item.name, item.value) for item in response.resources] == [("live", b"\x0a\x04live")]
    stream.request(
        SotwRequest(type_url=RUNTIME, names=("live",), version=response.version, nonce=response.nonce), 0.0
    )
    assert stream.due(0.0) == []


def test_initial_resource_versions_on_reconnect_draw_no_response_and_count_as_acked() -> None:
    served = serve(CDS={"a": "1"}, EDS={"a": "1"})
    stream = delta(served)
    held = {"a": served.of(CLUSTER)["a"].version}
    (event,) = stream.request(DeltaRequest(type_url=CLUSTER, initial_versions=held), 0.0)
    assert isinstance(event, Confirmed)
    held = {"a": served.of(ENDPOINT)["a"].version}
    stream.request(DeltaRequest(type_url=ENDPOINT, subscribe=("a",), initial_versions=held), 0.0)
    assert stream.due(0.0) == []


def test_initial_resource_versions_of_deleted_resources_are_removed() -> None:
    stream = delta(serve(CDS={"a": "1"}))
    stream.request(DeltaRequest(type_url=CLUSTER, initial_versions={"gone": "v"}), 0.0)
    responses = stream.due(0.0)
    assert [(names(response), response.removed) for response in responses] == [(["a"], ()), ([], ("gone",))]


def test_resource_counts_as_held_after_ack() -> None:
    stream = delta(serve(CDS={"a": "1"}))
    (response,) = ask(stream, CLUSTER)
    assert stream.status()[0].held == 0
    (event,) = stream.request(DeltaRequest(type_url=CLUSTER, nonce=response.nonce), 0.25)
    assert isinstance(event, Acked)
    assert event.latency_s == 0.25
    assert stream.status()[0].held == 1


def test_nacked_version_is_not_resent() -> None:
    stream = delta(serve(CDS={"a": "1"}))
    (response,) = ask(stream, CLUSTER)
    (event,) = stream.request(DeltaRequest(type_url=CLUSTER, nonce=response.nonce, error="x" * 5000 + "why"), 0.0)
    assert isinstance(event, Nacked)
    assert event.reason.endswith("why")
    assert len(event.reason) <= 2048
    assert stream.due(0.0) == []
    assert stream.status()[0].state.value == "NACK"
    stream.offer(serve(CDS={"a": "1", "b": "1"}), 2)
    (response,) = stream.due(0.0)
    assert names(response) == ["b"]
    stream.offer(serve(CDS={"a": "2", "b": "1"}), 3)
    (response,) = stream.due(0.0)
    assert names(response) == ["a"]


def test_rest_of_a_nacked_response_is_sent_after_the_nack_is_cleared() -> None:
    stream = delta(serve(CDS={"good": "1", "bad": "1"}))
    (response,) = ask(stream, CLUSTER)
    assert ack(stream, response, error="bad: no") == []
    stream.clear_nack(CLUSTER, [(item.name, item.version) for item in response.resources if item.name == "good"])
    (response,) = stream.due(0.0)
    assert names(response) == ["good"]


def test_stale_nonce_does_not_ack_but_its_subscription_counts() -> None:
    stream = delta(serve(EDS={"a": "1", "b": "1"}))
    (response,) = ask(stream, ENDPOINT, "a")
    assert stream.request(DeltaRequest(type_url=ENDPOINT, subscribe=("b",), nonce="stale"), 0.0) == ()
    (second,) = stream.due(0.0)
    assert names(second) == ["b"]
    assert stream.status()[0].held == 0
    assert ack(stream, response) == []


def test_stale_nonce_sotw_request_is_ignored() -> None:
    stream = sotw(serve(EDS={"a": "1", "b": "1"}))
    stream.request(SotwRequest(type_url=ENDPOINT, names=("a",)), 0.0)
    (first,) = stream.due(0.0)
    stream.offer(serve(EDS={"a": "2", "b": "1"}), 2)
    (second,) = stream.due(0.0)
    stream.request(SotwRequest(type_url=ENDPOINT, names=("a", "b"), version=first.version, nonce=first.nonce), 0.0)
    assert stream.due(0.0) == []
    stream.request(
        SotwRequest(type_url=ENDPOINT, names=("a", "b"), version=second.version, nonce=second.nonce), 0.0
    )
    (third,) = stream.due(0.0)
    assert names(third) == ["a", "b"]


def test_sotw_cds_removes_by_omission_and_eds_does_not() -> None:
    stream = sotw(serve(CDS={"a": "1", "b": "1"}, EDS={"a": "1", "b": "1"}))
    stream.request(SotwRequest(type_url=CLUSTER), 0.0)
    stream.request(SotwRequest(type_url=ENDPOINT, names=("a", "b")), 0.0)
    clusters, endpoints = stream.due(0.0)
    for response, wanted in ((clusters, ()), (endpoints, ("a", "b"))):
        stream.request(
            SotwRequest(type_url=response.type_url, names=wanted, version=response.version, nonce=response.nonce),
            0.0,
        )
    stream.offer(serve(CDS={"a": "1"}, EDS={"a": "1"}), 2)
    (response,) = stream.due(0.0)
    assert (response.type_url, names(response)) == (CLUSTER, ["a"])


def test_sotw_nack_keeps_the_previous_cluster() -> None:
    stream = sotw(serve(CDS={"a": "old", "b": "1"}))
    stream.request(SotwRequest(type_url=CLUSTER), 0.0)
    (first,) = stream.due(0.0)
    stream.request(SotwRequest(type_url=CLUSTER, version=first.version, nonce=first.nonce), 0.0)
    stream.offer(serve(CDS={"a": "new", "b": "1"}), 2)
    (second,) = stream.due(0.0)
    stream.request(SotwRequest(type_url=CLUSTER, version=first.version, nonce=second.nonce, error="no"), 0.0)
    assert stream.due(0.0) == []
    stream.offer(serve(CDS={"a": "new", "b": "2"}), 3)
    (third,) = stream.due(0.0)
    assert {item.name: item.value for item in third.resources} == {"a": b"old", "b": b"2"}


def test_make_before_break_push_order() -> None:
    everything = {"RTDS": {"l": "1"}, "CDS": {"a": "1"}, "EDS": {"a": "1"}, "LDS": {"in": "1"}, "RDS": {"rc": "1"}}
    stream = delta(serve(**everything))
    for type_url, wanted in (
        (ROUTE, ("rc",)),
        (LISTENER, ()),
        (ENDPOINT, ("a",)),
        (CLUSTER, ()),
        (RUNTIME, ("l",)),
    ):
        stream.request(DeltaRequest(type_url=type_url, subscribe=wanted), 0.0)
    first = stream.due(0.0)
    assert [SHORT_NAMES[response.type_url] for response in first] == ["RTDS", "CDS", "EDS"]
    # Routes wait for the ACK of the clusters they may name, which follows warming.
    assert ack(stream, first[2]) == []
    assert [SHORT_NAMES[response.type_url] for response in ack(stream, first[1])] == ["LDS", "RDS"]


def answered(stream: Stream) -> Stream:
    while due := stream.due(0.0):
        for response in due:
            version = {"version": response.version} if stream.mode is XdsVariant.SOTW else {}
            kind: Any = SotwRequest if stream.mode is XdsVariant.SOTW else DeltaRequest
            wanted = {"names": {ENDPOINT: ("c",), ROUTE: ("rc",)}.get(response.type_url, ())} if version else {}
            stream.request(kind(type_url=response.type_url, nonce=response.nonce, **version, **wanted), 0.0)
    return stream


@pytest.mark.parametrize("mode", XdsVariant)
def test_make_before_break_internal_listener_and_endpoint(mode: XdsVariant) -> None:
    def wanted(*engines: str, route: str = "1") -> Snapshot:
        resources_ = {"LDS": {"in": "1", **dict.fromkeys(engines, "1")}, "EDS": {"c": " ".join(engines)}}
        return serve(CDS={"c": "1"}, RDS={"rc": route}, **resources_)

    stream = Stream(mode, ENVOY, wanted("x"), sequence=1, now_s=0.0)
    for type_url, names_ in ((CLUSTER, ()), (ENDPOINT, ("c",)), (LISTENER, ()), (ROUTE, ("rc",))):
        if mode is XdsVariant.SOTW:
            stream.request(SotwRequest(type_url=type_url, names=names_), 0.0)
        else:
            stream.request(DeltaRequest(type_url=type_url, subscribe=names_), 0.0)
    answered(stream)
    stream.offer(wanted("y", route="2"), 2)
    pushes = [
        (SHORT_NAMES[response.type_url], sorted(names(response)), sorted(response.removed))
        for response in stream.due(0.0)
    ]
    if mode is XdsVariant.SOTW:
        listeners = [["in", "x", "y"], ["in", "y"]]  # absent resources are removed
        removed = []
    else:
        listeners, removed = [["y"], []], ["x"]
    assert pushes == [
        ("LDS", listeners[0], []),
        ("EDS", ["c"], []),
        ("LDS", listeners[1], removed),
        ("RDS", ["rc"], []),
    ]


def test_make_before_break_routes_wait_for_clusters_with_timeout() -> None:
    stream = delta(serve(CDS={"a": "1"}, RDS={"rc": "1"}))
    stream.request(DeltaRequest(type_url=CLUSTER), 0.0)
    stream.request(DeltaRequest(type_url=ROUTE, subscribe=("rc",)), 0.0)
    assert len(stream.due(0.0)) == 1
    assert stream.is_waiting
    assert len(stream.due(ADD_WAIT_S)) == 1


def settled() -> Stream:
    """A stream whose peer has accepted one cluster, its endpoints and the route to it."""
    stream = delta(serve(CDS={"old": "1"}, EDS={"old": "1"}, RDS={"rc": "->old"}))
    stream.request(DeltaRequest(type_url=CLUSTER), 0.0)
    stream.request(DeltaRequest(type_url=ENDPOINT, subscribe=("old",)), 0.0)
    stream.request(DeltaRequest(type_url=ROUTE, subscribe=("rc",)), 0.0)
    while due := stream.due(0.0):
        for response in due:
            stream.request(DeltaRequest(type_url=response.type_url, nonce=response.nonce), 0.0)
    return stream


def test_make_before_break_removes_cluster_after_route_ack() -> None:
    stream = settled()
    stream.offer(serve(CDS={"new": "1"}, EDS={"new": "1"}, RDS={"rc": "->new"}), 2)
    (added,) = stream.due(0.0)
    assert (names(added), added.removed) == (["new"], ())
    (route,) = ack(stream, added)
    assert names(route) == ["rc"]
    clusters, endpoints = ack(stream, route)
    assert (clusters.type_url, clusters.removed) == (CLUSTER, ("old",))
    assert (endpoints.type_url, endpoints.removed) == (ENDPOINT, ("old",))


def test_make_before_break_removal_times_out_without_ack_and_never_on_nack() -> None:
    stream = settled()
    stream.offer(serve(RDS={"rc": "->other"}), 2)
    (route,) = stream.due(0.0)
    assert stream.due(REMOVAL_WAIT_S - 1) == []
    assert [response.removed for response in stream.due(REMOVAL_WAIT_S)] == [("old",), ("old",)]

    stream = settled()
    stream.offer(serve(RDS={"rc": "->other"}), 2)
    (route,) = stream.due(0.0)
    assert ack(stream, route, error="no") == []
    assert stream.due(1e6) == []


def test_changed_cluster_resends_eds_for_warming() -> None:
    stream = settled()
    before = stream.snapshot.of(ENDPOINT)["old"]
    stream.offer(serve(CDS={"old": "2"}, EDS={"old": "1"}, RDS={"rc": "->old"}), 2)
    clusters, endpoints = stream.due(0.0)
    assert (clusters.type_url, endpoints.type_url) == (CLUSTER, ENDPOINT)
    assert endpoints.resources[0].value == before.value
    assert endpoints.resources[0].version != before.version


def test_reverted_cluster_still_resends_eds_for_warming() -> None:
    stream = settled()
    for sequence, content in enumerate(("2", "3", "1"), start=2):
        stream.offer(serve(CDS={"old": content}, EDS={"old": "1"}, RDS={"rc": "->old"}), sequence)
        stream.due(0.0)
    pending = [response.nonce for response in stream._types[CLUSTER].in_flight.responses]
    assert len(pending) == 2
    stream.request(DeltaRequest(type_url=ENDPOINT, nonce=stream._types[ENDPOINT].in_flight.last_nonce), 0.0)
    stream.due(0.0)
    stream.request(DeltaRequest(type_url=CLUSTER, nonce=pending[-1]), 0.0)
    assert [SHORT_NAMES[response.type_url] for response in stream.due(0.0)] == ["CDS", "EDS"]


def test_at_most_two_unacked_responses_then_the_newest() -> None:
    stream = delta(serve(EDS={"a": "1"}))
    (first,) = ask(stream, ENDPOINT, "a")
    sent = [first]
    for n in range(2, 9):
        stream.offer(serve(EDS={"a": f"{n}"}), n)
        sent += stream.due(0.0)
    assert [response.resources[0].value for response in sent] == [b"1", b"2"]
    (newest,) = ack(stream, first)
    assert newest.resources[0].value == b"8"


def test_unacked_response_is_reported_stuck_and_cds_is_resent_once() -> None:
    stream = delta(serve(CDS={"a": "1"}, EDS={"a": "1"}))
    ask(stream, CLUSTER)
    ask(stream, ENDPOINT, "a")
    assert stream.tick(19.0) == ()
    events = stream.tick(21.0)
    assert {event.type_url for event in events if isinstance(event, StuckResponse)} == {CLUSTER, ENDPOINT}
    again = stream.due(21.0)
    assert [SHORT_NAMES[response.type_url] for response in again] == ["CDS", "EDS"]
    assert len(stream.tick(45.0)) == 2
    assert stream.due(45.0) == []


def test_cds_resend_passes_the_limit_of_unacked_responses() -> None:
    stream = delta(serve(CDS={"a": "1"}))
    ask(stream, CLUSTER)
    for n in (2, 3):
        stream.offer(serve(CDS={"a": f"{n}"}), n)
        stream.due(0.0)
    stream.tick(21.0)
    (newest,) = stream.due(21.0)
    assert newest.resources[0].value == b"3"


def test_possibly_held_unacked_resource_is_removed() -> None:
    stream = delta(serve(CDS={"a": "1"}))
    ask(stream, CLUSTER)
    stream.offer(serve(CDS={"a": "1", "b": "1"}), 2)
    (second,) = stream.due(0.0)
    stream.offer(serve(CDS={"b": "1"}), 3)
    # The peer answers only the second response: whether it applied the first is unknown.
    (removal,) = ack(stream, second)
    assert removal.removed == ("a",)


def test_sotw_response_never_omits_rolled_back_unknown_content() -> None:
    stream = sotw(snapshot([], rolled_back={CLUSTER: {"a"}}))
    stream.request(SotwRequest(type_url=CLUSTER, version="of another server"), 0.0)
    stream.offer(snapshot([resource(CLUSTER, "b", b"1")], rolled_back={CLUSTER: {"a"}}), 2)
    assert stream.due(0.0) == [], "a response without cluster a would delete it"
    stream.offer(serve(CDS={"a": "better", "b": "1"}), 3)
    (response,) = stream.due(0.0)
    assert sorted(names(response)) == ["a", "b"]


def test_implicit_cds_subscription_is_served() -> None:
    served = serve(CDS={"a": "1"}, LDS={"in": "1"}, EDS={"a": "1"})
    for node, expected in ((GRPC, []), (ENVOY, ["CDS"])):
        stream = delta(served, node)
        ask(stream, ENDPOINT, "a")
        stream.tick(2.9)
        assert stream.due(2.9) == []
        stream.tick(3.0)
        due = stream.due(3.0)
        assert [SHORT_NAMES[response.type_url] for response in due][: len(expected)] == expected
    assert stream.tick(30.0)[0].type_url == ENDPOINT, "an unrequested response needs no answer"
    (asked,) = [response for response in ask(stream, CLUSTER, now_s=31.0) if response.type_url == CLUSTER]
    assert names(asked) == ["a"]


def test_rolled_back_resource_without_fallback_stays_only_where_held() -> None:
    withheld = snapshot([], rolled_back={CLUSTER: {"a"}})
    stream = delta(withheld)
    stream.request(DeltaRequest(type_url=CLUSTER, initial_versions={"a": "older"}), 0.0)
    assert stream.due(0.0) == []
    newcomer = delta(withheld)
    (response,) = ask(newcomer, CLUSTER)
    assert (response.resources, response.removed) == ((), ())


def test_rollback_waits_for_a_pending_ack() -> None:
    stream = delta(serve(CDS={"a": "1"}))
    ack(stream, ask(stream, CLUSTER)[0])
    stream.offer(serve(CDS={"a": "2"}), 2)
    (bad,) = stream.due(0.0)
    accepted = serve(CDS={"a": "1"}).of(CLUSTER).values()
    stream.offer(snapshot(accepted, rolled_back={CLUSTER: {"a"}}), 3)
    assert stream.due(0.0) == []
    assert ack(stream, bad, error="no") == []
    assert stream.status()[0].state.value == "NACK"


def test_fallback_that_is_nacked_stays_nacked_through_trials_of_the_other() -> None:
    accepted = serve(CDS={"a": "1"}).of(CLUSTER).values()
    held_back = snapshot(accepted, rolled_back={CLUSTER: {"a"}})
    stream = sotw(held_back)
    (fallback,) = ask(stream, CLUSTER)
    assert ack(stream, fallback, error="no") == []
    assert stream.status()[0].state.value == "NACK"
    stream.offer(serve(CDS={"a": "2"}), 2)  # on trial
    (trial,) = stream.due(0.0)
    assert ack(stream, trial, error="no") == []
    stream.offer(held_back, 3)
    assert stream.due(0.0) == []
    stream.offer(serve(CDS={"a": "1"}), 4)  # desired now
    (desired,) = stream.due(0.0)
    assert ack(stream, desired) == []


def test_nacked_version_is_not_resent_after_others_ack_it() -> None:
    stream = delta(serve(CDS={"a": "1"}))
    ack(stream, ask(stream, CLUSTER)[0])
    stream.offer(serve(CDS={"a": "2"}), 2)
    (refused,) = stream.due(0.0)
    assert ack(stream, refused, error="in use here") == []
    accepted = serve(CDS={"a": "1"}).of(CLUSTER).values()
    stream.offer(snapshot(accepted, rolled_back={CLUSTER: {"a"}}), 3)
    assert stream.due(0.0) == []
    stream.offer(serve(CDS={"a": "2"}), 4)
    assert stream.due(0.0) == []
    assert stream.status()[0].state.value == "NACK"


def test_unknown_type_url_is_counted_and_answered_empty() -> None:
    stream = delta(serve())
    events = stream.request(DeltaRequest(type_url="type.googleapis.com/x.Y", subscribe=("n",)), 0.0)
    assert any(isinstance(event, UnknownType) for event in events)
    (response,) = stream.due(0.0)
    assert response.removed == ("n",)


@pytest.mark.parametrize(
    "request_",
    [
        DeltaRequest(type_url=""),
        DeltaRequest(type_url=ENDPOINT, subscribe=tuple(str(n) for n in range(MAX_NAMES + 1))),
        DeltaRequest(type_url=ENDPOINT, subscribe=("x" * 2000,)),
        DeltaRequest(type_url=CLUSTER, initial_versions={str(n): "v" for n in range(MAX_NAMES + 1)}),
    ],
    ids=["no type", "too many names", "a long name", "too many versions"],
)
def test_too_many_resource_names_end_the_stream(request_: DeltaRequest) -> None:
    with pytest.raises(StreamError):
        delta(serve()).request(request_, 0.0)


def test_too_many_type_urls_end_the_stream() -> None:
    stream = delta(serve())
    for n in range(MAX_TYPES):
        ask(stream, f"type.googleapis.com/t.{n}")
    with pytest.raises(StreamError):
        ask(stream, "type.googleapis.com/t.one-more")
