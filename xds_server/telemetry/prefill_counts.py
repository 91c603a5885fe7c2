"""Requests of one decode pool by whether a proxy named a prefill engine, over the last minute."""

from collections import deque
from typing import Final

from xds_server.model.pool_traffic import PrefillUse
from xds_server.telemetry.sliding_windows import LatencyHistogram

_SLICE_S: Final = 10.0
_KEPT: Final = 6


class PrefillCounts:
    """Counts in slices that expire, and first bytes of both kinds."""

    __slots__ = ("_local_first_byte", "_named_first_byte", "_slices")

    def __init__(self) -> None:
        self._slices: deque[tuple[int, list[float]]] = deque(maxlen=_KEPT)
        self._named_first_byte = LatencyHistogram()
        self._local_first_byte = LatencyHistogram()

    def add(self, *, named: bool, weight: float, now_s: float) -> None:
        """Add a request by its first try, for ``weight`` requests."""
        number = int(now_s / _SLICE_S)
        if not self._slices or self._slices[-1][0] < number:
            self._slices.append((number, [0.0, 0.0]))
        self._slices[-1][1][named] += weight

    def add_first_byte(self, seconds: float, *, named: bool, now_s: float) -> None:
        """Add the time of a successful stream to its first byte."""
        (self._named_first_byte if named else self._local_first_byte).add(seconds, now_s)

    def use(self, now_s: float) -> PrefillUse | None:
        """What is known of the last minute; None without requests."""
        oldest = int(now_s / _SLICE_S) - _KEPT + 1
        while self._slices and self._slices[0][0] < oldest:
            self._slices.popleft()
        if not self._slices:
            return None
        local, named = (sum(column) for column in zip(*(counts for _, counts in self._slices), strict=True))
        return PrefillUse(
            named=named,
            local=local,
            named_first_byte=self._named_first_byte.tail(now_s),
            local_first_byte=self._local_first_byte.tail(now_s),
        )
