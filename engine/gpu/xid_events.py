"""XID events, latched because the driver reports each only once.

One record per (rank, code) with a count. Bounded: when full, the record unseen for longest is dropped and counted.
The policy's TTL limits how long a record counts; the latch forgets only XIDs fixed by an engine restart.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from engine.bounded_dict import BoundedDict

CAPACITY: Final = 256  # fits 8 ranks with every known code; about 50 KB


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEvent:
    """One XID from the driver. ``rank`` is None if the driver does not name the GPU: all are affected."""

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
    """Remembered XIDs; thread-safe."""

    def __init__(self, *, capacity: int = CAPACITY) -> None:
        self._records: BoundedDict[tuple[int | None, int], XidRecord] = BoundedDict(
            capacity, on_evict=self._count_dropped
        )
        self._lock = threading.Lock()
        self.dropped = 0

    def record(self, event: XidEvent) -> XidRecord:
        """Add ``event``; return its record."""
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
        """All records, least recent first."""
        with self._lock:
            return tuple(self._records.values())

    def _count_dropped(self, _key: tuple[int | None, int]) -> None:
        self.dropped += 1

    def forget(self, which: Callable[[XidRecord], bool]) -> int:
        """Drop records chosen by ``which``; return their number."""
        with self._lock:
            gone = [key for key, record in self._records.items() if which(record)]
            for key in gone:
                del self._records[key]
            return len(gone)
