"""Subscriptions: the protocol's wildcard rules, and limits on names."""

import pytest

from xds_server.model.snapshot import resource
from xds_server.model.type_urls import CLUSTER, ENDPOINT
from xds_server.xds import StreamError
from xds_server.xds.messages import MAX_NAME_CHARACTERS, MAX_NAMES
from xds_server.xds.subscription import Subscription


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
