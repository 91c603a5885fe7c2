"""Stream and files of the dashboard, over real HTTP."""

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.xds_server.admin.dashboard.fake_server_backend import FakeServerBackend
from xds_server.admin.dashboard import frame_stream as lives
from xds_server.admin.dashboard.dashboard_routes import add_dashboard

LIMIT_S = 60.0


@asynccontextmanager
async def served(
    made: FakeServerBackend, still: Callable[[web.Request], bool] = lambda _: True
) -> AsyncIterator[str]:
    app = web.Application()
    add_dashboard(app, made, still)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send frames every few milliseconds; the interval itself is not tested."""
    monkeypatch.setattr(
        lives.FrameStream.__init__,
        "__kwdefaults__",
        {**lives.FrameStream.__init__.__kwdefaults__, "every_s": 0.02},
    )


async def next_event(response: aiohttp.ClientResponse) -> tuple[str, Any]:
    """The next event and its data."""
    name = (await response.content.readuntil(b"\n")).decode().removeprefix("event: ").strip()
    data = (await response.content.readuntil(b"\n")).decode().removeprefix("data: ")
    await response.content.readuntil(b"\n")
    return name, json.loads(data)


async def test_watcher_gets_a_frame_then_changes() -> None:
    made = FakeServerBackend(12)
    async with (
        served(made) as url,
        aiohttp.ClientSession(read_bufsize=1 << 22) as client,
        client.get(f"{url}/v1/live") as response,
    ):
        assert response.content_type == "text/event-stream"
        name, first = await next_event(response)
        assert (name, len(first["tables"]["engines"])) == ("frame", 12)
        made.change("vllm-3", health="UNHEALTHY", reason="hung")
        while not (change := await next_event(response))[1]["tables"]:
            assert change[0] == "change"
        assert change[1]["tables"]["engines"] == {"chat/vllm-3": {"health": "UNHEALTHY", "reason": "hung"}}


async def test_watcher_limit_applies_until_one_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "MOST_WATCHERS", 1)
    async with served(FakeServerBackend(2)) as url, aiohttp.ClientSession(read_bufsize=1 << 22) as client:
        async with client.get(f"{url}/v1/live") as first:
            await next_event(first)
            async with client.get(f"{url}/v1/live") as second:
                assert second.status == 503

        async def in_again() -> bool:
            async with client.get(f"{url}/v1/live") as third:
                return third.status == 200

        async with asyncio.timeout(LIMIT_S):
            while not await in_again():
                await asyncio.sleep(0.02)


async def test_watchers_share_frames_and_are_cleaned_up() -> None:
    made, asked = FakeServerBackend(2), list[int]()
    engines = made.engines
    made.engines = lambda: (asked.append(1), engines())[1]  # type: ignore[method-assign]
    now_s = 0.0
    live = lives.FrameStream(made, every_s=1.0, clock=lambda: now_s)
    watchers = [live.messages() for _ in range(3)]
    for watcher in watchers:
        assert (await anext(watcher)).startswith(b"event: frame")
    assert len(asked) == 1
    assert live.watchers == 3
    for watcher in watchers:
        await watcher.aclose()  # type: ignore[attr-defined]
    assert live.watchers == 0


async def test_page_files_have_a_strict_content_security_policy() -> None:
    async with served(FakeServerBackend(1)) as url, aiohttp.ClientSession() as client:
        async with client.get(url) as page:
            assert str(page.url).endswith("/dashboard/")
            text = await page.text()
            policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http://" not in text
        assert "https://" not in text
        for name in ("app.js", "style.css", "icon.svg", "fleet.js"):
            async with client.get(f"{url}/dashboard/{name}") as file:
                assert file.status == 200
                assert "http" not in (await file.text()).replace("http://www.w3.org/2000/svg", "")
        for name in ("nothing.js", "..%2fframe.py", "%2e%2e/frame.py"):
            async with client.get(f"{url}/dashboard/{name}") as file:
                assert file.status == 404


async def test_stream_ends_when_its_watcher_loses_read_access() -> None:
    made = FakeServerBackend(3)
    allowed = [True]
    async with (
        served(made, lambda _: allowed[0]) as url,
        aiohttp.ClientSession(read_bufsize=1 << 22) as client,
        client.get(f"{url}/v1/live") as response,
    ):
        assert (await next_event(response))[0] == "frame"
        allowed[0] = False
        made.change("vllm-1", health="UNHEALTHY")
        async with asyncio.timeout(LIMIT_S):
            rest = await response.content.read()
    assert b"UNHEALTHY" not in rest


async def test_stream_of_a_page_that_does_not_read_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "WRITE_TIMEOUT_S", 0.2)
    made, ended = FakeServerBackend(1_000), asyncio.Event()
    made_messages = lives.FrameStream.messages

    async def messages(live: lives.FrameStream) -> AsyncIterator[bytes]:
        try:
            async for message in made_messages(live):
                yield message
        finally:
            ended.set()

    monkeypatch.setattr(lives.FrameStream, "messages", messages)
    async with served(made) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        silent = socket.socket()
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        with silent:
            silent.connect((host, int(port)))
            silent.sendall(b"GET /v1/live HTTP/1.1\r\nhost: x\r\n\r\n")

            async def changes() -> None:
                for turn in itertools.count():
                    made.rows = [replace(row, reason=f"hung since turn {turn}") for row in made.rows]
                    await asyncio.sleep(0.02)

            changing = asyncio.create_task(changes())
            async with asyncio.timeout(LIMIT_S):
                await ended.wait()
            changing.cancel()
