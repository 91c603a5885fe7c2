"""Finds the resources that one proxy refuses, among those of a response whose NACK names none.

One stream's suspects of one type are sent again in groups, one group at a time. An ACK clears a group; a NACK
halves it, or finds the fault if the group is a single resource.
"""

from collections.abc import Callable, Collection

from xds_server.model.snapshot import Resource

_Group = tuple[Resource, ...]


class SuspectTrials:
    """Suspects of one type on one stream. ``on_trial``: the group that is sent again now."""

    def __init__(self) -> None:
        self.on_trial: _Group = ()
        self._waiting: list[_Group] = []

    def __bool__(self) -> bool:
        return bool(self.on_trial or self._waiting)

    def add(self, suspects: Collection[Resource], accepted: Callable[[Resource], bool]) -> None:
        """Try these next: those that other proxies accepted apart from the others, else in halves."""
        self.remove(suspects)
        fine = tuple(item for item in suspects if accepted(item))
        groups = (fine, tuple(item for item in suspects if item not in fine))
        if not all(groups):
            whole = tuple(suspects)
            groups = (whole[: len(whole) // 2], whole[len(whole) // 2 :])
        self._waiting[:0] = [group for group in groups if group]

    def remove(self, settled: Collection[Resource]) -> None:
        """Take these out: answered, or tried in another group."""
        gone = {(item.name, item.version) for item in settled}

        def left(group: _Group) -> _Group:
            return tuple(item for item in group if (item.name, item.version) not in gone)

        self.on_trial = left(self.on_trial)
        self._waiting = [rest for group in self._waiting if (rest := left(group))]

    def advance(self, is_served: Callable[[Resource], bool]) -> _Group:
        """The next group if it begins now; ``is_served`` tells which resources are still desired."""
        self.on_trial = tuple(item for item in self.on_trial if is_served(item))
        if self.on_trial or not self._waiting:
            return ()
        self.on_trial = self._waiting.pop(0)
        return self.on_trial
