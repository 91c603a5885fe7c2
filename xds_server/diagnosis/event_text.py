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
        "zones": "zone split",
        "kept": "capacity floor",
        "object": "custom resource",
        "source": "policy source",
    }
)
_UNITS: Final[Mapping[str, str]] = MappingProxyType({"ceiling": " requests"})
_HEALTH: Final[Mapping[str, str]] = MappingProxyType(
    {"UNHEALTHY": "ejected", "DRAINING": "draining", "HEALTHY": "returned to rotation"}
)


def kind_text(kind: str) -> str:
    """The kind of an event as text: ``admission limit``."""
    return _LABELS.get(kind, kind)


def transition_text(kind: str, before: str, after: str) -> str:
    """``old -> new``, or the field's own verb, without the field."""
    change = f"{before} -> {after}" if before else after
    change += _UNITS.get(kind, "")
    match kind, after:
        case "health", "UNHEALTHY" | "DRAINING" | "HEALTHY" if before:
            text = _HEALTH[after]
        case "verdict", "producing" if before and before != "no report":
            text = "recovered"
        case "kept", "kept in rotation":
            text = "kept in rotation"
        case "kept", _:
            text = "no longer kept in rotation"
        case "demand", _:
            text = change.replace(" capacity ->", " ->")
        case _:
            text = change
    return text


def change_text(kind: str, before: str, after: str) -> str:
    """``field: old -> new``, or the field's own verb. Kinds and values are those of events."""
    text = transition_text(kind, before, after)
    match kind:
        case "health" if before and after in _HEALTH:
            return text
        case "verdict" if text == "recovered":
            return text
        case "kept":
            return f"{text} by the capacity floor"
        case "demand" | "zones":
            return f"{kind_text(kind)} {text}"
        case _:
            return f"{kind_text(kind)}: {text}"
