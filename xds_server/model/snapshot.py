"""The intended configuration of one kind of proxy: named resources with content-hash versions.

A version is a hash of content only, so that a restarted control plane, or a second replica, finds every proxy up
to date and resends nothing.

One version covers more than its own bytes. Envoy warms a changed cluster until it receives the cluster's endpoints
again, changed or not; so the version of a ClusterLoadAssignment is ``<hash of its content>.<hash of the clusters
that read it>``. A changed cluster makes the endpoints due again on every stream, also on one that was not
connected at the time.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from types import MappingProxyType
from typing import Final, TypeAlias

from engine.bounded_dict import BoundedDict
from xds_server.model.type_urls import CLUSTER, ENDPOINT

_NOTHING: Final[Mapping[str, "Resource"]] = MappingProxyType({})
_NO_NAMES: Final[frozenset[str]] = frozenset()
_FEW: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePart:
    """The encoded part of a resource that comes from one policy document, ``name``.

    ``content``: hash of the value. ``rank``: sorts the parts, before the name. ``instead``: encoded reply for its
    requests where a proxy refuses the part, and no earlier form of it was accepted; empty if there is none.
    """

    name: str
    value: bytes = field(repr=False)
    content: str
    origins: tuple[str, ...] = ()
    rank: tuple[int, ...] = ()
    instead: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceParts:
    """The parts of a resource, in order, and the encoded ``frame`` around them."""

    frame: tuple[bytes, ...] = field(repr=False)
    parts: tuple[ResourcePart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One encoded xDS resource.

    ``value`` is the serialised message named by ``type_url``; ``version`` is its hex content hash, for endpoints
    followed by ``.`` and the hash of the clusters that read them; ``origins`` are the ``file:line`` places of the
    policies behind it, most specific first. ``parts``: of a resource that is isolated by parts.
    """

    type_url: str
    name: str
    value: bytes = field(repr=False)  # may be a secret
    version: str
    origins: tuple[str, ...] = ()
    parts: ResourceParts | None = field(default=None, compare=False, repr=False)


def resource(
    type_url: str, name: str, value: bytes, origins: Iterable[str] = (), parts: ResourceParts | None = None
) -> Resource:
    """The resource with its content-hash version."""
    version = content_hash(value)
    return Resource(
        type_url=type_url, name=name, value=value, version=version, origins=tuple(origins), parts=parts
    )


def content_hash(value: bytes) -> str:
    """The hash that identifies content."""
    return blake2b(value, digest_size=8).hexdigest()


def content_of(version: str) -> str:
    """The part of a version that depends on the resource's own bytes only."""
    return version.partition(".")[0]


def set_version(resources: Iterable[Resource]) -> str:
    """The version of a set of resources: an order-independent hash of their names and versions."""
    return version_of(sorted((item.name, item.version) for item in resources))


