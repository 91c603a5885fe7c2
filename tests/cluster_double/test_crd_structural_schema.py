"""Schemas of definitions, by what Kubernetes documents of them."""

from typing import Any

import pytest

from tests.cluster_double.rules import broken
from tests.cluster_double.structural import defaulted, pruned, unknown, wrong


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ({"type": "string", "nullable": True}, None, True),
        ({"type": "string"}, None, False),
        ({"type": "string", "nullable": True, "enum": ["a"]}, None, False),
        ({"type": "string", "pattern": "^[$a]+$"}, "a$", True),
        ({"type": "string", "pattern": "^[$a]+$"}, "a\n", False),
        ({"type": "string", "pattern": "a"}, "bab", True),
        ({"type": "integer"}, 1.0, True),
        ({"type": "integer"}, 1.5, False),
        ({"type": "integer"}, True, False),
        ({"type": "number", "minimum": 0, "exclusiveMinimum": True}, 0, False),
        ({"x-kubernetes-int-or-string": True, "maximum": 9, "pattern": "^a"}, 10, False),
        ({"x-kubernetes-int-or-string": True, "maximum": 9, "pattern": "^a"}, "a", True),
        ({"x-kubernetes-int-or-string": True}, 1.5, False),
        ({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}, ["a", "a"], False),
        ({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1, "b": 1}, False),
        ({"type": "object", "not": {"required": ["a"]}}, {"a": 1}, False),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"a": "b"}, False),
    ],
)
def test_value_fits_or_not(schema: dict[str, Any], value: Any, fits: bool) -> None:
    assert (not list(wrong(schema, value, "spec"))) is fits


def test_pruning_drops_unknown_fields() -> None:
    schema = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object"}}}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    }
    said = {"kind": "X", "metadata": {"name": "a"}, "spec": {"a": [{"b": 1}], "c": 1}, "free": {"d": 1}, "e": 1}
    kept = pruned(schema, said)
    assert kept == {"kind": "X", "metadata": {"name": "a"}, "spec": {"a": [{}]}, "free": {"d": 1}}
    assert list(unknown(said, kept)) == ["spec.a[0].b", "spec.c", "e"]


def test_default_replaces_absent_and_non_nullable_null() -> None:
    inner = {"type": "integer", "default": 1}
    schema = {"type": "object", "properties": {"a": inner, "b": inner, "c": {**inner, "nullable": True}}}
    assert defaulted(schema, {"b": None, "c": None}) == {"a": 1, "b": 1, "c": None}


def test_cel_rule_gets_doubles_no_nulls_and_old_self() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "string", "nullable": True}},
        "x-kubernetes-validations": [
            {"rule": "!has(self.b) && self.a == 1.0", "message": "first"},
            {"rule": "self.a >= oldSelf.a", "message": "never less"},
        ],
    }
    assert not list(broken(schema, {"a": 1, "b": None}, None, "spec"))
    assert [one.message for one in broken(schema, {"a": 1}, {"a": 2}, "spec")] == [
        'Invalid value: "object": never less'
    ]
