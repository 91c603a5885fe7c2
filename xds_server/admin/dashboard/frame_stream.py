"""Frames to everybody who watches: made once a second while anybody does, and not at all while nobody does.

A watcher has no queue. Whoever is slow gets, when it can take more, what became different since the frame it has.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

from aiohttp import web

from xds_server.admin.dashboard.frame import DashboardFrame, DashboardSource, delta_message, frame, full_message

EVERY_S: Final = 1.0
MOST_WATCHERS: Final = 64
"""Each costs a connection and its share of a second; beyond that somebody has left too many tabs open."""

WRITE_TIMEOUT_S: Final = 30.0
"""A watcher that takes nothing for so long is gone."""


class TooManyWatchersError(Exception):
    """There are watchers enough."""


class FrameStream:
    """Frames of ``shown``, shared by all who watch."""

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
        """The newest frame; a new one where it is old enough."""
        now_s = self._clock()
        if self._newest is None or now_s - self._made_at_s >= self._every_s:
            self._newest, self._made_at_s = frame(self._shown, self._wall()), now_s
        return self._newest

    async def messages(self) -> AsyncIterator[bytes]:
        """Events for one watcher: a whole frame, then differences; ``TooManyWatchersError`` where it is one too
        many.
        """
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
        """What leads from one frame to another; most watchers ask for the same."""
        known = self._differences
        if known is None or known[0] is not held or known[1] is not now:
            known = (held, now, _event("change", json.dumps(delta_message(held, now), ensure_ascii=False)))
            self._differences = known
        return known[2]


async def stream_response(
    request: web.Request, live: FrameStream, still: Callable[[web.Request], bool] = lambda _: True
) -> web.StreamResponse:
    """The events as a response that ends when the watcher goes, or is ``still`` allowed no longer."""
    messages = live.messages()
    async with contextlib.aclosing(messages):  # type: ignore[type-var]  # an async generator has aclose
        try:
            first = await anext(messages)
        except TooManyWatchersError:
            raise web.HTTPServiceUnavailable(reason="too many are watching already") from None
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
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
