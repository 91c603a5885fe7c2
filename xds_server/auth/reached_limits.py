"""Limits that peers reached within the last minute, and which peers.

Limits are reported here by the code that enforces them, and shown by the conditions SG280 to SG286.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from heapq import nsmallest
from types import MappingProxyType
from typing import Final

from engine.bounded_dict import BoundedDict
from xds_server.admin_api.status_types import ReachedLimit
from xds_server.xds import StreamErrorKind

REPORTED_S: Final = 60.0
"""A limit is reported this long after it was last reached: longer than a scrape interval."""

MAX_PEERS: Final = 1024
"""Remembered peers per limit; the longest unused are forgotten."""

_MOST_NAMED: Final = 5
_LONGEST_NAME: Final = 100


class PeerLimit(StrEnum):
    """A limit of peers, by the code of its condition."""

    STREAMS = "SG280"  # streams, connections, node ids, and kinds of proxies
    CPU = "SG281"  # CPU time of messages
    TELEMETRY = "SG282"  # access log entries
    MEMORY = "SG283"  # memory of the process
    MESSAGES = "SG284"  # size, number of names, and time of messages
    ADMIN = "SG285"  # connections and requests of the admin port
    LINES = "SG286"  # log lines of events


BY_STREAM_ERROR: Final[Mapping[str, PeerLimit]] = MappingProxyType(
    {
        StreamErrorKind.CONNECTION_LIMIT.value: PeerLimit.STREAMS,
        StreamErrorKind.HOST_LIMIT.value: PeerLimit.STREAMS,
        StreamErrorKind.SILENT.value: PeerLimit.MESSAGES,
        StreamErrorKind.SIZE.value: PeerLimit.MESSAGES,
        StreamErrorKind.NAMES.value: PeerLimit.MESSAGES,
        StreamErrorKind.STALLED.value: PeerLimit.MESSAGES,
    }
)
"""Errors that end a stream at a limit, of discovery and of telemetry. ``MemoryGuard`` reports those of memory."""


class _Episode:
    __slots__ = ("first_s", "last_s")

    def __init__(self, now_s: float) -> None:
        self.first_s = self.last_s = now_s


class ReachedLimits:
    """Peers by limit, each with the time since when it has kept reaching it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._peers: Mapping[PeerLimit, BoundedDict[tuple[str, str], _Episode]] = {
            one: BoundedDict(MAX_PEERS) for one in PeerLimit
        }

    def add(self, limit: PeerLimit, host: str, node: str = "") -> None:
        """A peer has reached a limit; ``host`` as in ``host_of``."""
        now_s, peers = self._clock(), self._peers[limit]
        known = peers.get((host, node))
        if known is None or now_s - known.last_s > REPORTED_S:
            peers[host, node] = _Episode(now_s)
        else:
            known.last_s = now_s
            peers.move_to_end((host, node))

    def add_stream_error(self, kind: str, host: str, node: str = "") -> None:
        """A stream was refused or ended; only limits count."""
        if (limit := BY_STREAM_ERROR.get(kind)) is not None:
            self.add(limit, host, node)

    def current(self) -> Sequence[ReachedLimit]:
        """Limits reached within the last ``REPORTED_S``."""
        now_s, found = self._clock(), []
        for limit, peers in self._peers.items():
            while peers and now_s - next(iter(peers.values())).last_s > REPORTED_S:
                peers.popitem(last=False)
            if not peers:
                continue
            # The oldest episodes, so that the text stays the same while they last.
            oldest = [
                peer for _, peer in nsmallest(_MOST_NAMED, ((one.first_s, peer) for peer, one in peers.items()))
            ]
            found.append(
                ReachedLimit(
                    code=limit.value,
                    peers=tuple(map(_name, oldest)),
                    count=len(peers),
                    age_s=round(now_s - peers[oldest[0]].first_s, 3),
                )
            )
        return found


def _name(peer: tuple[str, str]) -> str:
    host, node = peer
    text = f"{node} at {host}" if node else host
    return text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}..."
