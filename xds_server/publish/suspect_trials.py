"""Finds what one proxy refuses among several suspects, when its NACK names none.

Suspects are sent again in groups, one group at a time. An ACK clears a group; a NACK halves it, or finds the fault
if the group is a single suspect.
"""

from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
"""Identity of a suspect's content."""


class SuspectTrials(Generic[K]):
    """Suspects on one stream. ``on_trial``: the group that is sent again now."""

    def __init__(self) -> None:
        self.on_trial: tuple[K, ...] = ()
        self._groups: list[tuple[K, ...]] = []

    def __bool__(self) -> bool:
        return bool(self.on_trial or self._groups)

    @property
    def all(self) -> frozenset[K]:
        """All suspects: on trial, or waiting for it."""
        return frozenset(self.on_trial).union(*self._groups)

    def add(self, suspects: Collection[K], accepted: Collection[K] = ()) -> None:
        """Try these next, in halves; first those ``accepted`` by other proxies, if not all or none are."""
        self.remove(suspects)
        whole, accepted = tuple(suspects), frozenset(accepted)
        groups = [
            tuple(one for one in whole if one in accepted),
            tuple(one for one in whole if one not in accepted),
        ]
        if not all(groups):
            groups = [whole[: len(whole) // 2], whole[len(whole) // 2 :]]
        self._groups[:0] = [group for group in groups if group]

    def remove(self, settled: Collection[K]) -> None:
        """Take these out: answered, or tried in another group."""
        gone = frozenset(settled)
        self.on_trial = tuple(one for one in self.on_trial if one not in gone)
        self._groups = [rest for group in self._groups if (rest := tuple(one for one in group if one not in gone))]

    def advance(self, is_wanted: Callable[[K], bool]) -> tuple[K, ...]:
        """The next group if it begins now; ``is_wanted`` tells which suspects are still desired."""
        self.on_trial = tuple(one for one in self.on_trial if is_wanted(one))
        if self.on_trial or not self._groups:
            return ()
        self.on_trial = self._groups.pop(0)
        return self.on_trial
