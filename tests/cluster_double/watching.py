"""Events of a watch: the changes that concern it.

Source: Kubernetes API concepts, "Efficient detection of changes", "Watch bookmarks", "Streaming lists".
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster_double.journal import Change
from tests.cluster_double.json_object import Object
from tests.cluster_double.kinds import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Watching:
    """A watch of changes after ``revision``; ``first`` are its initial events."""

    kind: Kind
    namespace: str
    test: Callable[[Object], bool]
    revision: int
    first: tuple[Object, ...] = ()
    bookmarks: bool = False
    timeout_s: float = 1800.0

    def told(self, change: Change) -> Object | None:
        """The event of a change; None where it is about nothing that is watched."""
        storage, namespace, _ = change.key
        if storage != self.kind.storage or (self.namespace and namespace != self.namespace):
            return None
        was = change.before is not None and self.test(change.before)
        is_now = change.after is not None and self.test(change.after)
        if is_now:
            return {"type": "MODIFIED" if was else "ADDED", "object": self.shown(change.after)}
        if not was:
            return None
        # An object that no longer matches is deleted for the watcher, in its last matching state.
        gone = change.gone
        if gone is None and change.before is not None:
            about = {**change.before["metadata"], "resourceVersion": str(change.revision)}
            gone = {**change.before, "metadata": about}
        return {"type": "DELETED", "object": self.shown(gone)}

    def bookmark(self, revision: int, *, after_first: bool = False) -> Object:
        """An event that says nothing but how far the watch has come."""
        about: Object = {"resourceVersion": str(revision), "creationTimestamp": None}
        if after_first:
            about["annotations"] = {"k8s.io/initial-events-end": "true"}
        return {
            "type": "BOOKMARK",
            "object": {"kind": self.kind.kind, "apiVersion": self.kind.api_version, "metadata": about},
        }

    def shown(self, stored: Object | None) -> Object:
        """An object in the version that is watched."""
        return {**(stored or {}), "apiVersion": self.kind.api_version}
