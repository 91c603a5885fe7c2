"""Versions of one resource type that a peer has rejected, and must not be sent again.

A rejection ends when the snapshot has another version, when the peer drops the name, or when another resource of
the same response was at fault.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from xds_server.model.snapshot import Resource

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejections:
    """Rejected version of each resource by name, and the reason of the last NACK.

    ``fallbacks``: further rejected versions, as (name, version), that were served in place of rejected ones.
    ``removals``: names whose removal the peer rejected. Whether it removed them is unknown; the removal is sent
    again with the next change.
    """

    versions: Mapping[str, str] = field(default_factory=lambda: _NONE)
    fallbacks: frozenset[tuple[str, str]] = frozenset()
    removals: frozenset[str] = frozenset()
    reason: str = ""
    nacked_at_s: float = 0.0

    def has_rejected(self, item: Resource) -> bool:
        """Whether the peer has rejected this version, also as a fallback."""
        return self.versions.get(item.name) == item.version or (item.name, item.version) in self.fallbacks

    def current(self, resources: Mapping[str, Resource], rolled_back: Collection[str]) -> dict[str, str]:
        """Rejections that still keep the peer from its desired resources."""
        refused_fallbacks = {
            name: version
            for name, version in self.fallbacks
            if name in rolled_back and is_version(resources.get(name), version)
        }
        return refused_fallbacks | {
            name: version
            for name, version in self.versions.items()
            if name in rolled_back or is_version(resources.get(name), version)
        }

    def nacked(
        self,
        suspects: Iterable[Resource],
        *,
        fallbacks_of: Collection[str],
        removals: Iterable[str],
        reason: str,
        now_s: float,
    ) -> "Rejections":
        """Add the rejections of one NACK; those of ``fallbacks_of`` as fallbacks."""
        versions, fallbacks = dict(self.versions), set(self.fallbacks)
        for item in suspects:
            if item.name in fallbacks_of and versions.get(item.name) != item.version:
                fallbacks.add((item.name, item.version))
            else:
                versions[item.name] = item.version
        return Rejections(
            versions=MappingProxyType(versions),
            fallbacks=frozenset(fallbacks),
            removals=self.removals.union(removals),
            reason=reason,
            nacked_at_s=now_s,
        )

    def rejecting(self, item: Resource) -> "Rejections":
        """Add the rejection of one more version, with the reason of the last NACK."""
        return replace(self, versions=MappingProxyType({**self.versions, item.name: item.version}))

    @property
    def pairs(self) -> Collection[tuple[str, str]]:
        """Every rejected version, as (name, version)."""
        if not self.versions and not self.fallbacks:
            return frozenset()
        return {*self.versions.items(), *self.fallbacks}

    def cleared(self, pairs: Iterable[tuple[str, str]]) -> "Rejections":
        """Remove the rejections of these versions, given as (name, version)."""
        gone = set(pairs)
        if gone.isdisjoint(self.pairs):
            return self
        versions = {name: version for name, version in self.versions.items() if (name, version) not in gone}
        return replace(self, versions=MappingProxyType(versions), fallbacks=self.fallbacks - gone)

    def superseded(self, names: Collection[str]) -> "Rejections":
        """Remove all rejections of these names: another version is desired."""
        if not names:
            return self
        return self.retained(lambda name: name not in names)

    def without_removals(self) -> "Rejections":
        """Remove the rejected removals."""
        return replace(self, removals=frozenset()) if self.removals else self

    def retained(self, wants: Callable[[str], bool]) -> "Rejections":
        """Keep the rejections of these names."""
        if not self.versions and not self.fallbacks:
            return self
        fallbacks = frozenset(one for one in self.fallbacks if wants(one[0]))
        return replace(self, versions=_without(self.versions, wants), fallbacks=fallbacks)


def is_version(item: Resource | None, version: str) -> bool:
    """Whether the resource exists with this version."""
    return item is not None and item.version == version


def _without(versions: Mapping[str, str], keep: Callable[[str], bool]) -> Mapping[str, str]:
    return MappingProxyType({name: version for name, version in versions.items() if keep(name)}) or _NONE
