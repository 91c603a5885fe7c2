"""XIDs as they came: an edge each, kept here because the driver tells each of them once.

The latch holds one record per (rank, code): a storm of one XID costs one entry and a count. It is bounded; when
full, the record longest not seen makes room and is counted. How long a record counts is the judge's to say, by the
policy's time to live; the latch only forgets on restart of the engine, for XIDs that a restart mends.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from engine.bounded_dict import BoundedDict

CAPACITY: Final = 256  # 8 ranks with every code of the table fit with room to spare; about 50 KB


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEvent:
    """One XID from the driver. ``rank`` is None when the driver does not say which GPU, so all are meant."""

    rank: int | None
    code: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class XidRecord:
    """All events of one code on one rank so far."""

    rank: int | None
    code: int
    first_s: float
    last_s: float
    count: int


class XidLatch:
    """What came, until it is forgotten; written by the event thread, read by anyone."""

    def __init__(self, *, capacity: int = CAPACITY) -> None:
        self._records: BoundedDict[tuple[int | None, int], XidRecord] = BoundedDict(
            capacity, on_evict=self._count_dropped
        )
        self._lock = threading.Lock()
        self.dropped = 0

    def record(self, event: XidEvent) -> XidRecord:
        """The record of ``event``'s kind with ``event`` in it."""
        key = (event.rank, event.code)
        with self._lock:
            known = self._records.get(key)
            if known is None:
                record = XidRecord(
                    rank=event.rank, code=event.code, first_s=event.at_s, last_s=event.at_s, count=1
                )
            else:
                record = replace(known, last_s=event.at_s, count=known.count + 1)
            self._records[key] = record
            return record

    def records(self) -> tuple[XidRecord, ...]:
        """All records, longest unseen first."""
        with self._lock:
            return tuple(self._records.values())

    def _count_dropped(self, _key: tuple[int | None, int]) -> None:
        self.dropped += 1

    def forget(self, which: Callable[[XidRecord], bool]) -> int:
        """How many records ``which`` chose and are gone."""
        with self._lock:
            gone = [key for key, record in self._records.items() if which(record)]
            for key in gone:
                del self._records[key]
            return len(gone)
