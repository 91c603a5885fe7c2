"""Subscription of a peer to one resource type: names or wildcard.

Independent of what was sent or accepted. A delta request costs as much as the names in it, however many there are.
"""

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Final

from xds_server.model.snapshot import Resource
from xds_server.model.type_urls import CLUSTER, LISTENER
from xds_server.xds.messages import MAX_NAME_CHARACTERS, MAX_NAMES, StreamError, StreamErrorKind

FULL_STATE: Final = frozenset((CLUSTER, LISTENER))
"""Types that may have an implicit wildcard, and whose SOTW responses carry the full state.

In such a response, absence means removal.
"""

WILDCARD: Final = "*"


@dataclass(slots=True, kw_only=True)
class Subscription:
    """What the peer wants of one type.

    ``has_named`` is true once the peer has named a resource: an empty list of names then means none, not all.
    ``implicit`` marks a subscription that the peer did not send. ``characters``: sum of the names' lengths.
    """

    type_url: str
    names: set[str] = field(default_factory=set)
    wildcard: bool = False
    has_named: bool = False
    implicit: bool = False
    characters: int = 0

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
        requested = set(names)
        has_named = self.has_named or bool(requested)
        # An empty first request means everything, for historical reasons and for these types only:
        # https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol#how-the-client-specifies-what-resources-to-return
        wildcard = WILDCARD in requested or (not has_named and self.type_url in FULL_STATE)
        wanted = requested - {WILDCARD}
        if (wanted, wildcard, has_named) == (self.names, self.wildcard, self.has_named):
            return self
        check_names(wanted - self.names, len(wanted), resources)
        characters = sum(map(len, wanted))
        return replace(self, names=wanted, wildcard=wildcard, has_named=has_named, characters=characters)

    def add(self, names: Collection[str], resources: int = 0) -> None:
        """Subscribe to these names too (delta); ``resources`` as in ``replaced``."""
        added = set(names).difference(self.names, (WILDCARD,))
        check_names(added, len(self.names) + len(added), resources)
        self.names |= added
        self.characters += sum(map(len, added))
        self.wildcard = self.wildcard or WILDCARD in names
        self.has_named = self.has_named or bool(names)

    def remove(self, names: Collection[str]) -> Set[str]:
        """Drop these names (delta); returns those that it had."""
        dropped = self.names.intersection(names)
        self.names -= dropped
        self.characters -= sum(map(len, dropped))
        self.wildcard = self.wildcard and WILDCARD not in names
        return dropped


def check_names(added: Iterable[str], total: int, resources: int) -> None:
    """``StreamError`` if these new names are too long, or with them there are too many."""
    most = MAX_NAMES + resources
    if total > most:
        raise StreamError(f"{total} resource names of one type; limit {most}", StreamErrorKind.NAMES)
    if max(map(len, added), default=0) > MAX_NAME_CHARACTERS:
        raise StreamError(f"resource name longer than {MAX_NAME_CHARACTERS} characters", StreamErrorKind.NAMES)
