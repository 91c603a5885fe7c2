"""Subscription of a peer to one resource type: names or wildcard. Pure.

Independent of what was sent or accepted. Each change returns a new value.
"""

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Final

from xds_server.model.snapshot import Resource
from xds_server.model.type_urls import CLUSTER, LISTENER
from xds_server.xds.messages import MAX_NAME_CHARACTERS, MAX_NAMES, StreamError, StreamErrorKind

FULL_STATE: Final = frozenset((CLUSTER, LISTENER))
"""Types that may have an implicit wildcard, and whose SOTW responses carry the full state.

In such a response, absence means removal.
"""

WILDCARD: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What the peer wants of one type.

    ``has_named`` is true once the peer has named a resource: an empty list of names then means none, not all.
    ``implicit`` marks a subscription that the peer did not send.
    """

    type_url: str
    names: frozenset[str] = frozenset()
    wildcard: bool = False
    has_named: bool = False
    implicit: bool = False

    def wants(self, name: str) -> bool:
        """Whether the peer is subscribed to ``name``."""
        return self.wildcard or name in self.names

    def wanted(self, resources: Mapping[str, Resource]) -> dict[str, Resource]:
        """Those of the resources that the peer is subscribed to, by name."""
        if self.wildcard:
            return dict(resources)
        return {name: item for name in sorted(self.names) if (item := resources.get(name))}

    def wanted_of(self, names: Collection[str]) -> Set[str]:
        """Those of the names that the peer is subscribed to."""
        return set(names) if self.wildcard else self.names.intersection(names)

    def replaced(self, names: Iterable[str], resources: int = 0) -> "Subscription":
        """The subscription to these names only (SOTW, and the first request of a delta stream).

        ``resources``: the number of resources of the type, which allows as many names more.
        """
        requested = frozenset(names)
        has_named = self.has_named or bool(requested)
        # An empty first request means everything, for historical reasons and for these types only:
        # https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol#how-the-client-specifies-what-resources-to-return
        wildcard = WILDCARD in requested or (not has_named and self.type_url in FULL_STATE)
        wanted = requested - {WILDCARD}
        if (wanted, wildcard, has_named) == (self.names, self.wildcard, self.has_named):
            return self
        check_names(wanted - self.names, len(wanted), resources)
        return replace(self, names=wanted, wildcard=wildcard, has_named=has_named)

    def extended(self, names: Iterable[str], resources: int = 0) -> "Subscription":
        """The subscription to these names too (delta); ``resources`` as in ``replaced``."""
        requested = frozenset(names)
        added = requested - self.names - {WILDCARD}
        check_names(added, len(self.names) + len(added), resources)
        return replace(
            self,
            names=self.names | added if added else self.names,
            wildcard=self.wildcard or WILDCARD in requested,
            has_named=self.has_named or bool(requested),
        )

    def reduced(self, names: Iterable[str]) -> "Subscription":
        """The subscription without these names (delta); the subscription ignores names that it does not have."""
        dropped = frozenset(names)
        left = self.names if self.names.isdisjoint(dropped) else self.names - dropped
        return replace(self, names=left, wildcard=self.wildcard and WILDCARD not in dropped)


def check_names(added: Iterable[str], total: int, resources: int) -> None:
    """``StreamError`` if these new names are too long, or with them there are too many."""
    most = MAX_NAMES + resources
    if total > most:
        raise StreamError(f"{total} resource names of one type; limit {most}", StreamErrorKind.NAMES)
    if any(len(name) > MAX_NAME_CHARACTERS for name in added):
        raise StreamError(f"resource name longer than {MAX_NAME_CHARACTERS} characters", StreamErrorKind.NAMES)
