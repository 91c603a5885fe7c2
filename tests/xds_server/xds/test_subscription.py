"""Subscriptions: the protocol's wildcard rules, and limits on names."""

import pytest

from xds_server.model.snapshot import resource
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER
from xds_server.xds import StreamError, XdsVariant
from xds_server.xds.messages import MAX_NAME_CHARACTERS, MAX_NAMES, DeltaRequest, SotwRequest
from xds_server.xds.subscription import Subscription
from xds_server.xds.type_state import DueContent, ServedType, TypeState


def test_empty_list_is_a_wildcard_until_a_name_was_given() -> None:
    clusters = Subscription(type_url=CLUSTER).replaced(())
    assert clusters.wants("any")
    assert not clusters.replaced(("a",)).replaced(()).wants("any")
    assert not Subscription(type_url=ENDPOINT).replaced(()).wants("any")


def test_wildcard_and_names_are_dropped_separately() -> None:
    both = Subscription(type_url=ENDPOINT)
    both.add(("*", "a"))
    assert both.wants("any")
    assert both.remove(("a", "unknown")) == {"a"}
    assert both.wants("a"), "the wildcard still covers the name"
    both.add(("a",))
    assert both.remove(("*",)) == set()
    assert (both.wants("any"), both.wants("a")) == (False, True)


def test_wanted_resources_are_those_subscribed_to() -> None:
    resources = {name: resource(ENDPOINT, name, b"1") for name in ("a", "b")}
    named = Subscription(type_url=ENDPOINT)
    named.add(("b", "missing"))
    assert list(named.wanted(resources)) == ["b"]
    assert set(named.wanted_of(["a", "b"])) == {"b"}
    named.add(("*",))
    assert set(named.wanted_of(["a", "b"])) == {"a", "b"}


def test_equal_sotw_request_leaves_the_same_subscription() -> None:
    first = Subscription(type_url=CLUSTER).replaced(("a", "b"))
    assert first.replaced(("b", "a")) is first


@pytest.mark.parametrize("names", [[*map(str, range(MAX_NAMES + 1))], ["x" * (MAX_NAME_CHARACTERS + 1)]])
def test_too_many_or_too_long_names_are_a_stream_error(names: list[str]) -> None:
    with pytest.raises(StreamError):
        Subscription(type_url=ENDPOINT).add(names)


def test_names_of_served_resources_are_never_too_many() -> None:
    """A wildcard proxy of 10 000 engines repeats 10 001 listener names when it reconnects."""
    listeners = {name: resource(LISTENER, name, b"1") for name in map(str, range(MAX_NAMES + 1))}
    versions = {name: item.version for name, item in listeners.items()}
    for variant, request in (
        (XdsVariant.DELTA, DeltaRequest(type_url=LISTENER, subscribe=("*",), initial_versions=versions)),
        (XdsVariant.DELTA, DeltaRequest(type_url=LISTENER, subscribe=tuple(listeners))),
        (XdsVariant.SOTW, SotwRequest(type_url=LISTENER, names=tuple(listeners))),
    ):
        state = TypeState.new(LISTENER, variant, 0.0)
        state.begin(request, listeners)
        assert state.subscription.wants("10000")
    with pytest.raises(StreamError):
        Subscription(type_url=LISTENER).add([*map(str, range(2 * MAX_NAMES + 2))], len(listeners))


def test_only_added_names_are_judged() -> None:
    judged: list[str] = []

    class Name(str):
        def __len__(self) -> int:
            judged.append(str(self))
            return str.__len__(self)

    many = Subscription(type_url=ENDPOINT, names=set(map(Name, map(str, range(MAX_NAMES - 1)))))
    judged.clear()
    many.add([Name("one more")])
    assert many.wants("one more")
    assert set(judged) == {"one more"}


def test_one_name_more_or_less_costs_the_same_however_many() -> None:
    """Names that the request does not have are not looked at."""
    looked_at: list[str] = []

    class Name(str):
        def __hash__(self) -> int:
            looked_at.append(str(self))
            return str.__hash__(self)

    names = [*map(Name, map(str, range(MAX_NAMES - 1)))]
    state = TypeState.new(ENDPOINT, XdsVariant.DELTA, 0.0)
    state.begin(DeltaRequest(type_url=ENDPOINT, subscribe=tuple(names)), {})
    nothing = ServedType({}, ())
    assert state.due(nothing, removals=True)
    state.sent(DueContent(content=dict.fromkeys(names), changes=names), nonce="1", now_s=0.0)
    state.take(DeltaRequest(type_url=ENDPOINT, nonce="1"), nothing, 0.0)
    looked_at.clear()
    state.take(DeltaRequest(type_url=ENDPOINT, subscribe=(Name("one more"),)), nothing, 0.0)
    assert state.due(nothing, removals=True)
    state.take(DeltaRequest(type_url=ENDPOINT, unsubscribe=(Name("one more"), names[0])), nothing, 0.0)
    assert not state.subscription.wants(names[0])
    assert set(looked_at) <= {"one more", names[0]}
