"""Patches and server-side apply, by what their documents say of them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster_double.json_object import Object, canonical, copied
from tests.cluster_double.kinds import CONFIG_MAPS, PODS
from tests.cluster_double.ownership import Writer, applied, updated
from tests.cluster_double.patches import merged, stepped, strategic
from tests.cluster_double.refusal import RefusedError

NOW = "2030-01-01T00:00:00Z"


# RFC 7386, Appendix A.
@pytest.mark.parametrize(
    ("value", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch(value: Any, patch: Any, result: Any) -> None:
    assert merged(value, patch) == result


@pytest.mark.parametrize(
    ("value", "patch", "result"),
    [
        ({"conditions": [{"type": "A", "status": "x"}]}, {"conditions": [{"type": "B"}]},
         {"conditions": [{"type": "A", "status": "x"}, {"type": "B"}]}),
        ({"conditions": [{"type": "A", "status": "x"}]}, {"conditions": [{"type": "A", "status": "y"}]},
         {"conditions": [{"type": "A", "status": "y"}]}),
        ({"conditions": [{"type": "A"}, {"type": "B"}]}, {"conditions": [{"type": "A", "$patch": "delete"}]},
         {"conditions": [{"type": "B"}]}),
        ({"conditions": [{"type": "A"}]}, {"conditions": [{"$patch": "replace"}, {"type": "C"}]},
         {"conditions": [{"type": "C"}]}),
        ({"finalizers": ["a", "b"]}, {"finalizers": ["b", "c"]}, {"finalizers": ["a", "b", "c"]}),
        ({"finalizers": ["a", "b"]}, {"$deleteFromPrimitiveList/finalizers": ["a"]}, {"finalizers": ["b"]}),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, {"tolerations": [{"key": "b"}]}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"$patch": "replace", "d": 3}}, {"a": {"d": 3}}),
        ({"a": 1}, {"a": None, "$setElementOrder/conditions": []}, {}),
    ],
)  # fmt: skip
def test_strategic_patch(value: Any, patch: Any, result: Any) -> None:
    assert strategic(value, patch, PODS.merge_keys) == result


@pytest.mark.parametrize(
    ("steps", "result"),
    [
        ([{"op": "add", "path": "/l/1", "value": "x"}], {"l": ["a", "x", "b"], "o": {"k/e": 1}}),
        ([{"op": "remove", "path": "/l/0"}], {"l": ["b"], "o": {"k/e": 1}}),
        ([{"op": "replace", "path": "/o/k~1e", "value": 2}], {"l": ["a", "b"], "o": {"k/e": 2}}),
        ([{"op": "move", "from": "/o", "path": "/p"}], {"l": ["a", "b"], "p": {"k/e": 1}}),
        ([{"op": "copy", "from": "/l/0", "path": "/l/-"}], {"l": ["a", "b", "a"], "o": {"k/e": 1}}),
    ],
)
def test_json_patch(steps: list[Any], result: Any) -> None:
    assert stepped({"l": ["a", "b"], "o": {"k/e": 1}}, steps) == result


@pytest.mark.parametrize(
    "step",
    [
        {"op": "remove", "path": "/x"},
        {"op": "replace", "path": "/x", "value": 1},
        {"op": "test", "path": "/l/0", "value": "b"},
        {"op": "remove", "path": "/l/7"},
        {"op": "dance", "path": "/l"},
        {"path": "/l"},
    ],
)
def test_json_patch_that_cannot_be_done_is_refused(step: Any) -> None:
    with pytest.raises(RefusedError) as caught:
        stepped({"l": ["a"]}, [step])
    assert caught.value.code == 422


def config(**data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}


def apply(live: Object, manager: str, *, force: bool = False, **data: str) -> Object:
    writer = Writer(manager=manager, operation="Apply", api_version="v1")
    return applied(CONFIG_MAPS, live, config(**data), writer, force=force, now=NOW)


DATA = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), min_size=1)
APPLIES = st.lists(st.tuples(st.sampled_from(["one", "two", "three"]), DATA), min_size=1, max_size=8)


@given(applies=APPLIES)
def test_forced_server_side_applies_keep_the_last_value_of_each_owner(
    applies: list[tuple[str, dict[str, str]]],
) -> None:
    """Each key stays while a manager applies it, with the value applied last."""
    live: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    owners: dict[str, dict[str, str]] = {}
    expected: dict[str, str] = {}
    for manager, data in applies:
        live = apply(live, manager, force=True, **data)
        for key in owners.get(manager, {}).keys() - data.keys():
            if not any(key in other for one, other in owners.items() if one != manager):
                del expected[key]
        for key, value in data.items():
            for one, other in owners.items():
                if one != manager and other.get(key, value) != value:
                    del other[key]
        owners[manager] = dict(data)
        expected |= data
        assert live.get("data", {}) == expected


@given(applies=APPLIES, last=DATA)
def test_server_side_apply_is_idempotent(applies: list[tuple[str, dict[str, str]]], last: dict[str, str]) -> None:
    live: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    for manager, data in [*applies, ("one", last)]:
        live = apply(live, manager, force=True, **data)
    assert canonical(apply(copied(live), "one", **last)) == canonical(live)


def test_apply_conflict_names_owner_and_field() -> None:
    live = apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}, "one", a="x", b="x")
    with pytest.raises(RefusedError) as caught:
        apply(live, "two", a="y", b="y", c="y")
    assert caught.value.code == 409
    assert {one.field for one in caught.value.causes} == {".data.a", ".data.b"}
    assert 'conflict with "one"' in caught.value.message


def test_update_takes_ownership_of_changed_fields_only() -> None:
    live = apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}, "one", a="x", b="x")
    writer = Writer(manager="editor", operation="Update", api_version="v1")
    after = updated(CONFIG_MAPS, live, {**live, "data": {"a": "y", "b": "x"}}, writer, now=NOW)
    fields = {one["manager"]: one["fieldsV1"] for one in after["metadata"]["managedFields"]}
    assert fields == {"one": {"f:data": {"f:b": {}}}, "editor": {"f:data": {"f:a": {}}}}
    gone = updated(CONFIG_MAPS, after, {**after, "data": {"a": "y"}}, writer, now=NOW)
    assert [one["manager"] for one in gone["metadata"]["managedFields"]] == ["editor"]
