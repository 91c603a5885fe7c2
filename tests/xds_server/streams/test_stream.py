"""Each rule of the protocol as an example."""

from typing import Any

import pytest

from xds_server.snapshot import Snapshot, resource, snapshot
from xds_server.streams import (
    Acked,
    Confirmed,
    DeltaRequest,
    Mode,
    Nacked,
    NodeInfo,
    Response,
    SotwRequest,
    Stream,
    StreamError,
    Stuck,
    UnknownType,
)
from xds_server.streams.values import ADD_WAIT_S, MAX_NAMES, MAX_TYPES, REMOVAL_WAIT_S
from xds_server.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE, RUNTIME, SECRET, SHORT_NAMES

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
    return Stream(Mode.DELTA, node, first, sequence=1, now_s=0.0)


def sotw(first: Snapshot, node: NodeInfo = GRPC) -> Stream:
    return Stream(Mode.SOTW, node, first, sequence=1, now_s=0.0)


def names(response: Response) -> list[str]:
    return [item.name for item in response.resources]


def ask(stream: Stream, type_url: str, *subscribe: str, now_s: float = 0.0) -> list[Response]:
    stream.request(DeltaRequest(type_url=type_url, subscribe=subscribe), now_s)
    return stream.due(now_s)


def ack(stream: Stream, response: Response, now_s: float = 0.0, error: str | None = None) -> list[Response]:
    stream.request(DeltaRequest(type_url=response.type_url, nonce=response.nonce, error=error), now_s)
    return stream.due(now_s)


def test_an_empty_first_request_for_clusters_means_all_of_them() -> None:
    stream = delta(serve(CDS={"a": "1", "b": "1"}))
    (response,) = ask(stream, CLUSTER)
    assert names(response) == ["a", "b"]


def test_an_empty_first_request_for_endpoints_means_none() -> None:
    assert ask(delta(serve(EDS={"a": "1"})), ENDPOINT) == []


def test_an_empty_set_of_clusters_is_an_answer_too() -> None:
    (response,) = ask(delta(serve()), CLUSTER)
    assert (response.resources, response.removed) == ((), ())


def test_a_star_and_a_name_can_be_dropped_one_by_one() -> None:
    stream = delta(serve(CDS={"a": "1", "b": "1"}))
    (first,) = ask(stream, CLUSTER, "*", "a")
    assert ack(stream, first) == []
    stream.request(DeltaRequest(type_url=CLUSTER, unsubscribe=("*",)), 0.0)
    stream.offer(serve(CDS={"a": "2", "b": "2"}), 2)
    (response,) = stream.due(0.0)
    assert names(response) == ["a"]
    # All names gone after one was named is no wildcard.
    stream.request(DeltaRequest(type_url=CLUSTER, unsubscribe=("a",)), 0.0)
    stream.offer(serve(CDS={"a": "3", "b": "3"}), 3)
    assert stream.due(0.0) == []


def test_a_name_dropped_under_a_wildcard_is_sent_again_so_that_the_peer_knows_it_stays() -> None:
    stream = delta(serve(CDS={"a": "1"}))
    ack(stream, ask(stream, CLUSTER, "*", "a")[0])
    stream.request(DeltaRequest(type_url=CLUSTER, unsubscribe=("a",)), 0.0)
    (response,) = stream.due(0.0)
    assert names(response) == ["a"]


def test_what_is_asked_for_again_is_sent_again() -> None:
    stream = delta(serve(EDS={"a": "1"}))
    ack(stream, ask(stream, ENDPOINT, "a")[0])
    (response,) = ask(stream, ENDPOINT, "a")
    assert names(response) == ["a"]


def test_a_name_that_does_not_exist_is_answered_at_once_and_sent_when_it_does() -> None:
    stream = delta(serve())
    for type_url in (SECRET, RUNTIME, ENDPOINT, ROUTE):
        (response,) = ask(stream, type_url, "x")
        assert response.removed == ("x",)
        assert ack(stream, response) == []
    stream.offer(serve(SDS={"x": "1"}), 2)
    (response,) = stream.due(0.0)
    assert names(response) == ["x"]


def test_a_missing_runtime_layer_is_an_empty_one_where_absence_cannot_be_said() -> None:
    stream = sotw(serve())
    stream.request(SotwRequest(type_url=RUNTIME, names=("live",)), 0.0)
    (response,) = stream.due(0.0)
    assert [(item.name, item.value) for item in response.resources] == [("live", b"\x0a\x04live")]
    stream.request(
        SotwRequest(type_url=RUNTIME, names=("live",), version=response.version, nonce=response.nonce), 0.0
    )
    assert stream.due(0.0) == []


