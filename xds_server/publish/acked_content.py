"""Content accepted by proxies: fallback for rejected content.

A fallback comes from the same view, else from any view with the same visibility: routes and limits have one name
in all views, and they name pools that some proxies may not see.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from xds_server.model.snapshot import Resource, Snapshot, content_of
from xds_server.model.type_urls import CLUSTER, ENDPOINT, RUNTIME, SECRET
from xds_server.model.view import View

ResourceKey = tuple[str, str]
"""Type URL and name."""

FORGET_AFTER_S: Final = 600.0
"""Keep unused accepted content this long, for a rollback that still names it."""

MAX_FORMER: Final = 3
"""Earlier accepted contents kept of a resource: a proxy that accepts anything must not displace the last good
one.
"""

_WITHOUT_FORMER: Final = (ENDPOINT, RUNTIME)
"""Types that change with every health report: only their last accepted content is kept."""

_NONE: Final[Mapping[Hashable, Resource]] = MappingProxyType({})


@dataclass(slots=True)
class _ViewContent:
    """Content accepted by proxies of a view; ``former``: what they accepted before, newest first."""

    accepted: dict[ResourceKey, Resource] = field(default_factory=dict)
    former: dict[ResourceKey, tuple[Resource, ...]] = field(default_factory=dict)
    unwanted_since_s: dict[ResourceKey, float] = field(default_factory=dict)


class AckedContent:
    """Last accepted content of each resource, by view and by visibility."""

    def __init__(self) -> None:
        self._views: dict[Hashable, _ViewContent] = {}
        self._by_audience: dict[ResourceKey, dict[Hashable, Resource]] = {}

    def record(self, view: Hashable, resources: Iterable[Resource]) -> list[Resource]:
        """Record that a proxy of ``view`` accepted these; returns those that are new."""
        known = self._views.setdefault(view, _ViewContent())
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
        return new

    def restore(self, item: Resource) -> None:
        """Restore content accepted in an earlier run; any later ACK overrides it."""
        self._by_audience.setdefault(key_of(item), {}).setdefault(None, item)

    def of_view(self, view: Hashable) -> Mapping[ResourceKey, Resource]:
        """Content last accepted by proxies of a view."""
        known = self._views.get(view)
        return {} if known is None else known.accepted

    def for_everyone(self, key: ResourceKey) -> Resource | None:
        """Content last accepted by a proxy that may see everything."""
        return self._by_audience.get(key, _NONE).get(None)

    def is_acked(self, item: Resource) -> bool:
        """Whether a proxy last accepted this content."""
        key, content = key_of(item), content_of(item.version)
        return any(
            content_of(accepted.version) == content
            for known in self._views.values()
            if (accepted := known.accepted.get(key))
        )

    def fallback(self, view: Hashable, key: ResourceKey, rejected: Collection[str]) -> Resource | None:
        """Replacement for a resource whose content hashes ``rejected`` must not be served to a view."""
        # Reading must not create an entry for a view without proxies.
        known = self._views.get(view) or _ViewContent()
        shared = self._by_audience.get(key, _NONE).get(_audience(view, key))
        choices = (known.accepted.get(key), *known.former.get(key, ()), shared)
        return next((item for item in choices if item and content_of(item.version) not in rejected), None)

    def expire(self, desired: Collection[Snapshot], now_s: float) -> None:
        """Forget content that has long been in no desired snapshot."""
        for known in self._views.values():
            for key in list(known.accepted):
                if any(key[1] in snapshot.of(key[0]) for snapshot in desired):
                    known.unwanted_since_s.pop(key, None)
                elif now_s - known.unwanted_since_s.setdefault(key, now_s) > FORGET_AFTER_S:
                    del known.accepted[key], known.unwanted_since_s[key]
                    known.former.pop(key, None)
                    self._by_audience.pop(key, None)

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
