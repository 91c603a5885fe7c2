"""JSON objects as a cluster keeps them: what is in a path of one, and what it is called."""

import copy
import json
from typing import Any, TypeAlias

Object: TypeAlias = dict[str, Any]
"""An object of the API. Stored objects are immutable: copy before changing."""


def copied(value: Object) -> Object:
    """A copy that shares nothing with the original."""
    return copy.deepcopy(value)


def metadata(of: Object) -> Object:
    """The metadata of an object; an empty block where it has none."""
    found = of.get("metadata")
    return found if isinstance(found, dict) else {}


def at(value: Any, path: str) -> Any:
    """What stands at a dotted path (``spec.nodeName``); None where nothing does."""
    for step in path.strip(".").split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(step)
    return value


def canonical(value: Any) -> str:
    """The same text for the same value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