def test_equal_versions_on_reconnect_draw_nothing_and_count_as_accepted() -> None:
    served = serve(CDS={"a": "1"}, EDS={"a": "1"})
    stream = delta(served)
    held = {"a": served.of(CLUSTER)["a"].version}
    (event,) = stream.request(DeltaRequest(type_url=CLUSTER, initial_versions=held), 0.0)
    assert isinstance(event, Confirmed)
    held = {"a": served.of(ENDPOINT)["a"].version}
    stream.request(DeltaRequest(type_url=ENDPOINT, subscribe=("a",), initial_versions=held), 0.0)
    assert stream.due(0.0) == []


def test_what_vanished_while_the_peer_was_away_is_removed() -> None:
    stream = delta(serve(CDS={"a": "1"}))
    stream.request(DeltaRequest(type_url=CLUSTER, initial_versions={"gone": "v"}), 0.0)
    responses = stream.due(0.0)
    assert [(names(response), response.removed) for response in responses] == [(["a"], ()), ([], ("gone",))]


def test_delivered_means_acknowledged() -> None:
    stream = delta(serve(CDS={"a": "1"}))
    (response,) = ask(stream, CLUSTER)
    assert stream.status()[0].held == 0
    (event,) = stream.request(DeltaRequest(type_url=CLUSTER, nonce=response.nonce), 0.25)
    assert isinstance(event, Acked)
    assert event.latency_s == 0.25
    assert stream.status()[0].held == 1


def test_a_refused_version_waits_for_a_different_one() -> None:
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


def test_the_rest_of_a_refused_response_is_sent_once_it_is_cleared() -> None:
    stream = delta(serve(CDS={"good": "1", "bad": "1"}))
    (response,) = ask(stream, CLUSTER)
    assert ack(stream, response, error="bad: no") == []
    stream.forgive(CLUSTER, ["good"])
    (response,) = stream.due(0.0)
    assert names(response) == ["good"]


def test_a_stale_nonce_answers_nothing_but_its_subscription_counts() -> None:
    stream = delta(serve(EDS={"a": "1", "b": "1"}))
    (response,) = ask(stream, ENDPOINT, "a")
    assert stream.request(DeltaRequest(type_url=ENDPOINT, subscribe=("b",), nonce="stale"), 0.0) == ()
    (second,) = stream.due(0.0)
    assert names(second) == ["b"]
    assert stream.status()[0].held == 0
    assert ack(stream, response) == []


def test_a_stale_sotw_request_is_ignored() -> None:
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


def test_sotw_clusters_are_removed_by_omission_and_endpoints_are_left_alone() -> None:
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


def test_a_sotw_peer_keeps_what_it_has_of_a_cluster_it_refused() -> None:
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


def test_types_go_out_in_an_order_that_keeps_traffic_whole() -> None:
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
    # Routes wait until the clusters they may name are confirmed, which they are when they have warmed.
    assert ack(stream, first[2]) == []
    assert [SHORT_NAMES[response.type_url] for response in ack(stream, first[1])] == ["LDS", "RDS"]


def answered(stream: Stream) -> Stream:
    while due := stream.due(0.0):
        for response in due:
            version = {"version": response.version} if stream.mode is Mode.SOTW else {}
            kind: Any = SotwRequest if stream.mode is Mode.SOTW else DeltaRequest
            wanted = {"names": {ENDPOINT: ("c",), ROUTE: ("rc",)}.get(response.type_url, ())} if version else {}
            stream.request(kind(type_url=response.type_url, nonce=response.nonce, **version, **wanted), 0.0)
    return stream


@pytest.mark.parametrize("mode", Mode)
def test_a_listener_is_there_before_the_endpoint_that_names_it_and_goes_after(mode: Mode) -> None:
    def wanted(*engines: str, route: str = "1") -> Snapshot:
        said = {"LDS": {"in": "1", **dict.fromkeys(engines, "1")}, "EDS": {"c": " ".join(engines)}}
        return serve(CDS={"c": "1"}, RDS={"rc": route}, **said)

    stream = Stream(mode, ENVOY, wanted("x"), sequence=1, now_s=0.0)
    for type_url, names_ in ((CLUSTER, ()), (ENDPOINT, ("c",)), (LISTENER, ()), (ROUTE, ("rc",))):
        if mode is Mode.SOTW:
            stream.request(SotwRequest(type_url=type_url, names=names_), 0.0)
        else:
            stream.request(DeltaRequest(type_url=type_url, subscribe=names_), 0.0)
    answered(stream)
    stream.offer(wanted("y", route="2"), 2)
    pushes = [
        (SHORT_NAMES[response.type_url], sorted(names(response)), sorted(response.removed))
        for response in stream.due(0.0)
    ]
    if mode is Mode.SOTW:
        listeners = [["in", "x", "y"], ["in", "y"]]  # what is absent is removed
        removed = []
    else:
        listeners, removed = [["y"], []], ["x"]
    assert pushes == [
        ("LDS", listeners[0], []),
        ("EDS", ["c"], []),
        ("LDS", listeners[1], removed),
        ("RDS", ["rc"], []),
    ]


