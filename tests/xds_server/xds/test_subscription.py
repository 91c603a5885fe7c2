"""Subscriptions: the protocol's wildcard rules, and limits on names."""

from dataclasses import replace

import pytest

from xds_server.model.snapshot import resource
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER
from xds_server.xds import StreamError, XdsVariant
from xds_server.xds.messages import MAX_NAME_CHARACTERS, MAX_NAMES, DeltaRequest, SotwRequest
from xds_server.xds.subscription import Subscription
from xds_server.xds.type_state import TypeState


def test_empty_list_is_a_wildcard_until_a_name_was_given() -> None:
    clusters = Subscription(type_url=CLUSTER).replaced(())
    assert clusters.wants("any")
    assert not clusters.replaced(("a",)).replaced(()).wants("any")
    assert not Subscription(type_url=ENDPOINT).replaced(()).wants("any")


def test_wildcard_and_names_are_dropped_separately() -> None:
    both = Subscription(type_url=ENDPOINT).extended(("*", "a"))
    assert both.wants("any")
    named = both.reduced(("*",))
    assert (named.wants("any"), named.wants("a")) == (False, True)
    assert both.reduced(("a", "unknown")).wants("a"), "the wildcard still covers the name"


def test_wanted_resources_are_those_subscribed_to() -> None:
    resources = {name: resource(ENDPOINT, name, b"1") for name in ("a", "b")}
    named = Subscription(type_url=ENDPOINT).extended(("b", "missing"))
    assert list(named.wanted(resources)) == ["b"]
    assert set(named.wanted_of(["a", "b"])) == {"b"}
    assert set(named.extended(("*",)).wanted_of(["a", "b"])) == {"a", "b"}


def test_equal_sotw_request_leaves_the_same_subscription() -> None:
    first = Subscription(type_url=CLUSTER).replaced(("a", "b"))
    assert first.replaced(("b", "a")) is first


@pytest.mark.parametrize("names", [map(str, range(MAX_NAMES + 1)), ["x" * (MAX_NAME_CHARACTERS + 1)]])
def test_too_many_or_too_long_names_are_a_stream_error(names: list[str]) -> None:
    with pytest.raises(StreamError):
        Subscription(type_url=ENDPOINT).extended(names)


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
        Subscription(type_url=LISTENER).extended(map(str, range(2 * MAX_NAMES + 2)), len(listeners))


def test_only_added_names_are_judged() -> None:
    before = Subscription(type_url=ENDPOINT).extended(map(str, range(MAX_NAMES - 1)))
    judged: list[str] = []

    class Name(str):
        def __len__(self) -> int:
            judged.append(str(self))
            return str.__len__(self)

    watched = replace(before, names=frozenset(map(Name, before.names)))
    judged.clear()
    assert watched.extended([Name("one more")]).wants("one more")
    assert judged == ["one more"]
