"""Objects as the rows that ``kubectl get`` shows: printer columns of a definition, or name and age.

Source: Kubernetes API concepts, "Receiving resources as Tables"; "Additional printer columns".
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from tests.cluster_double.json_object import Object, metadata
from tests.cluster_double.kinds import Kind

_NAME: Final[Object] = {"name": "Name", "type": "string", "format": "name", "priority": 0, "description": ""}
_AGE: Final[Object] = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
_STEP: Final = re.compile(r"\.([A-Za-z0-9_-]+)|\[\?\(@\.(\w+)==['\"]([^'\"]*)['\"]\)\]|\[(\d+|\*)\]")


def table(kind: Kind, objects: Sequence[Object], about: Object, *, now: datetime) -> Object:
    """The table of some objects."""
    columns = kind.columns or (_AGE,)
    heads = [
        {"name": one["name"], "type": one["type"], "format": one.get("format", ""),
         "description": one.get("description", ""), "priority": one.get("priority", 0)}
        for one in columns
    ]  # fmt: skip
    rows = [
        {
            "cells": [metadata(each).get("name"), *(_cell(each, one, now) for one in columns)],
            "object": {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata(each),
            },
        }
        for each in objects
    ]
    kept = {
        key: said for key, said in about.items() if key in {"resourceVersion", "continue", "remainingItemCount"}
    }
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": kept,
        "columnDefinitions": [_NAME, *heads],
        "rows": rows,
    }


def found(value: Any, path: str) -> list[Any]:
    """All that a simple JSONPath leads to: fields, ``[*]``, a number, and ``[?(@.field=="text")]``."""
    here = [value]
    at = 0
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            msg = f"{path!r}: nothing is known to begin at {path[at:]!r}"
            raise ValueError(msg)
        at = step.end()
        name, key, wanted, which = step.groups()
        if name is not None:
            here = [one[name] for one in here if isinstance(one, dict) and name in one]
        elif key is not None:
            inside = [each for one in here if isinstance(one, list) for each in one]
            here = [each for each in inside if isinstance(each, dict) and str(each.get(key)) == wanted]
        else:
            lists = [one for one in here if isinstance(one, list)]
            here = [each for one in lists for each in (one if which == "*" else one[int(which) : int(which) + 1])]
    return here


def _cell(each: Object, column: Object, now: datetime) -> Any:
    values = found(each, column["jsonPath"])
    if not values:
        return None
    if column["type"] == "date":
        return _age(values[0], now)
    # Of several only the first is shown, as the API server does.
    return values[0] if column["type"] in {"integer", "number", "boolean"} else str(values[0])


def _age(said: str, now: datetime) -> str:
    passed_s = max(0, int((now - datetime.fromisoformat(said)).total_seconds()))
    for unit, length_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if passed_s >= 2 * length_s:
            return f"{passed_s // length_s}{unit}"
    return f"{passed_s}s"
