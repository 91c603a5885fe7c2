"""Limits of one connection, and the budget of frames that cost us more than their peer.

| attack | limit |
|---|---|
| rapid reset (CVE-2023-44487), and resets that a peer provokes (CVE-2025-8671) | ``resets`` |
| CONTINUATION flood (CVE-2024-27316), header bombs | ``header_bytes``, ``header_frames`` |
| floods of PING, SETTINGS, PRIORITY, empty and tiny frames (CVE-2019-9512, -9515, -9518) | ``control_frames`` |
| requests without end | ``streams`` |
"""

from dataclasses import dataclass
from typing import Final

from xds_server.model.token_bucket import RateLimit

MIN_FRAGMENT: Final = 1024
"""A message is not split into smaller pieces, however small the window (CVE-2019-9511)."""

SMALL_FRAME_BYTES: Final = 256
"""A DATA frame below this that completes no message counts as a control frame."""

CONTROL_FRAMES: Final = RateLimit(burst=500, per_s=50)
"""An Envoy sends two window updates for a large response, and a keepalive ping each few seconds."""

RESETS: Final = RateLimit(burst=200, per_s=10)
"""More than the streams of a connection, all at once; an Envoy resets one when it shuts down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class H2Limits:
    """Limits of one connection. ``streams``: at once. ``window``: bytes a stream may send ahead of its reader, at
    least HTTP/2's default, which peers assume until they have our settings.

    ``header_bytes``: of the headers of a request, compressed and not.
    """

    streams: int = 128
    window: int = 65_535
    connection_window: int = 1024 * 1024
    header_bytes: int = 16 * 1024
    header_frames: int = 8
    # An Envoy acknowledges what it is sent by window updates, and a gRPC client measures delays by pings: both are
    # paid for by the frames that we send.
    control_frames: RateLimit = CONTROL_FRAMES
    paid_per_frame: float = 2.0
    resets: RateLimit = RESETS


class FrameBudget:
    """Tokens of one connection: a bucket whose clock is passed in."""

    __slots__ = ("_at_s", "_limit", "_tokens")

    def __init__(self, limit: RateLimit, now_s: float) -> None:
        self._limit = limit
        self._tokens = limit.burst
        self._at_s = now_s

    def take(self, count: float, now_s: float) -> bool:
        """Take tokens; False if there are too few."""
        self._tokens -= count
        if self._tokens < 0:
            self.earn(max(0.0, now_s - self._at_s) * self._limit.per_s)
            self._at_s = now_s
        return self._tokens >= 0

    def earn(self, count: float) -> None:
        """Add tokens, up to the burst."""
        self._tokens = min(self._limit.burst, self._tokens + count)
