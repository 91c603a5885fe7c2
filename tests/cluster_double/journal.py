"""Everything that was ever written, in order, until it is compacted: versions, lists and watches are read off it.

One counter for all objects, as etcd's revision. The state at a version is the current state with later changes
undone, so a paged list continues consistently despite later writes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from tests.cluster_double.json_object import Object

Key: TypeAlias = tuple[str, str, str]
"""Storage, namespace and name."""

KEPT: Final = 20_000
"""Changes kept by default; etcd keeps five minutes of them."""

FIRST: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One write: what was there before and is there after; None for nothing. ``gone`` is what was deleted, as
    watches say it: in its last state, with the version at which it went.
    """

    revision: int
    key: Key
    before: Object | None
    after: Object | None
    gone: Object | None = None


class Journal:
    """The objects of a cluster and how they came to be so."""

    def __init__(self, *, kept: int = KEPT) -> None:
        self._objects: dict[Key, Object] = {}
        self._changes: list[Change] = []
        self._kept = kept
        self.revision = FIRST
        self.compacted = FIRST
        """Versions before this one are forgotten."""

    @property
    def objects(self) -> Mapping[Key, Object]:
        """All that is there now."""
        return self._objects

    def put(self, key: Key, value: Object) -> Object:
        """Keep ``value``, which is given its version; it belongs to the journal from now on."""
        before = self._objects.get(key)
        self.revision += 1
        value["metadata"]["resourceVersion"] = str(self.revision)
        self._objects[key] = value
        self._add(Change(revision=self.revision, key=key, before=before, after=value))
        return value

    def remove(self, key: Key) -> Object:
        """Delete the object; returns it as watches report it."""
        before = self._objects.pop(key)
        self.revision += 1
        gone = {**before, "metadata": {**before["metadata"], "resourceVersion": str(self.revision)}}
        self._add(Change(revision=self.revision, key=key, before=before, after=None, gone=gone))
        return gone

    def _add(self, change: Change) -> None:
        self._changes.append(change)
        # In large steps: each one moves the whole list.
        if len(self._changes) > 2 * self._kept:
            self.compact(self._changes[-self._kept].revision - 1)

    def compact(self, revision: int | None = None) -> None:
        """Discard versions before ``revision``, or before now: requests for them get 410 Expired."""
        self.compacted = max(self.compacted, self.revision if revision is None else revision)
        self._changes = [one for one in self._changes if one.revision > self.compacted]

    def since(self, revision: int) -> Iterator[Change] | None:
        """Changes after ``revision`` until now; None where they are forgotten."""
        if revision < self.compacted:
            return None
        # Every change has the next number, so its place is known.
        return iter(self._changes[revision - self.compacted :])

    def at(self, revision: int) -> Mapping[Key, Object] | None:
        """The objects as they were at ``revision``; None where that is forgotten."""
        if revision == self.revision:
            return self._objects
        later = self.since(revision)
        if later is None:
            return None
        objects = dict(self._objects)
        for change in reversed(list(later)):
            if change.before is None:
                objects.pop(change.key, None)
            else:
                objects[change.key] = change.before
        return objects
