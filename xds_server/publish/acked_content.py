"""Content that proxies have accepted: what may be served in place of what one rejected.

Fallback content comes from the same view, else from any view that may see the same: routes and limits have one
name in all views, and name pools that not every proxy may see.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from xds_server.model.snapshot import Resource, Snapshot, content_of
from xds_server.model.type_urls import CLUSTER, ENDPOINT, SECRET
from xds_server.model.view import View

ResourceKey = tuple[str, str]
"""Type URL and name."""

FORGET_AFTER_S: Final = 600.0
"""Accepted content that no policy wants any more is kept this long for a rollback that may still name it."""

_NONE: Final[Mapping[Hashable, Resource]] = MappingProxyType({})


@dataclass(slots=True)
class _ViewContent:
    """What proxies of a view accepted; ``former`` is what they had of a secret before that."""

    accepted: dict[ResourceKey, Resource] = field(default_factory=dict)
    former: dict[ResourceKey, Resource] = field(default_factory=dict)
    unwanted_since_s: dict[ResourceKey, float] = field(default_factory=dict)


class AckedContent:
    """The last accepted content of each resource, by view and by the proxies that may see it."""

    def __init__(self) -> None:
        self._views: dict[Hashable, _ViewContent] = {}
        self._by_audience: dict[ResourceKey, dict[Hashable, Resource]] = {}

    def record(self, view: Hashable, resources: Iterable[Resource]) -> list[Resource]:
        """Note that a proxy of ``view`` holds these; return those that were not the last accepted."""
        known = self._views.setdefault(view, _ViewContent())
        new = []
        for item in resources:
            key = key_of(item)
            before = known.accepted.get(key)
            if before is item:
                continue
            if item.type_url == SECRET and before is not None and before.version != item.version:
                known.former[key] = before
            known.accepted[key] = item
            known.unwanted_since_s.pop(key, None)
            self._by_audience.setdefault(key, {})[_audience(view, key)] = item
            new.append(item)
        return new

    def restore(self, item: Resource) -> None:
        """Note what an earlier process knew as accepted; what any proxy accepts from now on outweighs it."""
        self._by_audience.setdefault(key_of(item), {}).setdefault(None, item)

    def of_view(self, view: Hashable) -> Mapping[ResourceKey, Resource]:
        """What proxies of a view accepted last."""
        known = self._views.get(view)
        return {} if known is None else known.accepted

    def for_everyone(self, key: ResourceKey) -> Resource | None:
        """What was accepted last by a proxy that may see everything."""
        return self._by_audience.get(key, _NONE).get(None)

    def is_acked(self, item: Resource) -> bool:
        """Whether some proxy has accepted this content last."""
        key, content = key_of(item), content_of(item.version)
        return any(
            content_of(accepted.version) == content
            for known in self._views.values()
            if (accepted := known.accepted.get(key))
        )

    def fallback(self, view: Hashable, key: ResourceKey, rejected: Collection[str]) -> Resource | None:
        """What to serve a view of a name whose content hashes ``rejected`` are not to be served."""
        # Reading must not add an entry for a view that has no proxy.
        known = self._views.get(view) or _ViewContent()
        shared = self._by_audience.get(key, _NONE).get(_audience(view, key))
        choices = (known.accepted.get(key), known.former.get(key), shared)
        return next((item for item in choices if item and content_of(item.version) not in rejected), None)

    def expire(self, desired: Collection[Snapshot], now_s: float) -> None:
        """Forget what has been in no desired snapshot for long."""
        for known in self._views.values():
            for key in list(known.accepted):
                if any(key[1] in snapshot.of(key[0]) for snapshot in desired):
                    known.unwanted_since_s.pop(key, None)
                elif now_s - known.unwanted_since_s.setdefault(key, now_s) > FORGET_AFTER_S:
                    del known.accepted[key], known.unwanted_since_s[key]
                    known.former.pop(key, None)
                    self._by_audience.pop(key, None)

    def forget(self, view: Hashable) -> None:
        """Drop what is known of a view that has no proxies any more."""
        self._views.pop(view, None)


def key_of(item: Resource) -> ResourceKey:
    """Type URL and name of a resource."""
    return item.type_url, item.name


def _audience(view: Hashable, key: ResourceKey) -> Hashable:
    """Whose content may stand in for a view's: None for that of all who may see everything.

    A cluster and its endpoints are one pool's, and who is served one of them may see that pool. A secret stands in
    for another only where keys may be sent, or may not, in both.
    """
    if not isinstance(view, View) or key[0] in (CLUSTER, ENDPOINT):
        return None
    return (view.allowed, view.keys) if key[0] == SECRET else view.allowed
