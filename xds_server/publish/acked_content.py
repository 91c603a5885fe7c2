"""Content accepted by proxies: fallback for rejected content.

A fallback comes from the same view, else from any view with the same visibility: routes and limits have one name
in all views, and they name pools that some proxies may not see.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from xds_server.model.snapshot import Resource, Snapshot, content_of
from xds_server.model.type_urls import CLUSTER, ENDPOINT, MOVING, SECRET
from xds_server.model.view import View
from xds_server.publish.part_isolation import ResourceKey, part_keys
from xds_server.xds import ContentKey

FORGET_AFTER_S: Final = 600.0
"""Keep unused accepted content this long, for a rollback that still names it."""

MAX_FORMER: Final = 3
"""Earlier accepted contents kept of a resource: a proxy that accepts anything must not displace the last good
one.
"""

_WITHOUT_FORMER: Final = (ENDPOINT, *MOVING)
"""Types that change with every report: only their last accepted content is kept."""

_NONE: Final[Mapping[Hashable, Resource]] = MappingProxyType({})


@dataclass(slots=True)
class _ViewContent:
    """Content accepted by proxies of a view; ``former``: what they accepted before, newest first.

    ``recorded``: by type, the last tuple of resources. A thousand proxies accept the same one.
    """

    accepted: dict[ResourceKey, Resource] = field(default_factory=dict)
    former: dict[ResourceKey, tuple[Resource, ...]] = field(default_factory=dict)
    unwanted_since_s: dict[ResourceKey, float] = field(default_factory=dict)
    recorded: dict[str, tuple[Resource, ...]] = field(default_factory=dict)

    def all_of(self, key: ResourceKey) -> tuple[Resource, ...]:
        """Accepted contents of a name, newest first."""
        newest = self.accepted.get(key)
        return () if newest is None else (newest, *self.former.get(key, ()))


class AckedContent:
    """Last accepted content of each resource, by view and by visibility."""

    def __init__(self) -> None:
        self._views: dict[Hashable, _ViewContent] = {}
        self._by_audience: dict[ResourceKey, dict[Hashable, Resource]] = {}
        self._restored: dict[ResourceKey, Resource] = {}

    def record(self, view: Hashable, resources: Iterable[Resource]) -> list[Resource]:
        """Record that a proxy of ``view`` accepted these; returns those that are new.

        A tuple has resources of one type.
        """
        known = self._views.setdefault(view, _ViewContent())
        together = resources if isinstance(resources, tuple) and resources else None
        if together is not None and known.recorded.get(together[0].type_url) is together:
            return []
        new = []
        for item in resources:
            key = key_of(item)
            before = known.accepted.get(key)
            if before is item:
                continue
            if before is not None and item.type_url not in _WITHOUT_FORMER and before.version != item.version:
                others = (one for one in known.former.get(key, ()) if one.version != item.version)
                known.former[key] = (before, *others)[:MAX_FORMER]
            known.accepted[key] = item
            known.unwanted_since_s.pop(key, None)
            self._by_audience.setdefault(key, {})[_audience(view, key)] = item
            new.append(item)
            known.recorded.pop(item.type_url, None)
        if together is not None:
            known.recorded[together[0].type_url] = together
        return new

    def restore(self, item: Resource) -> None:
        """Restore content accepted in an earlier run; later ACKs take precedence."""
        self._restored[key_of(item)] = item

    def of_view(self, view: Hashable) -> Mapping[ResourceKey, Resource]:
        """Content last accepted by proxies of a view."""
        known = self._views.get(view)
        return {} if known is None else known.accepted

    def for_everyone(self, key: ResourceKey) -> Resource | None:
        """Content last accepted by a proxy that may see everything."""
        return self._by_audience.get(key, _NONE).get(None) or self._restored.get(key)

    def has_content(self, key: ContentKey) -> bool:
        """Whether a proxy last accepted this content of a resource, or not long ago this content of a part."""
        accepted = [known.all_of(key[:2]) for known in self._views.values()]
        return any(
            content_of(items[0].version) == key[2] or any(key in part_keys(item) for item in items)
            for items in accepted
            if items
        )

    def fallback(self, view: Hashable, key: ResourceKey, rejected: Collection[str]) -> Resource | None:
        """Replacement for a resource whose content hashes ``rejected`` must not be served to a view."""
        return next((item for item in self.all_of(view, key) if content_of(item.version) not in rejected), None)

    def all_of(self, view: Hashable, key: ResourceKey) -> tuple[Resource, ...]:
        """Accepted contents that may be served to a view, newest first."""
        known, audience = self._views.get(view), _audience(view, key)
        shared = self._by_audience.get(key, _NONE).get(audience)
        restored = self._restored.get(key) if audience is None else None
        return (
            *(() if known is None else known.all_of(key)),
            *(item for item in (shared, restored) if item is not None),
        )

    def expire(self, desired: Collection[Snapshot], now_s: float) -> None:
        """Forget content that has long been in no desired snapshot."""
        for known in self._views.values():
            for key in list(known.accepted):
                if any(key[1] in snapshot.of(key[0]) for snapshot in desired):
                    known.unwanted_since_s.pop(key, None)
                elif now_s - known.unwanted_since_s.setdefault(key, now_s) > FORGET_AFTER_S:
                    del known.accepted[key], known.unwanted_since_s[key]
                    known.former.pop(key, None)
                    known.recorded.pop(key[0], None)
                    self._by_audience.pop(key, None)
                    self._restored.pop(key, None)

    def forget(self, view: Hashable) -> None:
        """Forget a view without proxies."""
        self._views.pop(view, None)


def key_of(item: Resource) -> ResourceKey:
    """Type URL and name of a resource."""
    return item.type_url, item.name


def _audience(view: Hashable, key: ResourceKey) -> Hashable:
    """Visibility class of a resource: None if every proxy may see everything.

    A cluster and its endpoints belong to one pool, and a proxy served one of them may see that pool. A secret
    replaces another only between views with equal permission for keys.
    """
    if not isinstance(view, View) or key[0] in (CLUSTER, ENDPOINT):
        return None
    return (view.allowed, view.keys) if key[0] == SECRET else view.allowed
