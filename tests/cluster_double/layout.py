"""Which parts of an object are atomic, and which have their own owners, for server-side apply.

Source: Kubernetes, "Server-Side Apply", "Merge strategy": ``x-kubernetes-list-type``, ``x-kubernetes-map-type``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tests.cluster_double.json_object import Object, canonical
from tests.cluster_double.kinds import Kind

Path: TypeAlias = tuple[str, ...]
"""Steps as ``fieldsV1`` has them: ``f:spec``, ``k:{"type":"Ready"}``, ``v:"kept"``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the objects of a kind fall into parts: at one place, which the steps below it lead on from."""

    keys: Mapping[str, tuple[str, ...]]
    schema: Object | None
    field: str = ""

    @classmethod
    def of(cls, kind: Kind) -> "Layout":
        """The layout of a kind's objects, at their top."""
        return cls(keys=kind.apply_keys, schema=kind.schema)

    def below(self, field: str) -> "Layout":
        """The layout of a field."""
        schema = self.schema
        if schema is not None:
            properties = schema.get("properties") or {}
            extra = schema.get("additionalProperties")
            schema = properties.get(field, extra if isinstance(extra, dict) else {})
        # Metadata is the API's own, whatever the schema of the rest says.
        return Layout(keys=self.keys, schema=None if field == "metadata" else schema, field=field)

    def item(self) -> "Layout":
        """The layout of an item of this list."""
        schema = None if self.schema is None else self.schema.get("items") or {}
        return Layout(keys=self.keys, schema=schema, field=self.field)

    def list_keys(self) -> tuple[str, ...] | None:
        """The keys of the items of this list; none where each item is its own, None for a list as one value."""
        if self.schema is None:
            return self.keys.get(self.field)
        match self.schema.get("x-kubernetes-list-type", "atomic"):
            case "map":
                return tuple(self.schema["x-kubernetes-list-map-keys"])
            case "set":
                return ()
            case _:
                return None

    def whole(self) -> bool:
        """Whether this block is one value."""
        return self.schema is not None and self.schema.get("x-kubernetes-map-type") == "atomic"


def items(layout: Layout, value: list[Any]) -> Mapping[str, Any] | None:
    """The items of a list by their steps; None where the list is one value."""
    keys = layout.list_keys()
    if keys is None:
        return None
    if not keys:
        return {f"v:{canonical(one)}": one for one in value}
    if not all(isinstance(one, dict) for one in value):
        return None
    return {f"k:{canonical({key: one[key] for key in keys if key in one})}": one for one in value}


def leaves(layout: Layout, value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every part that has an owner, with its value; items of a list stand for themselves too, with None."""
    if isinstance(value, dict) and value and not layout.whole():
        for name, one in value.items():
            yield from leaves(layout.below(name), one, (*path, f"f:{name}"))
        return
    if isinstance(value, list) and (found := items(layout, value)) is not None:
        for step, one in found.items():
            yield (*path, step), None
            if step.startswith("k:"):
                yield from leaves(layout.item(), one, (*path, step))
        return
    yield path, value


def laid_over(layout: Layout, under: Any, over: Any) -> Any:
    """``under`` with everything that ``over`` says in its place."""
    if isinstance(under, dict) and isinstance(over, dict) and not layout.whole():
        result = dict(under)
        for name, one in over.items():
            result[name] = laid_over(layout.below(name), under.get(name), one)
        return result
    if isinstance(under, list) and isinstance(over, list):
        before, after = items(layout, under), items(layout, over)
        if before is not None and after is not None:
            joined = dict(before)
            for step, one in after.items():
                joined[step] = laid_over(layout.item(), joined.get(step), one) if step in joined else one
            return list(joined.values())
    return over


def without(layout: Layout, value: Any, path: Path) -> Any:
    """``value`` without the part at ``path``, and without blocks that this leaves empty."""
    first, rest = path[0], path[1:]
    if isinstance(value, dict) and first.startswith("f:"):
        name = first[2:]
        if name not in value:
            return value
        left = without(layout.below(name), value[name], rest) if rest else None
        result = {key: one for key, one in value.items() if key != name}
        return {**result, name: left} if rest and left not in ({}, []) else result
    if isinstance(value, list):
        found = items(layout, value)
        if found is None or first not in found:
            return value
        kept = dict(found)
        if rest:
            kept[first] = without(layout.item(), kept[first], rest)
        else:
            del kept[first]
        return list(kept.values())
    return value
