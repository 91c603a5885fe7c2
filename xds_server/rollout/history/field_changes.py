"""Differences between two sets of policies: documents and fields as written, with their locations."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from policies.findings import format_value
from policies.model import Document, PolicySet

_NAMES: Final = ("name", "pool")
"""Fields that identify list items, whatever their position."""

THERE: Final = "there"
"""Value that stands for a whole document or item."""

_LONG: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """One field that differs; ``old`` or ``new`` is None where it is absent.

    ``document`` is ``Kind/name``. ``path`` is empty for an added or removed document, and ends with a name in
    brackets for such a list item. ``place`` is ``file:line:column`` in the new files, in the old ones for removed
    fields.
    """

    document: str
    path: str
    old: str | None
    new: str | None
    place: str


@dataclass(frozen=True, slots=True)
class _Said:
    """A value as written, and its path with numbers, which locates it."""

    value: Any
    path: str


def field_changes(old: PolicySet, new: PolicySet) -> tuple[FieldChange, ...]:
    """Every document and field that differs, by document and path."""
    before, after = _documents(old), _documents(new)
    found: list[FieldChange] = []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        if was is now:
            continue
        if was is None or now is None:
            place = old.origins.get(name) if now is None else new.origins.get(name)
            found.append(
                FieldChange(
                    document=name,
                    path="",
                    old=None if was is None else THERE,
                    new=None if now is None else THERE,
                    place=str(place or ""),
                )
            )
            continue
        found += _within(name, was, now, old, new)
    return tuple(found)


def _documents(policies: PolicySet) -> Mapping[str, Document]:
    return {
        f"{kind}/{name}": document
        for kind, documents in (
            ("EnginePool", policies.pools),
            ("ModelRoute", policies.routes),
            ("ResiliencePolicy", policies.policies),
        )
        for name, document in documents.items()
    }


def _within(name: str, was: Document, now: Document, old: PolicySet, new: PolicySet) -> Iterator[FieldChange]:
    before, after = _fields(was), _fields(now)
    had, has = _items(before), _items(after)
    told: set[str] = set()
    for path in sorted(before.keys() | after.keys()):
        one, other = before.get(path), after.get(path)
        if one is not None and other is not None and one.value == other.value:
            continue
        item = _item(path)
        whole = item if item and (item in had) != (item in has) else ""
        if whole in told:
            continue
        if whole:
            told.add(whole)
        yield FieldChange(
            document=name,
            path=whole or path,
            old=None if one is None else THERE if whole else _text(one.value),
            new=None if other is None else THERE if whole else _text(other.value),
            place=_place(name, old, one, new, other),
        )


def _place(name: str, old: PolicySet, one: "_Said | None", new: PolicySet, other: "_Said | None") -> str:
    kind, _, document = name.partition("/")
    if other is not None:
        return str(new.origin(kind, document, other.path) or "")
    return str(old.origin(kind, document, one.path) or "") if one is not None else ""


def _item(path: str) -> str:
    """The list item that a field belongs to; empty if none."""
    return path[: path.rindex("]") + 1] if "]" in path else ""


def _items(fields: Mapping[str, _Said]) -> frozenset[str]:
    return frozenset(map(_item, fields))


def _fields(document: Document) -> Mapping[str, _Said]:
    """Every written field, by a path that names list items where they have names."""
    data = document.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return dict(_leaves(data, "", ""))


def _leaves(value: Any, path: str, numbered: str) -> Iterator[tuple[str, _Said]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}".lstrip("."), f"{numbered}.{key}".lstrip("."))
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        names = [_name(item) for item in value]
        alike = len(set(names)) < len(names)
        for number, item in enumerate(value):
            name = names[number]
            label = str(number) if alike or name is None else name
            yield from _leaves(item, f"{path}[{label}]", f"{numbered}[{number}]")
    else:
        yield path, _Said(value, numbered)


def _name(item: Mapping[str, Any]) -> str | None:
    for key in _NAMES:
        if isinstance(item.get(key), str):
            return str(item[key])
    address, port = item.get("address"), item.get("port")
    return None if address is None else f"{address}:{port}"


def _text(value: Any) -> str:
    if not isinstance(value, list):
        return format_value(value)
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONG and text.isprintable() else format_value(value)
