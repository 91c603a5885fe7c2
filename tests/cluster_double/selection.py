"""Label and field selectors: which objects of a list are meant.

Source: Kubernetes concepts, "Labels and Selectors" and "Field Selectors".
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from tests.cluster_double.json_object import Object, at, metadata
from tests.cluster_double.kinds import Kind
from tests.cluster_double.refusal import bad_request

Test: TypeAlias = Callable[[Object], bool]

_SET: Final = re.compile(r"^(\S+)\s+(in|notin)\s*\(([^)]*)\)$")
_EQUAL: Final = re.compile(r"^([^\s=!]+)\s*(==|!=|=)\s*(\S*)$")
_NAMED: Final = re.compile(r"^(!?)\s*([^\s=!(),]+)$")
_ALWAYS: Final = frozenset({"metadata.name", "metadata.namespace"})


def selected(kind: Kind, labels: str, fields: str) -> Test:
    """Whether an object is among those that both selectors mean; a ``RefusedError`` says what cannot be read."""
    tests = [*(_label(one) for one in _parts(labels)), *(_field(kind, one) for one in _parts(fields))]
    return lambda candidate: all(test(candidate) for test in tests)


def matches(selector: Mapping[str, str], candidate: Object) -> bool:
    """Whether an object has all these labels, as a Service selects pods."""
    has = metadata(candidate).get("labels") or {}
    return all(has.get(key) == value for key, value in selector.items())


def _parts(text: str) -> Iterator[str]:
    """What stands between commas that are not inside brackets."""
    for part in re.split(r",(?![^(]*\))", text):
        if part.strip():
            yield part.strip()


def _label(text: str) -> Test:
    if found := _SET.match(text):
        key, word, inside = found.groups()
        values = {one.strip() for one in inside.split(",")}
        if word == "in":
            return lambda one: _labels(one).get(key) in values
        return lambda one: _labels(one).get(key) not in values
    if found := _EQUAL.match(text):
        key, sign, value = found.groups()
        if sign == "!=":
            return lambda one: _labels(one).get(key) != value
        return lambda one: _labels(one).get(key) == value
    if found := _NAMED.match(text):
        absent, key = found.groups()
        return lambda one: (key in _labels(one)) is not bool(absent)
    raise bad_request(f"unable to parse requirement: found {text!r}")


def _labels(of: Object) -> Mapping[str, Any]:
    return metadata(of).get("labels") or {}


def _field(kind: Kind, text: str) -> Test:
    found = _EQUAL.match(text)
    if found is None:
        raise bad_request(f"invalid selector: {text!r}; can't understand {text!r}")
    key, sign, value = found.groups()
    if key not in _ALWAYS and key not in kind.selectable:
        raise bad_request(f'Unable to find "{kind.api_version}, Resource={kind.plural}" that match label selector '
                          f'"", field selector "{text}": field label not supported: {key}')  # fmt: skip
    return lambda one: (_text(_false_if_unset(one, key)) == value) is (sign != "!=")


def _false_if_unset(one: Object, key: str) -> Any:
    found = at(one, key)
    return False if found is None and key in {"spec.hostNetwork", "spec.unschedulable"} else found


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
