"""The stream ``/v1/tap`` over real HTTP: filters, limits, authorization, and readers that do not read."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.eventually import eventually
from xds_server.admin import tap_stream
from xds_server.admin.json_http import AdminRequestError, refusal_response
from xds_server.admin.tap_stream import TapSource, add_tap
from xds_server.admin_api.tap_types import TappedTry
from xds_server.telemetry import request_tap
from xds_server.telemetry.request_tap import RequestTap

LIMIT_S = 60.0


def one_try(request: str = "r-1", **said: Any) -> TappedTry:
    return TappedTry(
        **{
            "at_unix_s": 1.0, "request": request, "proxy": "p1", "route": "talk", "priority": "interactive",
            "pool": "chat", "engine": "e0", "number": 1, "result": "success", "status": 200, "duration_s": 2.0,
            "total_s": 2.0, "first_byte_s": None, "slow": False, "reason": "", "calls": 1.0, **said,
        }
    )  # fmt: skip


@web.middleware
async def refusals(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        return await handler(request)  # type: ignore[no-any-return]
    except AdminRequestError as error:
        return refusal_response(str(error), error.status)


@asynccontextmanager
async def served(
    tap: RequestTap, still: Callable[[web.Request], bool] = lambda _: True, ratio: float = 1.0
) -> AsyncIterator[str]:
    app = web.Application(middlewares=[refusals])
    add_tap(app, TapSource(tap=tap, pools=lambda: ("chat", "small"), sampling_ratio=lambda: ratio), still)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/tap"
    finally:
        await runner.cleanup()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap_stream, "EVERY_S", 0.01)
    monkeypatch.setattr(tap_stream, "ALIVE_S", 0.02)


async def next_batch(response: aiohttp.ClientResponse) -> Any:
    assert await response.content.readuntil(b"\n") == b"event: tries\n"
    data = await response.content.readuntil(b"\n")
    await response.content.readuntil(b"\n")
    return json.loads(data.removeprefix(b"data: "))


async def next_tries(response: aiohttp.ClientResponse) -> Any:
    async with asyncio.timeout(LIMIT_S):
        while not (batch := await next_batch(response))["tries"]:
            pass
    return batch


async def test_watcher_gets_tries_and_signs_of_life() -> None:
    tap = RequestTap()
    async with served(tap, ratio=0.2) as url, aiohttp.ClientSession() as client, client.get(url) as response:
        assert response.content_type == "text/event-stream"
        assert await next_batch(response) == {"tries": [], "dropped": 0, "sampling_ratio": 0.2}
        tap.record(one_try())
        batch = await next_tries(response)
        assert [one["request"] for one in batch["tries"]] == ["r-1"]
        assert (batch["tries"][0]["engine"], batch["dropped"]) == ("e0", 0)
    await eventually(lambda: not tap, "the watcher is gone", limit_s=LIMIT_S)


async def test_query_selects_tries() -> None:
    tap = RequestTap()
    async with (
        served(tap) as url,
        aiohttp.ClientSession() as client,
        client.get(f"{url}?pool=chat&only=refused,slow&slower_than=3s") as response,
    ):
        await next_batch(response)
        for seen in (
            one_try("fast"),
            one_try("late", total_s=3.5),
            one_try("elsewhere", total_s=9.0, pool="small"),
            one_try("full", result="refused"),
            one_try("broken", result="failure"),
        ):
            tap.record(seen)
        assert [one["request"] for one in (await next_tries(response))["tries"]] == ["late", "full"]


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("pool=cat", 404, "no pool 'cat'"),
        ("only=bad", 400, "only is 'bad'; allowed: refused, slow, failed"),
        ("slower_than=soon", 400, "slower_than: "),
        ("path=x", 400, "unknown parameter 'path'"),
    ],
)
async def test_wrong_query_is_refused(query: str, status: int, words: str) -> None:
    tap = RequestTap()
    async with (
        served(tap) as url,
        aiohttp.ClientSession() as client,
        client.get(f"{url}?{query}") as response,
    ):
        assert response.status == status
        assert words in (await response.json())["error"]
        assert not tap


async def test_watcher_limit_applies_until_one_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_tap, "MAX_WATCHERS", 1)
    tap = RequestTap()
    async with served(tap) as url, aiohttp.ClientSession() as client:
        async with client.get(url) as first:
            await next_batch(first)
            async with client.get(url) as second:
                assert second.status == 503
        await eventually(lambda: not tap, "the watcher is gone", limit_s=LIMIT_S)
        async with client.get(url) as third:
            assert third.status == 200


async def test_stream_ends_when_its_watcher_loses_read_access() -> None:
    tap, allowed = RequestTap(), [True]
    async with (
        served(tap, lambda _: allowed[0]) as url,
        aiohttp.ClientSession() as client,
        client.get(url) as response,
    ):
        await next_batch(response)
        allowed[0] = False
        async with asyncio.timeout(LIMIT_S):
            await response.content.read()
    assert not tap


async def test_reader_that_does_not_read_loses_tries_and_not_memory() -> None:
    """Its connection fills up; what waits for it stays bounded, and it learns how many it lost."""
    tap = RequestTap()
    async with (
        served(tap) as url,
        aiohttp.ClientSession(read_bufsize=1024) as client,
        client.get(url) as response,
    ):
        await next_batch(response)

        async def overflows() -> bool:
            for number in range(request_tap.MAX_TRIES):
                tap.record(one_try(str(number), reason="x" * 1000))
            return any(watcher._dropped for watcher in tap._watchers)

        await eventually(overflows, "its connection is full", limit_s=LIMIT_S)
        (watcher,) = tap._watchers
        assert len(watcher._waiting) == request_tap.MAX_TRIES
        read = b""
        async with asyncio.timeout(LIMIT_S):
            while not (found := re.search(rb'"dropped": ([1-9][0-9]*)', read)):
                part = await response.content.read(1 << 20)
                assert part, "the stream continues"
                read = read[-100:] + part
        assert int(found[1]) >= 1


async def test_head_answers_at_once_and_holds_no_watcher() -> None:
    tap = RequestTap()
    async with asyncio.timeout(LIMIT_S), served(tap) as url, aiohttp.ClientSession() as client:
        for query, status in (("", 200), ("?pool=chat", 200), ("?pool=cat", 404)):
            async with client.head(url + query) as response:
                assert response.status == status
                await response.read()
        assert response.content_type == "application/json"
        assert not tap
