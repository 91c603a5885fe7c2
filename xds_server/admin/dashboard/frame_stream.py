"""Stream of frames to all watchers: one frame per second, none without watchers.

Watchers have no queue. A slow watcher gets the difference from its last frame once it can receive again.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

from aiohttp import web

from xds_server.admin.dashboard.frame import DashboardFrame, DashboardSource, delta_message, frame, full_message
from xds_server.admin.json_http import STREAM_HEADERS

EVERY_S: Final = 1.0
MOST_WATCHERS: Final = 64
"""Each watcher costs a connection and CPU every second; more usually means forgotten browser tabs."""

WRITE_TIMEOUT_S: Final = 30.0
"""Disconnect a watcher that accepts no data for this long."""


class TooManyWatchersError(Exception):
    """The watcher limit is reached."""


class FrameStream:
    """Frames of ``shown``, shared by all watchers."""

    def __init__(
        self,
        shown: DashboardSource,
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._shown = shown
        self._every_s = every_s
        self._clock = clock
        self._wall = wall
        self._newest: DashboardFrame | None = None
        self._made_at_s = 0.0
        self._differences: tuple[DashboardFrame, DashboardFrame, bytes] | None = None
        self.watchers = 0

    def frame(self) -> DashboardFrame:
        """The latest frame, recomputed when it is too old."""
        now_s = self._clock()
        if self._newest is None or now_s - self._made_at_s >= self._every_s:
            self._newest, self._made_at_s = frame(self._shown, self._wall()), now_s
        return self._newest

    async def messages(self) -> AsyncIterator[bytes]:
        """Events for one watcher: a full frame, then differences; ``TooManyWatchersError`` above the limit."""
        if self.watchers >= MOST_WATCHERS:
            raise TooManyWatchersError
        self.watchers += 1
        try:
            held = self.frame()
            yield _event("frame", json.dumps(full_message(held), ensure_ascii=False))
            while True:
                await asyncio.sleep(self._every_s)
                now = self.frame()
                if now is held:
                    continue
                yield self._message(held, now)
                held = now
        finally:
            self.watchers -= 1

    def _message(self, held: DashboardFrame, now: DashboardFrame) -> bytes:
        """Message that leads from one frame to another, shared by most watchers."""
        known = self._differences
        if known is None or known[0] is not held or known[1] is not now:
            known = (held, now, _event("change", json.dumps(delta_message(held, now), ensure_ascii=False)))
            self._differences = known
        return known[2]


async def stream_response(
    request: web.Request, live: FrameStream, still: Callable[[web.Request], bool] = lambda _: True
) -> web.StreamResponse:
    """Response with the events; ends when the watcher disconnects or is no longer ``still`` authorized."""
    messages = live.messages()
    async with contextlib.aclosing(messages):  # type: ignore[type-var]  # an async generator has aclose
        try:
            first = await anext(messages)
        except TooManyWatchersError:
            raise web.HTTPServiceUnavailable(reason="too many dashboard watchers") from None
        response = web.StreamResponse(headers=STREAM_HEADERS)
        await response.prepare(request)
        with contextlib.suppress(ConnectionResetError, TimeoutError):
            await _written(response, first)
            async for message in messages:
                if not still(request):
                    break
                await _written(response, message)
    return response


async def _written(response: web.StreamResponse, message: bytes) -> None:
    async with asyncio.timeout(WRITE_TIMEOUT_S):
        await response.write(message)


def _event(name: str, data: str) -> bytes:
    return f"event: {name}\ndata: {data}\n\n".encode()
