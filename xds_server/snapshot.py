"""What the control plane wants one kind of proxy to have: named resources with content-hash versions.

A version is a hash of the encoded content and of nothing else, so that a restarted control plane, or a
second replica, finds every proxy already up to date and resends nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One encoded xDS resource.

    ``value`` is the serialised message named by ``type_url``; ``version`` is the hex content hash of it;
    ``origins`` are the ``file:line`` places of the policies that produced it, most specific first.
    """

    type_url: str
    name: str
    value: bytes
    version: str
    origins: tuple[str, ...] = ()


def resource(type_url: str, name: str, value: bytes, origins: Iterable[str] = ()) -> Resource:
    """The resource with its content-hash version."""
    version = blake2b(value, digest_size=8).hexdigest()
    return Resource(type_url=type_url, name=name, value=value, version=version, origins=tuple(origins))


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything one view (see ``translate.View``) is served: type URL -> name -> resource."""

    resources: Mapping[str, Mapping[str, Resource]] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, type_url: str) -> Mapping[str, Resource]:
        """The resources of one type by name; empty when the type is not served."""
        return self.resources.get(type_url, MappingProxyType({}))

    @property
    def count(self) -> int:
        """Number of resources of all types."""
        return sum(len(by_name) for by_name in self.resources.values())


def snapshot(resources: Iterable[Resource]) -> Snapshot:
    """The snapshot of these resources; a later one of the same type and name replaces an earlier one."""
    by_type: dict[str, dict[str, Resource]] = {}
    for item in resources:
        by_type.setdefault(item.type_url, {})[item.name] = item
    return Snapshot(
        resources=MappingProxyType({url: MappingProxyType(by_name) for url, by_name in by_type.items()})
    )
