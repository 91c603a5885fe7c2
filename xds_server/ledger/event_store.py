"""Stored events: limited per subject and in total, with flapping stored once.

An engine that flaps every second makes two events a second. From the second round on they are stored as one pair
with growing ``times``, so that its history stays two lines and displaces no other.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from xds_server.decide.diff.change import Subject
from xds_server.ledger.event import Event

MOST: Final = 10_000
"""Events in total; about 10 MB."""

MOST_OF_ONE: Final = 100
"""Events per subject."""

FLAPS_WITHIN_S: Final = 60.0
"""A transition repeated within this time counts as flapping."""


class EventStore:
    """Events, oldest first."""

    def __init__(self, most: int = MOST, most_of_one: int = MOST_OF_ONE) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._events: dict[int, Event] = {}
        self._by_subject: dict[Subject, dict[int, None]] = {}
        self._number = 0

    def __len__(self) -> int:
        """Number of stored events."""
        return len(self._events)

    @property
    def newest(self) -> int:
        """The number of the newest event; 0 if there never was one."""
        return self._number

    def add(self, event: Event) -> Event:
        """Store an event; returns it as stored: numbered, and merged with its repetitions."""
        self._number += 1
        same = self._repeated(event)
        if same is not None:
            self._forget(same.number)
            event = replace(
                event,
                times=max(event.times, same.times + 1),
                first_unix_s=min(same.first_unix_s, event.first_unix_s),
            )
        event = replace(event, number=self._number)
        self._events[event.number] = event
        own = self._by_subject.setdefault(event.subject, {})
        own[event.number] = None
        if len(own) > self._most_of_one:
            self._forget(next(iter(own)))
        if len(self._events) > self._most:
            self._forget(next(iter(self._events)))
        return event

    def since(self, number: int) -> Sequence[Event]:
        """Events with a greater number, oldest first."""
        return list(_newer(self._events.values(), number))

    def of(self, subjects: Iterable[Subject]) -> Sequence[Event]:
        """Events of exactly these subjects, oldest first."""
        numbers = sorted(number for subject in set(subjects) for number in self._by_subject.get(subject, ()))
        return [self._events[number] for number in numbers]

    def related(self, *, pool: str = "", engine: str = "", zone: str = "", proxy: str = "") -> Sequence[Event]:
        """Events of every subject with these parts, oldest first; empty parts match all."""
        wanted = [
            subject
            for subject in self._by_subject
            if (not pool or subject.pool == pool)
            and (not engine or subject.engine == engine)
            and (not zone or subject.zone in (zone, f"from {zone}"))
            and (not proxy or subject.proxy == proxy)
        ]
        return self.of(wanted)

    def _repeated(self, event: Event) -> Event | None:
        """The event that this one repeats: the same transition, since reversed by the newest of its kind."""
        undone: Event | None = None
        for number in reversed(self._by_subject.get(event.subject, {})):
            past = self._events[number]
            if event.at_unix_s - past.at_unix_s > FLAPS_WITHIN_S:
                return None
            if past.kind is not event.kind:
                continue
            if undone is None:
                if past.after != event.before:
                    return None
                undone = past
            else:
                return past if (past.before, past.after) == (event.before, event.after) else None
        return None

    def _forget(self, number: int) -> None:
        subject = self._events.pop(number).subject
        own = self._by_subject[subject]
        del own[number]
        if not own:
            del self._by_subject[subject]


def _newer(events: Iterable[Event], number: int) -> Iterator[Event]:
    return (event for event in events if event.number > number)
