"""Transitions as text for people: ``ejected``, ``cutting requests: off -> on``."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_LABELS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "standing": "pod",
        "ejector": "ejected for",
        "trial": "traffic share",
        "cut": "cutting requests",
        "shadow": "shadow mode",
        "straggler": "speed",
        "ceiling": "admission limit",
        "retries": "retried statuses",
        "limits": "timeouts",
        "ladder": "degradation",
        "order": "operator order",
    }
)
_HEALTH: Final[Mapping[str, str]] = MappingProxyType(
    {"UNHEALTHY": "ejected", "DRAINING": "draining", "HEALTHY": "returned to rotation"}
)


def change_text(kind: str, before: str, after: str) -> str:
    """``field: old -> new``, or the field's own verb. Kinds and values are those of events."""
    change = f"{before} -> {after}" if before else after
    match kind, after:
        case "health", "UNHEALTHY" | "DRAINING" | "HEALTHY" if before:
            text = _HEALTH[after]
        case "verdict", "producing" if before and before != "no report":
            text = "recovered"
        case "kept", "kept in rotation":
            text = "kept in rotation by the capacity floor"
        case "kept", _:
            text = "no longer kept in rotation by the capacity floor"
        case "demand", _:
            text = f"demand {change}".replace(" capacity ->", " ->")
        case "zones", _:
            text = f"zone split {change}"
        case _:
            text = f"{_LABELS.get(kind, kind)}: {change}"
    return text
