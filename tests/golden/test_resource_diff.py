"""Applying a diff to its old side gives the new side: golden diffs are complete."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.resource_diff import difference, patched

KEYS = st.sampled_from(["name", "a", "b", "c"])
NAMED = st.dictionaries(st.sampled_from(["x", "y", "z"]), st.integers(0, 2), max_size=3).flatmap(
    lambda found: st.permutations([{"name": name, "value": value} for name, value in found.items()])
)
RESOURCES = st.recursive(
    st.integers(0, 2) | st.sampled_from(["x", "y"]),
    lambda inner: st.lists(inner, max_size=3) | NAMED | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@given(RESOURCES, RESOURCES)
def test_a_difference_leads_from_one_to_the_other(base: Any, other: Any) -> None:
    assert patched(base, difference(base, other)) == other


@given(NAMED, NAMED)
def test_named_items_keep_their_order(base: Any, other: Any) -> None:
    assert patched(base, difference(base, other)) == other


@pytest.mark.parametrize(
    ("base", "other", "change"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, {"b": 3}),
        ({"a": 1, "b": 2}, {"c": 3, "b": 2}, {"+c": 3, "-a": None}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, {"a": {"c": 3}}),
        ([{"name": "x", "v": 1}], [{"name": "x", "v": 2}], {"x": {"v": 2}}),
        ([{"name": "x"}], [{"name": "x"}, {"name": "y"}], {"+y": {"name": "y"}}),
        ([{"name": "x"}], [{"name": "y"}, {"name": "x"}], {"+y": {"name": "y"}, "=order": ["y", "x"]}),
        ([1, 2, 3], [1, 5, 3], {1: 5}),
        ([1, 2], [1], [1]),
        ({"a": 1}, {"a": [1]}, {"a": [1]}),
    ],
)
def test_only_what_differs_is_in_it(base: Any, other: Any, change: Any) -> None:
    assert difference(base, other) == change
