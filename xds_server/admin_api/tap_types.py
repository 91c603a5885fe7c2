"""Types of the stream ``/v1/tap``: tries of requests as their access logs arrive. Read by `switchgear tap`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TappedTry:
    """One ended try of a request, or a request that was refused or ended without one.

    ``number``: 1 is the first try, 0: no engine was tried. ``engine`` is empty unless one was. ``duration_s`` is
    of this try, ``total_s`` from the start of the first, where that is known. ``first_byte_s`` is None without
    streaming. ``status`` 0: no response. ``reason`` begins with the ``x-switchgear-reason`` of the answer, if it
    has one. ``calls``: calls it stands for, more than 1 when its proxy samples.
    """

    at_unix_s: float
    request: str
    proxy: str
    route: str
    priority: str
    pool: str
    engine: str
    number: int
    result: str
    status: int
    duration_s: float
    total_s: float
    first_byte_s: float | None
    slow: bool
    reason: str
    calls: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TapBatch:
    """Tries since the previous message, oldest first; a message without any shows that the stream lives.

    ``dropped``: tries left out meanwhile because the watcher read too slowly. ``sampling_ratio``: the smallest
    share of calls that a proxy reports now.
    """

    tries: tuple[TappedTry, ...]
    dropped: int
    sampling_ratio: float
