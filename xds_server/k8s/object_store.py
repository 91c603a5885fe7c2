"""What a selection of objects holds, as a value that is fed with pages of lists and with events of watches.

It does no input and no output. Objects are read once, where they come in, to the values that others work with;
an object of which nothing they know has changed is no change. A list takes effect when its last page is there,
in one step: what it no longer has is gone, and nothing else was ever away.

Source: Kubernetes API concepts, "Efficient detection of changes" and "Retrieving large results sets in chunks".
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

from xds_server.k8s.kube_api import KubeObject, ListPage, WatchEvent

T = TypeVar("T")


class ObjectKey(NamedTuple):
    """Namespace and name of an object; the namespace of one that has none is empty."""

    namespace: str
    name: str


class ObjectStore(Generic[T]):
    """The objects of a selection, read. ``read`` is given each object once, and must take whatever it is given."""

    def __init__(self, read: Callable[[KubeObject], T]) -> None:
        self._read = read
        self._objects: dict[ObjectKey, T] = {}
        self._listing: dict[ObjectKey, T] = {}
        self.resource_version = ""
        self.complete = False

    @property
    def objects(self) -> Mapping[ObjectKey, T]:
        """Everything there is, as far as is known."""
        return MappingProxyType(self._objects)

    @property
    def must_list(self) -> bool:
        """Whether there is no version that a watch could go on from."""
        return not self.resource_version

    def begin(self) -> None:
        """A list begins: half of one that came to nothing is no part of it."""
        self._listing = {}

    def page(self, page: ListPage) -> frozenset[ObjectKey]:
        """What became different by this page: nothing before the last one."""
        for item in page.items:
            key = _key(item)
            if key is not None:
                self._listing[key] = self._read(item)
        if page.more:
            return frozenset()
        before, self._objects = self._objects, self._listing
        self._listing = {}
        self.resource_version, self.complete = page.resource_version, True
        return frozenset(
            key for key in before.keys() | self._objects.keys() if before.get(key) != self._objects.get(key)
        )

    def event(self, event: WatchEvent) -> frozenset[ObjectKey]:
        """What became different by this event."""
        metadata = event.object.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        if isinstance(version, str) and version:
            self.resource_version = version
        key = _key(event.object)
        if key is None or event.type not in {"ADDED", "MODIFIED", "DELETED"}:
            return frozenset()
        before = self._objects.get(key)
        if event.type == "DELETED":
            self._objects.pop(key, None)
            return frozenset({key}) if before is not None else frozenset()
        after = self._read(event.object)
        self._objects[key] = after
        return frozenset({key}) if before != after else frozenset()

    def expired(self) -> None:
        """The version is no longer kept, or the rest of a list is not: list from the beginning."""
        self.resource_version = ""
        self._listing = {}

    def mark_absent(self) -> None:
        """There is nothing to list, and that is known."""
        self.complete = True


def _key(item: KubeObject) -> ObjectKey | None:
    metadata = item.get("metadata")
    if not isinstance(metadata, dict):
        return None
    name, namespace = metadata.get("name"), metadata.get("namespace", "")
    if not isinstance(name, str) or not isinstance(namespace, str) or not name:
        return None
    return ObjectKey(namespace, name)
