"""One direction of a connection: what was read from one socket waits until it is due at the other."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from chaos.netem.link_rules import LinkConditions


class BandwidthCap:
    """A bottleneck that many lines share: what enters waits for all that entered before."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    def through_at_s(self, now_s: float, size: int) -> float:
        """When the last of ``size`` bytes is through; they are counted."""
        self._free_at_s = max(now_s, self._free_at_s) + size / self._bytes_per_s
        return self._free_at_s


class DelayLine:
    """One direction of one connection. Nothing overtakes: it carries TCP.

    ``open_at_s`` is when the connection would have been open, had its handshake been as late as its bytes; nothing
    can have been sent before.
    """

    def __init__(self, rng: random.Random, *, open_at_s: float) -> None:
        self._rng = rng
        self._open_at_s = open_at_s
        self._last_due_s = 0.0

    def due_s(self, now_s: float, size: int, weather: LinkConditions, caps: Sequence[BandwidthCap]) -> float:
        """When ``size`` bytes that enter now come out."""
        through_s = max(now_s, self._open_at_s)
        for cap in caps:
            through_s = cap.through_at_s(through_s, size)
        late_s = weather.latency_s + (weather.jitter_s * self._rng.random() if weather.jitter_s else 0.0)
        self._last_due_s = max(self._last_due_s, through_s + late_s)
        return self._last_due_s


# What may wait; beyond it the sender is held back, as by the window of a long line.
_WAITING_BYTES: Final = 256 * 1024


class ShapedFlow:
    """Bytes on their way. ``source`` and ``sink`` are the sockets at its ends, once they are connected.

    ``held``: nothing comes out for now. ``sink_full``: what came out is not sent yet. ``ended``: the source had
    its last word, and the sink was told; ``on_end`` is called then.
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
        """Take bytes that are due then, on the monotonic clock; no bytes are the end."""
        self._waiting.append((due_s, data))
        self._waiting_bytes += len(data)
        self.deliver()

    def deliver(self) -> None:
        """Pass on what is due, and come again for the rest."""
        self._disarm()
        sink = None if self.held or self.sink is None or self.sink.is_closing() else self.sink
        if sink is not None:
            self._deliver(sink)
        self._hold_back()

    def close(self) -> None:
        """Forget what is on its way."""
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