def test_routes_do_not_wait_for_new_clusters_for_ever() -> None:
    stream = delta(serve(CDS={"a": "1"}, RDS={"rc": "1"}))
    stream.request(DeltaRequest(type_url=CLUSTER), 0.0)
    stream.request(DeltaRequest(type_url=ROUTE, subscribe=("rc",)), 0.0)
    assert len(stream.due(0.0)) == 1
    assert stream.is_waiting
    assert len(stream.due(ADD_WAIT_S)) == 1


def settled() -> Stream:
    """A stream on which one cluster, its endpoints and the route to it are acknowledged."""
    stream = delta(serve(CDS={"old": "1"}, EDS={"old": "1"}, RDS={"rc": "->old"}))
    stream.request(DeltaRequest(type_url=CLUSTER), 0.0)
    stream.request(DeltaRequest(type_url=ENDPOINT, subscribe=("old",)), 0.0)
    stream.request(DeltaRequest(type_url=ROUTE, subscribe=("rc",)), 0.0)
    while due := stream.due(0.0):
        for response in due:
            stream.request(DeltaRequest(type_url=response.type_url, nonce=response.nonce), 0.0)
    return stream


def test_a_cluster_goes_when_the_route_that_left_it_is_confirmed() -> None:
    stream = settled()
    stream.offer(serve(CDS={"new": "1"}, EDS={"new": "1"}, RDS={"rc": "->new"}), 2)
    (added,) = stream.due(0.0)
    assert (names(added), added.removed) == (["new"], ())
    (route,) = ack(stream, added)
    assert names(route) == ["rc"]
    clusters, endpoints = ack(stream, route)
    assert (clusters.type_url, clusters.removed) == (CLUSTER, ("old",))
    assert (endpoints.type_url, endpoints.removed) == (ENDPOINT, ("old",))


def test_a_silent_peer_delays_a_removal_only_so_long_and_a_refusing_one_for_ever() -> None:
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


def test_a_changed_cluster_brings_its_endpoints_along_under_a_new_version() -> None:
    stream = settled()
    before = stream.snapshot.of(ENDPOINT)["old"]
    stream.offer(serve(CDS={"old": "2"}, EDS={"old": "1"}, RDS={"rc": "->old"}), 2)
    clusters, endpoints = stream.due(0.0)
    assert (clusters.type_url, endpoints.type_url) == (CLUSTER, ENDPOINT)
    assert endpoints.resources[0].value == before.value
    assert endpoints.resources[0].version != before.version


def test_endpoints_follow_even_a_cluster_that_changed_back_while_it_was_held_up() -> None:
    stream = settled()
    for sequence, content in enumerate(("2", "3", "1"), start=2):
        stream.offer(serve(CDS={"old": content}, EDS={"old": "1"}, RDS={"rc": "->old"}), sequence)
        stream.due(0.0)
    pending = [push.nonce for push in stream._watches[CLUSTER].pending]
    assert len(pending) == 2
    stream.request(DeltaRequest(type_url=ENDPOINT, nonce=stream._watches[ENDPOINT].last_nonce), 0.0)
    stream.due(0.0)
    stream.request(DeltaRequest(type_url=CLUSTER, nonce=pending[-1]), 0.0)
    assert [SHORT_NAMES[response.type_url] for response in stream.due(0.0)] == ["CDS", "EDS"]


def test_two_unanswered_responses_then_only_the_newest() -> None:
    stream = delta(serve(EDS={"a": "1"}))
    (first,) = ask(stream, ENDPOINT, "a")
    sent = [first]
    for n in range(2, 9):
        stream.offer(serve(EDS={"a": f"{n}"}), n)
        sent += stream.due(0.0)
    assert [response.resources[0].value for response in sent] == [b"1", b"2"]
    (newest,) = ack(stream, first)
    assert newest.resources[0].value == b"8"


def test_an_unanswered_response_is_reported_and_clusters_are_tried_once_more() -> None:
    stream = delta(serve(CDS={"a": "1"}, EDS={"a": "1"}))
    ask(stream, CLUSTER)
    ask(stream, ENDPOINT, "a")
    assert stream.tick(19.0) == ()
    events = stream.tick(21.0)
    assert {event.type_url for event in events if isinstance(event, Stuck)} == {CLUSTER, ENDPOINT}
    again = stream.due(21.0)
    assert [SHORT_NAMES[response.type_url] for response in again] == ["CDS", "EDS"]
    assert len(stream.tick(45.0)) == 2
    assert stream.due(45.0) == []


