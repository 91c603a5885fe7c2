"""Patches: JSON patch, JSON merge patch, and strategic merge patch, which knows the keys of built-in lists.

Source: RFC 6902, RFC 7386; Kubernetes, "Strategic Merge Patch" (api-conventions of the patch directives).
"""

from collections.abc import Mapping
from typing import Any

from tests.cluster_double.json_object import canonical
from tests.cluster_double.refusal import RefusedError, bad_request


def merged(value: Any, patch: Any) -> Any:
    """``value`` with a JSON merge patch laid over it; nulls take away."""
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for key, said in patch.items():
        if said is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), said)
    return result


def strategic(value: Any, patch: Any, keys: Mapping[str, tuple[str, ...]], field: str = "") -> Any:
    """``value`` with a strategic merge patch laid over it; ``keys`` are those of the lists that are merged."""
    if isinstance(patch, list):
        if field not in keys or not isinstance(value, list):
            return [_undirected(one) for one in patch if not _directive(one)]
        return _merged_list(value, patch, keys, field)
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {key: said for key, said in patch.items() if key != "$patch"}
    if patch.get("$patch") == "delete":
        return {}
    result = dict(value) if isinstance(value, dict) else {}
    for key, said in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            result[name] = [one for one in result.get(name) or () if one not in said]
        elif key.startswith("$"):
            continue  # the order of items, which nothing here depends on
        elif said is None:
            result.pop(key, None)
        else:
            result[key] = strategic(result.get(key), said, keys, key)
    return result


def _directive(item: Any) -> bool:
    return isinstance(item, dict) and "$patch" in item


def _undirected(item: Any) -> Any:
    return strategic({}, item, {}) if isinstance(item, dict) else item


def _merged_list(value: list[Any], patch: list[Any], keys: Mapping[str, tuple[str, ...]], field: str) -> list[Any]:
    by = keys[field]
    if not by:
        return [*value, *(one for one in patch if one not in value)]
    if {"$patch": "replace"} in patch:
        return [_undirected(one) for one in patch if not _directive(one)]
    items = {_identity(one, by): one for one in value}
    for one in patch:
        if not isinstance(one, dict):
            raise bad_request(f"{field}: items of this list are objects")
        which = _identity(one, by)
        if one.get("$patch") == "delete":
            items.pop(which, None)
        else:
            items[which] = strategic(items.get(which), one, keys, field)
    return list(items.values())


def _identity(item: Any, by: tuple[str, ...]) -> str:
    if not isinstance(item, dict) or by[0] not in item:
        raise bad_request(f"map: {canonical(item)} does not contain declared merge key: {by[0]}")
    return canonical([item.get(name) for name in by])


def stepped(value: Any, steps: list[Any]) -> Any:
    """``value`` after the operations of a JSON patch, one after the other."""
    for step in steps:
        try:
            value = _step(value, step)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            message = f"the server rejected our request due to an error in our request: {error}"
            raise RefusedError(422, "Invalid", message) from error
    return value


def _step(value: Any, step: Mapping[str, Any]) -> Any:
    path = _pointer(step["path"])
    match step["op"]:
        case "add":
            return _put(value, path, step["value"], insert=True)
        case "replace":
            _get(value, path)
            return _put(value, path, step["value"], insert=False)
        case "remove":
            return _cut(value, path)
        case "copy":
            return _put(value, path, _get(value, _pointer(step["from"])), insert=True)
        case "move":
            source = _pointer(step["from"])
            return _put(_cut(value, source), path, _get(value, source), insert=True)
        case "test":
            if canonical(_get(value, path)) != canonical(step["value"]):
                msg = f"testing value {step['path']} failed"
                raise ValueError(msg)
            return value
        case other:
            msg = f"unexpected kind: {other}"
            raise ValueError(msg)


def _pointer(text: str) -> tuple[str, ...]:
    return tuple(one.replace("~1", "/").replace("~0", "~") for one in text.split("/")[1:])


def _get(value: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


def _put(value: Any, path: tuple[str, ...], said: Any, *, insert: bool) -> Any:
    if not path:
        return said
    first, rest = path[0], path[1:]
    if isinstance(value, list):
        items = list(value)
        if rest:
            items[int(first)] = _put(items[int(first)], rest, said, insert=insert)
        elif first == "-":
            items.append(said)
        elif insert:
            items.insert(int(first), said)
        else:
            items[int(first)] = said
        return items
    return {**value, first: _put(value[first], rest, said, insert=insert) if rest else said}


def _cut(value: Any, path: tuple[str, ...]) -> Any:
    first, rest = path[0], path[1:]
    if isinstance(value, list):
        items = list(value)
        if rest:
            items[int(first)] = _cut(items[int(first)], rest)
        else:
            del items[int(first)]
        return items
    if rest:
        return {**value, first: _cut(value[first], rest)}
    if first not in value:
        raise KeyError(first)
    return {key: one for key, one in value.items() if key != first}
