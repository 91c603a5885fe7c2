"""Lists and watches merged into a store: pages, bookmarks, expired versions, arbitrary input."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from xds_server.k8s.kube_api import ListPage, WatchEvent
from xds_server.k8s.object_store import ObjectKey, ObjectStore


def item(name: str, value: object = 0, version: str = "", namespace: str = "ns") -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"metadata": {**metadata, "resourceVersion": version} if version else metadata, "value": value}


def event(kind: str, name: str, value: object = 0, version: str = "") -> WatchEvent:
    return WatchEvent(type=kind, object=item(name, value, version))


def mirror() -> ObjectStore[object]:
    return ObjectStore(lambda one: one.get("value"))


def listed(*items: dict[str, Any], version: str = "10", more: str = "") -> ListPage:
    return ListPage(items=items, resource_version=version, more=more)


def key(name: str) -> ObjectKey:
    return ObjectKey("ns", name)


def test_paginated_list_takes_effect_with_its_last_page() -> None:
    one = mirror()
    assert one.page(listed(item("a", 1), more="rest")) == frozenset()
    assert (one.objects, one.complete, one.must_list) == ({}, False, True)
    assert one.page(listed(item("b", 2))) == {key("a"), key("b")}
    assert (one.objects, one.complete, one.resource_version) == ({key("a"): 1, key("b"): 2}, True, "10")


def test_relist_removes_missing_objects_and_emits_no_event_for_unchanged() -> None:
    one = mirror()
    one.page(listed(item("a", 1), item("b", 2), item("c", 3)))
    one.expired()
    assert one.page(listed(item("a", 1), more="rest")) == frozenset()
    assert one.objects == {key("a"): 1, key("b"): 2, key("c"): 3}, "nothing is away in between"
    assert one.page(listed(item("c", 4))) == {key("b"), key("c")}
    assert one.objects == {key("a"): 1, key("c"): 4}


def test_restarted_pagination_leaves_no_partial_list() -> None:
    one = mirror()
    one.page(listed(item("ghost"), more="rest"))
    one.expired()
    one.page(listed(item("a", 1)))
    assert one.objects == {key("a"): 1}


def test_bookmarks_move_the_resource_version_without_an_event() -> None:
    one = mirror()
    one.page(listed(item("a", 1)))
    assert one.event(event("MODIFIED", "a", 1, "11")) == frozenset(), "a heartbeat"
    assert one.resource_version == "11"
    assert one.event(event("ADDED", "b", 2, "12")) == {key("b")}
    assert one.event(event("DELETED", "a", 1, "13")) == {key("a")}
    assert one.event(event("DELETED", "a", 1, "14")) == frozenset()
    assert one.event(WatchEvent(type="BOOKMARK", object={"metadata": {"resourceVersion": "20"}})) == frozenset()
    assert (one.objects, one.resource_version) == ({key("b"): 2}, "20")


def test_invalid_objects_are_ignored() -> None:
    one = mirror()
    for broken in ({}, {"metadata": None}, {"metadata": {"name": 7}}, {"metadata": {"name": ""}}):
        assert one.event(WatchEvent(type="ADDED", object=broken)) == frozenset()
        assert one.page(listed(broken)) == frozenset()
    assert one.event(event("TRANSMOGRIFIED", "a")) == frozenset()
    assert one.objects == {}


@given(
    before=st.dictionaries(st.sampled_from("abcde"), st.integers(0, 2)),
    after=st.dictionaries(st.sampled_from("abcde"), st.integers(0, 2)),
    cuts=st.lists(st.integers(0, 5), max_size=3),
)
def test_list_pagination_does_not_change_store_or_events(
    before: dict[str, int], after: dict[str, int], cuts: list[int]
) -> None:
    one = mirror()
    one.page(listed(*(item(name, value) for name, value in before.items())))
    rest, changed = [item(name, value) for name, value in after.items()], frozenset[ObjectKey]()
    for cut in cuts:
        changed |= one.page(listed(*rest[:cut], more="rest"))
        rest = rest[cut:]
        assert one.objects == {key(name): value for name, value in before.items()}
    changed |= one.page(listed(*rest))
    assert one.objects == {key(name): value for name, value in after.items()}
    assert changed == {key(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
