"""One direction of a connection: bytes read from one socket wait until they are due at the other."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from chaos.netem.link_rules import LinkConditions


class BandwidthCap:
    """A bandwidth limit shared by many connections; bytes wait in order of entry."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    def through_at_s(self, now_s: float, size: int) -> float:
        """Reserve ``size`` bytes; return when the last one has passed."""
        self._free_at_s = max(now_s, self._free_at_s) + size / self._bytes_per_s
        return self._free_at_s


class DelayLine:
    """Delay of one direction of one connection. Bytes stay in order, as in TCP.

    ``open_at_s`` is when the connection would be open with a handshake as late as its bytes; nothing arrives
    earlier.
    """

    def __init__(self, rng: random.Random, *, open_at_s: float) -> None:
        self._rng = rng
        self._open_at_s = open_at_s
        self._last_due_s = 0.0

    def due_s(self, now_s: float, size: int, weather: LinkConditions, caps: Sequence[BandwidthCap]) -> float:
        """When ``size`` bytes that enter now are due at the other end."""
        through_s = max(now_s, self._open_at_s)
        for cap in caps:
            through_s = cap.through_at_s(through_s, size)
        late_s = weather.latency_s + (weather.jitter_s * self._rng.random() if weather.jitter_s else 0.0)
        self._last_due_s = max(self._last_due_s, through_s + late_s)
        return self._last_due_s


# Limit of buffered bytes; beyond it the sender is paused, as by a TCP window.
_WAITING_BYTES: Final = 256 * 1024


class ShapedFlow:
    """Bytes in transit from ``source`` to ``sink``, once both sockets are connected.

    ``held``: delivery is paused. ``sink_full``: the sink's send buffer is full. ``ended``: the source's end was
    passed to the sink; ``on_end`` is called then.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self.source: asyncio.Transport | None = None
        self.sink: asyncio.Transport | None = None
        self.held = False
        self.sink_full = False
        self.ended = False
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._waiting_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, due_s: float, data: bytes) -> None:
        """Queue bytes due at this monotonic time; empty bytes mean the end."""
        self._waiting.append((due_s, data))
        self._waiting_bytes += len(data)
        self.deliver()

    def deliver(self) -> None:
        """Deliver what is due; set a timer for the rest."""
        self._disarm()
        sink = None if self.held or self.sink is None or self.sink.is_closing() else self.sink
        if sink is not None:
            self._deliver(sink)
        self._hold_back()

    def close(self) -> None:
        """Drop queued bytes."""
        self._waiting.clear()
        self._disarm()

    def _deliver(self, sink: asyncio.Transport) -> None:
        now_s = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now_s:
            _, data = self._waiting.popleft()
            self._waiting_bytes -= len(data)
            if data:
                sink.write(data)
            else:
                sink.write_eof()
                self.ended = True
                self._on_end()
        if self._waiting:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._waiting[0][0] - now_s, self.deliver)

    def _hold_back(self) -> None:
        if self.source is None:
            return
        if self.sink_full or self._waiting_bytes > _WAITING_BYTES:
            self.source.pause_reading()
        else:
            self.source.resume_reading()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
