"""Content that proxies refused and none accepted: who refused it, and which proxy versions do not get it.

One proxy takes nothing from another: content is held back from proxies that have not tried it only once
``NACK_QUORUM`` hosts or identities refused it, and only from proxies of the version that refused it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from engine.bounded_dict import BoundedDict
from xds_server.model.snapshot import Resource, Snapshot, content_of
from xds_server.publish.acked_content import key_of
from xds_server.publish.part_isolation import ResourceKey, part_keys
from xds_server.xds import ContentKey

NACK_QUORUM: Final = 3
"""Refusals by distinct hosts or identities after which content is held back from others."""

MAX_REJECTED: Final = 1_000
"""Limit of refused contents."""

MAX_REFUSALS: Final = 256
"""Limit of refusals per content."""

_NONE: Final[Mapping[ResourceKey, Collection[str]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedNack:
    """One proxy's NACK. ``host``: address and proven identities. ``agent``: name and version of the proxy."""

    host: str
    node: str
    agent: str
    at_unix_s: float
    reason: str


@dataclass(slots=True, kw_only=True)
class RejectedContent:
    """One refused content of a resource or of a part of it, with the last refusal of each host.

    Hosts are in the order of their first refusals.
    """

    type_url: str
    name: str
    content: str
    by_host: dict[str, RecordedNack] = field(default_factory=dict)
    nodes: dict[str, None] = field(default_factory=dict)
    since_unix_s: float = 0.0
    reason: str = ""

    def add(self, refusal: RecordedNack) -> None:
        """Add a refusal."""
        if not self.by_host:
            self.since_unix_s = refusal.at_unix_s
        self.reason = refusal.reason or self.reason
        if len(self.nodes) < MAX_REFUSALS:
            self.nodes[refusal.node] = None
        if refusal.host in self.by_host or len(self.by_host) < MAX_REFUSALS:
            self.by_host[refusal.host] = refusal

    def agents_of_quorum(self) -> frozenset[str]:
        """Proxy versions with a quorum of refusals."""
        counts = Counter(one.agent for one in self.by_host.values())
        return frozenset(agent for agent, count in counts.items() if count >= NACK_QUORUM)


class ContentRejections:
    """Refused contents by type, name and content hash."""

    def __init__(self) -> None:
        self._known: BoundedDict[ContentKey, RejectedContent] = BoundedDict(MAX_REJECTED, on_evict=self._evicted)
        self._held: dict[str, dict[ResourceKey, set[str]]] = {}

    @property
    def known(self) -> Mapping[ContentKey, RejectedContent]:
        """All refused contents."""
        return self._known

    def held_from(self, agent: str) -> Mapping[ResourceKey, Collection[str]]:
        """Content hashes held back from proxies of this version, by type and name."""
        return self._held.get(agent, _NONE)

    def is_held(self, key: ContentKey) -> bool:
        """Whether this content is held back from proxies of some version."""
        known = self._known.get(key)
        return known is not None and bool(known.agents_of_quorum())

    def add(self, key: ContentKey, refusal: RecordedNack) -> bool:
        """Record a refusal; returns whether content is newly held back."""
        known = self._known.get(key)
        if known is None:
            type_url, name, content = key
            known = RejectedContent(type_url=type_url, name=name, content=content)
        before = known.agents_of_quorum()
        known.add(refusal)
        self._known[key] = known
        if known.agents_of_quorum() == before:
            return False
        self._hold()
        return True

    def clear(self, items: Iterable[Resource]) -> bool:
        """Record an ACK of these; returns whether any had been refused."""
        gone = [key for item in items for key in content_keys(item) if key in self._known]
        self._forget(gone)
        return bool(gone)

    def retain(self, desired: Collection[Snapshot]) -> bool:
        """Forget content that is in no desired snapshot; returns whether any was held back."""
        return self._forget([key for key in self._known if not any(_has(one, key) for one in desired)])

    def _forget(self, keys: Iterable[ContentKey]) -> bool:
        gone = [self._known.pop(key) for key in keys]
        if not any(one.agents_of_quorum() for one in gone):
            return False
        self._hold()
        return True

    def _evicted(self, key: ContentKey) -> None:
        if any(key[2] in held.get(key[:2], ()) for held in self._held.values()):
            self._hold()

    def _hold(self) -> None:
        self._held = {}
        for key, known in self._known.items():
            for agent in known.agents_of_quorum():
                self._held.setdefault(agent, {}).setdefault(key[:2], set()).add(key[2])


def content_key(item: Resource) -> ContentKey:
    """Identity of a resource's content."""
    return (*key_of(item), content_of(item.version))


def content_keys(item: Resource) -> tuple[ContentKey, ...]:
    """Identity of a resource's content, and of its parts."""
    return (content_key(item), *part_keys(item))


def _has(desired: Snapshot, key: ContentKey) -> bool:
    """Whether the snapshot has this content of a resource or part."""
    item = desired.of(key[0]).get(key[1])
    return item is not None and key in content_keys(item)