def version_of(pairs: Iterable[tuple[str, str]]) -> str:
    """The same from names and versions, in order."""
    return blake2b("\n".join(f"{name}\t{version}" for name, version in pairs).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The resources served to one view (see ``View``): type URL -> name -> resource.

    ``rolled_back`` names, by type URL, resources whose intended content was refused: they have the last accepted
    content here, or are missing if there is none. A proxy that holds a version of a rolled-back, missing name
    keeps it. ``assignments`` maps a cluster's name to that of its endpoints where they differ
    (``eds_cluster_config.service_name``).
    """

    resources: Mapping[str, Mapping[str, Resource]] = field(default_factory=lambda: MappingProxyType({}))
    rolled_back: Mapping[str, Collection[str]] = field(default_factory=lambda: MappingProxyType({}))
    assignments: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, type_url: str) -> Mapping[str, Resource]:
        """The resources of one type by name; empty if the type is not served."""
        return self.resources.get(type_url, _NOTHING)

    def rolled_back_of(self, type_url: str) -> Collection[str]:
        """The names of one type that are rolled back."""
        return self.rolled_back.get(type_url, _NO_NAMES)

    @property
    def count(self) -> int:
        """Number of resources of all types."""
        return sum(len(by_name) for by_name in self.resources.values())


def snapshot(
    resources: Iterable[Resource],
    *,
    assignments: Mapping[str, str] | None = None,
    rolled_back: Mapping[str, Collection[str]] | None = None,
) -> Snapshot:
    """The snapshot of these resources; a later one of the same type and name replaces an earlier one."""
    by_type: dict[str, dict[str, Resource]] = {}
    for item in resources:
        by_type.setdefault(item.type_url, {})[item.name] = item
    if ENDPOINT in by_type:
        by_type[ENDPOINT] = _bound_to_clusters(by_type[ENDPOINT], by_type.get(CLUSTER, {}), assignments or {})
    return Snapshot(
        resources=MappingProxyType({url: MappingProxyType(by_name) for url, by_name in by_type.items()}),
        rolled_back=MappingProxyType(dict(rolled_back or {})),
        assignments=MappingProxyType(dict(assignments or {})),
    )


OwnResources: TypeAlias = tuple[Resource, ...]
"""Resources of a single proxy, in place of those of its view."""


def with_resource(served: Snapshot, item: Resource) -> Snapshot:
    """The snapshot with this resource replacing the one of its type and name; other types stay the same."""
    of_type = MappingProxyType({**served.of(item.type_url), item.name: item})
    return replace(served, resources=MappingProxyType({**served.resources, item.type_url: of_type}))


def _bound_to_clusters(
    endpoints: Mapping[str, Resource], clusters: Mapping[str, Resource], assignments: Mapping[str, str]
) -> dict[str, Resource]:
    """The endpoints with versions that also change when a cluster that reads them does."""
    readers: dict[str, list[str]] = {}
    for name in sorted(clusters):
        readers.setdefault(assignments.get(name, name), []).append(clusters[name].version)
    return {name: bound_to_clusters(item, readers.get(name, ())) for name, item in endpoints.items()}


def bound_to_clusters(item: Resource, versions: Sequence[str]) -> Resource:
    """The endpoints with a version that also changes when a cluster that reads them does.

    ``versions``: those of the clusters, by name.
    """
    version = content_of(item.version)
    if versions:
        read_by = versions[0][:8] if len(versions) == 1 else _hash8("\n".join(versions))
        version = f"{version}.{read_by}"
    # An unchanged resource stays the same object, so that streams quickly detect that nothing changed.
    return item if item.version == version else replace(item, version=version)


def same_own(published: Mapping[str, OwnResources], made: Mapping[str, OwnResources]) -> bool:
    """Whether the same proxies have own resources of the same versions."""
    return published is made or (
        published.keys() == made.keys()
        and all(same_versions(published[node], items) for node, items in made.items())
    )


def same_versions(one: OwnResources, other: OwnResources) -> bool:
    """Whether these are the same resources of the same versions."""
    return one is other or [(item.type_url, item.name, item.version) for item in one] == [
        (item.type_url, item.name, item.version) for item in other
    ]


def unless_equal(published: Snapshot | None, made: Snapshot) -> Snapshot:
    """The published snapshot if ``made`` has the same versions, else ``made``."""
    if published is made:
        return made
    if published is None or published.resources.keys() != made.resources.keys():
        return made
    for url, named in made.resources.items():
        known = published.of(url)
        if known is named:
            continue
        if known.keys() != named.keys() or any(
            known[name] is not item and known[name].version != item.version for name, item in named.items()
        ):
            return made
    return published


def changed_names(before: Snapshot, after: Snapshot, type_url: str) -> Collection[str]:
    """The names of one type that differ, or are rolled back in only one of them."""
    old, new = before.of(type_url), after.of(type_url)
    changed: set[str] = set()
    if old is not new:
        changed.update(name for name, item in new.items() if _version(old.get(name)) != item.version)
        changed.update(name for name in old if name not in new)
    was, now = before.rolled_back_of(type_url), after.rolled_back_of(type_url)
    if was is not now:
        changed.update(set(was) ^ set(now))
    return changed


class SnapshotDiffs:
    """``changed_names``, computed once for all streams that take the same step.

    A push takes a thousand streams from one snapshot to the next. The last few steps of single types are cached:
    snapshots of proxies with one resource of their own share all other types.
    """

    def __init__(self, remembered: int = 32) -> None:
        # Holding both sides keeps their ids from being reused while an entry lives.
        self._steps: BoundedDict[tuple[int, ...], tuple[tuple[object, ...], Collection[str]]] = BoundedDict(
            remembered
        )
        self._last: tuple[Snapshot, Snapshot, Mapping[str, Collection[str]]] | None = None

    def between(self, before: Snapshot, after: Snapshot) -> Mapping[str, Collection[str]]:
        """The changed names by type URL; unchanged types are absent."""
        last = self._last
        if last is None or last[0] is not before or last[1] is not after:
            last = self._last = before, after, self._step(before, after)
        return last[2]

    def _step(self, before: Snapshot, after: Snapshot) -> Mapping[str, Collection[str]]:
        type_urls = {
            **before.resources,
            **after.resources,
            **before.rolled_back,
            **after.rolled_back,
        }
        names = {url: self._of_type(before, after, url) for url in type_urls}
        return {url: changed for url, changed in names.items() if changed}

    def _of_type(self, before: Snapshot, after: Snapshot, type_url: str) -> Collection[str]:
        old, new = before.of(type_url), after.of(type_url)
        was, now = before.rolled_back_of(type_url), after.rolled_back_of(type_url)
        if old is new and was is now:
            return _NO_NAMES
        if len(old) + len(new) <= _FEW:
            # Faster than caching, and a thousand different ones would displace the others.
            return changed_names(before, after, type_url)
        key = (id(old), id(new), id(was), id(now))
        if known := self._steps.get(key):
            return known[1]
        names = changed_names(before, after, type_url)
        self._steps[key] = ((old, new, was, now), names)
        return names


def _version(item: Resource | None) -> str | None:
    return item.version if item else None


def _hash8(text: str) -> str:
    return blake2b(text.encode(), digest_size=4).hexdigest()
