"""What the change from one snapshot to another does to live traffic, resource by resource.

The table is that of docs/architecture.md, "Hot and cold".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from xds_server.snapshot import Resource, Snapshot, content_of
from xds_server.translate.hops import ENGINE_LISTENERS
from xds_server.type_urls import CLUSTER, LISTENER, PUSH_ORDER, SHORT_NAMES


class How(StrEnum):
    """What becomes of a resource."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"


class Heat(StrEnum):
    """Whether live traffic feels it: ``hot`` changes nothing that is under way."""

    HOT = "hot"
    COLD = "cold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One resource that becomes different, how that acts on live traffic, and the policy lines it is made from."""

    type: str
    name: str
    how: How
    heat: Heat
    meaning: str
    origins: tuple[str, ...] = ()


_COLD: Final[Mapping[tuple[str, How], str]] = MappingProxyType(
    {
        (CLUSTER, How.CHANGED): "proxies forget its requests in flight, its breaker counts and its ejections",
        (CLUSTER, How.REMOVED): "proxies end their connections to its engines once no route leads there",
        (LISTENER, How.CHANGED): "streams through it are cut when the proxy's drain time ends",
        (LISTENER, How.REMOVED): "its port closes; streams through it are cut when the drain time ends",
    }
)
_HOT: Final[Mapping[How, str]] = MappingProxyType(
    {
        How.ADDED: "new: nothing under way is touched",
        How.CHANGED: "requests in flight, counts and ejections survive",
        How.REMOVED: "requests in flight survive; new ones no longer find it",
    }
)


def effects(before: Snapshot, after: Snapshot) -> tuple[Effect, ...]:
    """Every resource that differs in content, in the order in which types are pushed."""
    found: list[Effect] = []
    for url in PUSH_ORDER:
        was, now = before.of(url), after.of(url)
        for name in sorted(was.keys() | now.keys()):
            how = _how(was.get(name), now.get(name))
            if how is not None:
                found.append(_effect(url, name, how, (now.get(name) or was[name]).origins))
    return tuple(found)


def _how(was: Resource | None, now: Resource | None) -> How | None:
    if was is None:
        return How.ADDED
    if now is None:
        return How.REMOVED
    # Endpoints are sent again when their cluster changes. That is no change of theirs.
    return None if content_of(was.version) == content_of(now.version) else How.CHANGED


def _effect(url: str, name: str, how: How, origins: tuple[str, ...]) -> Effect:
    cold = _COLD.get((url, how))
    if cold is not None and name.startswith(ENGINE_LISTENERS):
        # Their removal is how requests held by an engine are ended.
        cold = "what this engine holds through this proxy ends at once"
    return Effect(
        type=SHORT_NAMES[url],
        name=name,
        how=how,
        heat=Heat.HOT if cold is None else Heat.COLD,
        meaning=cold or _HOT[how],
        origins=origins,
    )
