"""Bytes of messages that are not complete or wait for CPU time: of each connection, of each host, and in all.

Exact, because our own transport holds them. ``auth/unfinished_messages.py`` estimates the same for gRPC.
"""

from typing import Final, Generic, TypeVar

Stream = TypeVar("Stream")

_REDUCE_TO: Final = 0.5
"""Share of a limit that is left once it was exceeded."""


class HeldMessages(Generic[Stream]):
    """What streams hold. Those with nothing are not remembered.

    A group is a connection, a host or everything, with its own limit in bytes.
    """

    def __init__(self, max_bytes_of_connection: int, max_bytes_of_host: int, max_bytes: int) -> None:
        self._limits = (max_bytes_of_connection, max_bytes_of_host, max_bytes)
        self._streams: dict[Stream, tuple[tuple[str, str, str], int]] = {}
        self._groups: dict[tuple[int, str], int] = {}

    @property
    def total_bytes(self) -> int:
        """Bytes of all streams."""
        return self._groups.get((2, ""), 0)

    def set(self, stream: Stream, connection: str, host: str, size: int) -> bool:
        """A stream holds this many bytes now; False if that exceeds a limit (see ``excess``)."""
        groups, before = self._streams.get(stream, ((connection, host, ""), 0))
        if size == before:
            return True
        if size:
            self._streams[stream] = (groups, size)
        else:
            del self._streams[stream]
        fits = True
        for level, (name, most) in enumerate(zip(groups, self._limits, strict=True)):
            total = self._groups.get((level, name), 0) + size - before
            if total:
                self._groups[level, name] = total
            else:
                del self._groups[level, name]
            fits = fits and total <= most
        return fits or size < before

    def excess(self) -> list[Stream]:
        """Streams that must end, those with most bytes first, until half of each exceeded limit is left."""
        limits = self._limits
        over = {group: size for group, size in self._groups.items() if size > limits[group[0]]}
        found: list[Stream] = []
        if not over:
            return found
        for stream, (groups, size) in sorted(self._streams.items(), key=lambda item: -item[1][1]):
            exceeded = [group for group in enumerate(groups) if group in over]
            if any(over[group] > limits[group[0]] * _REDUCE_TO for group in exceeded):
                found.append(stream)
                for group in exceeded:
                    over[group] -= size
        return found