def test_the_second_try_passes_the_limit_of_unanswered_responses() -> None:
    stream = delta(serve(CDS={"a": "1"}))
    ask(stream, CLUSTER)
    for n in (2, 3):
        stream.offer(serve(CDS={"a": f"{n}"}), n)
        stream.due(0.0)
    stream.tick(21.0)
    (newest,) = stream.due(21.0)
    assert newest.resources[0].value == b"3"


def test_what_a_peer_may_hold_without_having_said_so_is_removed() -> None:
    stream = delta(serve(CDS={"a": "1"}))
    ask(stream, CLUSTER)
    stream.offer(serve(CDS={"a": "1", "b": "1"}), 2)
    (second,) = stream.due(0.0)
    stream.offer(serve(CDS={"b": "1"}), 3)
    # The peer answers the second response only: whether it took the first is not known.
    (removal,) = ack(stream, second)
    assert removal.removed == ("a",)


def test_a_sotw_peer_with_content_of_another_time_is_not_made_to_delete_it() -> None:
    stream = sotw(snapshot([], rolled_back={CLUSTER: {"a"}}))
    stream.request(SotwRequest(type_url=CLUSTER, version="of another server"), 0.0)
    stream.offer(snapshot([resource(CLUSTER, "b", b"1")], rolled_back={CLUSTER: {"a"}}), 2)
    assert stream.due(0.0) == [], "a response without cluster a would delete it"
    stream.offer(serve(CDS={"a": "better", "b": "1"}), 3)
    (response,) = stream.due(0.0)
    assert sorted(names(response)) == ["a", "b"]


def test_an_envoy_that_never_asks_for_clusters_is_sent_them_and_its_late_question_is_answered() -> None:
    served = serve(CDS={"a": "1"}, LDS={"in": "1"}, EDS={"a": "1"})
    for node, expected in ((GRPC, []), (ENVOY, ["CDS"])):
        stream = delta(served, node)
        ask(stream, ENDPOINT, "a")
        stream.tick(2.9)
        assert stream.due(2.9) == []
        stream.tick(3.0)
        due = stream.due(3.0)
        assert [SHORT_NAMES[response.type_url] for response in due][: len(expected)] == expected
    assert stream.tick(30.0)[0].type_url == ENDPOINT, "nobody promised to answer what was not asked for"
    (asked,) = [response for response in ask(stream, CLUSTER, now_s=31.0) if response.type_url == CLUSTER]
    assert names(asked) == ["a"]


def test_what_is_rolled_back_without_a_substitute_stays_where_it_is_and_is_absent_elsewhere() -> None:
    withheld = snapshot([], rolled_back={CLUSTER: {"a"}})
    stream = delta(withheld)
    stream.request(DeltaRequest(type_url=CLUSTER, initial_versions={"a": "older"}), 0.0)
    assert stream.due(0.0) == []
    newcomer = delta(withheld)
    (response,) = ask(newcomer, CLUSTER)
    assert (response.resources, response.removed) == ((), ())


def test_a_rollback_waits_for_the_answer_that_may_make_it_unnecessary() -> None:
    stream = delta(serve(CDS={"a": "1"}))
    ack(stream, ask(stream, CLUSTER)[0])
    stream.offer(serve(CDS={"a": "2"}), 2)
    (bad,) = stream.due(0.0)
    accepted = serve(CDS={"a": "1"}).of(CLUSTER).values()
    stream.offer(snapshot(accepted, rolled_back={CLUSTER: {"a"}}), 3)
    assert stream.due(0.0) == []
    assert ack(stream, bad, error="no") == []
    assert stream.status()[0].state.value == "NACK"


def test_what_a_peer_refused_is_not_sent_again_when_others_turn_out_to_accept_it() -> None:
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


def test_an_unknown_type_is_counted_and_told_that_nothing_exists() -> None:
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
def test_a_peer_that_asks_for_too_much_loses_its_stream(request_: DeltaRequest) -> None:
    with pytest.raises(StreamError):
        delta(serve()).request(request_, 0.0)


def test_a_peer_that_asks_for_too_many_types_loses_its_stream() -> None:
    stream = delta(serve())
    for n in range(MAX_TYPES):
        ask(stream, f"type.googleapis.com/t.{n}")
    with pytest.raises(StreamError):
        ask(stream, "type.googleapis.com/t.one-more")
