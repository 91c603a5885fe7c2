"""Impact of a change from one snapshot to another on live traffic, resource by resource.

The table is that of docs/architecture.md, "Hot and cold".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from xds_server.model.snapshot import Resource, Snapshot, content_of
from xds_server.model.type_urls import CLUSTER, LISTENER, PUSH_ORDER, SHORT_NAMES
from xds_server.translate.internal_listeners import ENGINE_LISTENER_PREFIX


class ResourceChange(StrEnum):
    """How a resource changes."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"


class Impact(StrEnum):
    """Whether live traffic is affected: ``hot`` disturbs nothing in flight."""

    HOT = "hot"
    COLD = "cold"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceEffect:
    """One resource that changes, its impact on live traffic, and the policy lines behind it."""

    type: str
    name: str
    how: ResourceChange
    heat: Impact
    meaning: str
    origins: tuple[str, ...] = ()


_COLD: Final[Mapping[tuple[str, ResourceChange], str]] = MappingProxyType(
    {
        (
            CLUSTER,
            ResourceChange.CHANGED,
        ): "proxies reset its requests in flight, breaker counts and ejections",
        (
            CLUSTER,
            ResourceChange.REMOVED,
        ): "proxies close connections to its engines once no route leads there",
        (LISTENER, ResourceChange.CHANGED): "its streams are cut when the proxy's drain time ends",
        (LISTENER, ResourceChange.REMOVED): "its port closes; its streams are cut when the drain time ends",
    }
)
_HOT: Final[Mapping[ResourceChange, str]] = MappingProxyType(
    {
        ResourceChange.ADDED: "new: nothing in flight is affected",
        ResourceChange.CHANGED: "requests in flight, counts and ejections survive",
        ResourceChange.REMOVED: "requests in flight survive; new ones no longer match",
    }
)


def resource_effects(before: Snapshot, after: Snapshot) -> tuple[ResourceEffect, ...]:
    """Every resource that differs in content, in push order of the types."""
    found: list[ResourceEffect] = []
    for url in PUSH_ORDER:
        was, now = before.of(url), after.of(url)
        for name in sorted(was.keys() | now.keys()):
            how = _how(was.get(name), now.get(name))
            if how is not None:
                found.append(_effect(url, name, how, (now.get(name) or was[name]).origins))
    return tuple(found)


def _how(was: Resource | None, now: Resource | None) -> ResourceChange | None:
    if was is None:
        return ResourceChange.ADDED
    if now is None:
        return ResourceChange.REMOVED
    # Endpoints are sent again when their cluster changes; their content does not change.
    return None if content_of(was.version) == content_of(now.version) else ResourceChange.CHANGED


def _effect(url: str, name: str, how: ResourceChange, origins: tuple[str, ...]) -> ResourceEffect:
    cold = _COLD.get((url, how))
    if cold is not None and name.startswith(ENGINE_LISTENER_PREFIX):
        # Removing it is how an engine's requests are cut.
        cold = "requests on this engine through this proxy are cut at once"
    return ResourceEffect(
        type=SHORT_NAMES[url],
        name=name,
        how=how,
        heat=Impact.HOT if cold is None else Impact.COLD,
        meaning=cold or _HOT[how],
        origins=origins,
    )
