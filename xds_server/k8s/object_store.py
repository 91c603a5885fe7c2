"""Objects of a selection, fed by list pages and watch events.

No I/O. Objects are parsed once, on arrival; a change in fields that are not parsed is not a change. A list takes
effect atomically with its last page: objects it lacks are gone, all others stay.

Source: Kubernetes API concepts, "Efficient detection of changes" and "Retrieving large results sets in chunks".
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

from xds_server.k8s.kube_api import KubeObject, ListPage, WatchEvent

T = TypeVar("T")


class ObjectKey(NamedTuple):
    """Namespace and name of an object; empty namespace for cluster-scoped objects."""

    namespace: str
    name: str


class ObjectStore(Generic[T]):
    """Parsed objects of a selection. ``read`` is called once per object and must accept any input."""

    def __init__(self, read: Callable[[KubeObject], T]) -> None:
        self._read = read
        self._objects: dict[ObjectKey, T] = {}
        self._listing: dict[ObjectKey, T] = {}
        self.resource_version = ""
        self.complete = False

    @property
    def objects(self) -> Mapping[ObjectKey, T]:
        """All known objects."""
        return MappingProxyType(self._objects)

    @property
    def must_list(self) -> bool:
        """Whether there is no version to watch from."""
        return not self.resource_version

    def begin(self) -> None:
        """Start a list; discards a previous incomplete one."""
        self._listing = {}

    def page(self, page: ListPage) -> frozenset[ObjectKey]:
        """Keys changed by this page; empty before the last page."""
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
        """Keys changed by this event."""
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
        """The version or page token has expired: list from the start."""
        self.resource_version = ""
        self._listing = {}

    def mark_absent(self) -> None:
        """Record that the resource does not exist."""
        self.complete = True


def _key(item: KubeObject) -> ObjectKey | None:
    metadata = item.get("metadata")
    if not isinstance(metadata, dict):
        return None
    name, namespace = metadata.get("name"), metadata.get("namespace", "")
    if not isinstance(name, str) or not isinstance(namespace, str) or not name:
        return None
    return ObjectKey(namespace, name)
