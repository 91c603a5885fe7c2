"""Stream of tries as they end: ``/v1/tap``, read by `switchgear tap`.

A watcher's tries wait in its own bounded buffer. While it does not read, the oldest are dropped and counted.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import hdrs, web

from policies.quantity import parse_duration
from xds_server.admin.json_http import (
    STREAM_HEADERS,
    AdminRequestError,
    add_endpoint,
    as_json_dict,
    query_of,
)
from xds_server.admin_api.endpoints import TAP, TAP_FILTERS
from xds_server.admin_api.tap_types import TapBatch
from xds_server.telemetry.request_tap import RequestTap, TapFullError, TapWatcher

EVERY_S: Final = 0.2
"""Least time between two messages: a person follows it, and a busy fleet costs five messages per second."""

ALIVE_S: Final = 2.0
"""Longest time between two messages, so that a watcher notices a lost server."""

WRITE_TIMEOUT_S: Final = 30.0
"""Disconnect a watcher that accepts no data for this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TapSource:
    """The tap, known pools, and the smallest share of calls that a proxy reports."""

    tap: RequestTap
    pools: Callable[[], tuple[str, ...]]
    sampling_ratio: Callable[[], float]


def add_tap(
    app: web.Application, source: TapSource, still: Callable[[web.Request], bool] = lambda _: True
) -> None:
    """Add ``/v1/tap`` for clients ``still`` authorized."""

    async def tap(request: web.Request) -> web.StreamResponse:
        watcher = _watcher(request, source)
        if request.method == hdrs.METH_HEAD:
            return web.Response(headers=STREAM_HEADERS)
        return await _stream(request, source, watcher, still)

    add_endpoint(app, TAP, tap)


def _watcher(request: web.Request, source: TapSource) -> TapWatcher:
    query = query_of(request, TAP)
    pool, slower = query.get("pool", ""), query.get("slower_than", "")
    if pool and pool not in source.pools():
        raise AdminRequestError(404, f"no pool {pool!r}")
    only = frozenset(filter(None, query.get("only", "").split(",")))
    if unknown := sorted(only - set(TAP_FILTERS)):
        raise AdminRequestError(400, f"only is {unknown[0]!r}; allowed: {', '.join(TAP_FILTERS)}")
    try:
        slower_s = parse_duration(slower) if slower else None
    except ValueError as error:
        raise AdminRequestError(400, f"slower_than: {error}") from error
    return TapWatcher(pool, only, slower_s)


async def _stream(
    request: web.Request, source: TapSource, watcher: TapWatcher, still: Callable[[web.Request], bool]
) -> web.StreamResponse:
    """Response with the tries; ends when the watcher disconnects or is no longer ``still`` authorized."""
    try:
        source.tap.open(watcher)
    except TapFullError:
        raise AdminRequestError(503, "too many watchers of requests") from None
    try:
        response = web.StreamResponse(headers=STREAM_HEADERS)
        await response.prepare(request)
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionResetError, TimeoutError):
            written_s = loop.time() - ALIVE_S
            while still(request):
                tries, dropped = watcher.take()
                if tries or loop.time() - written_s >= ALIVE_S:
                    batch = TapBatch(tries=tries, dropped=dropped, sampling_ratio=source.sampling_ratio())
                    async with asyncio.timeout(WRITE_TIMEOUT_S):
                        await response.write(_event(batch))
                    written_s = loop.time()
                await asyncio.sleep(EVERY_S)
    finally:
        source.tap.close(watcher)
    return response


def _event(batch: TapBatch) -> bytes:
    return f"event: tries\ndata: {json.dumps(as_json_dict(batch), ensure_ascii=False)}\n\n".encode()
