"""What one resource has that another has not, as a value that a person can read.

Two mappings are compared key by key: ``key`` holds what became of it, ``+key`` what was added, ``-key`` what was
removed. Two lists whose items all have a name of their own are compared as mappings from these names; ``=order``
holds the names where they stand in another order. Two other lists of one length are compared place by place.
Everything else is replaced as a whole, a list by a mapping under ``=instead``. The first resource and the
difference give the second: see ``patched``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

ORDER = "=order"


def difference(base: Any, other: Any) -> Any:
    """What makes ``other`` of ``base``; the two are not equal. Keys of mappings stand in no order."""
    match base, other:
        case dict(), dict():
            return _of_mappings(base, other)
        case list(), list():
            named, other_named = by_name(base), by_name(other)
            if named is not None and other_named is not None:
                order = {} if _order(named, other_named) == list(other_named) else {ORDER: list(other_named)}
                return _of_mappings(named, other_named) | order
            if named is None and len(base) == len(other):
                pairs = enumerate(zip(base, other, strict=True))
                return {place: difference(one, two) for place, (one, two) in pairs if one != two}
        case list(), dict():
            return {"=instead": other}
    return other


def patched(base: Any, change: Any) -> Any:
    """``base`` with the difference: ``patched(base, difference(base, other)) == other``."""
    match base, change:
        case dict(), dict():
            return _patched_mapping(base, change)
        case list(), {"=instead": other}:
            return other
        case list(), dict():
            named = by_name(base)
            if named is None:
                return [patched(one, change[place]) if place in change else one for place, one in enumerate(base)]
            items = _patched_mapping(named, {key: value for key, value in change.items() if key != ORDER})
            return [items[name] for name in change.get(ORDER, items)]
    return change


def by_name(items: Sequence[Any]) -> dict[str, Any] | None:
    """The items by their names; None where one has none, two have the same, or there are no items."""
    named = {item["name"]: item for item in items if isinstance(item, dict) and isinstance(item.get("name"), str)}
    return named if items and len(named) == len(items) else None


def _of_mappings(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{
            key if key in base else f"+{key}": difference(base[key], value) if key in base else value
            for key, value in other.items()
            if key not in base or base[key] != value
        },
        **{f"-{key}": None for key in base if key not in other},
    }


def _patched_mapping(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in base.items() if f"-{key}" not in change}
    return {
        **{key: patched(value, change[key]) if key in change else value for key, value in kept.items()},
        **{key.removeprefix("+"): value for key, value in change.items() if key.startswith("+")},
    }


def _order(base: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Where the items of ``other`` would stand: those of ``base`` as they stood, then the added ones."""
    return [key for key in base if key in other] + [key for key in other if key not in base]
