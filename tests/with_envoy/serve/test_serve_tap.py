"""``switchgear tap`` shows refused, slow and failed requests of a real Envoy, with the reason."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

from chaos.fake_engine import EngineErrorAfterWork
from tests.with_envoy.serve.conftest import LIMIT_S, PATIENT, STEADY, SWITCHGEAR, Site, document

pytestmark = pytest.mark.envoy

FAST = 1
SLOW = 60
"""Tokens: 10 ms each."""


@contextlib.asynccontextmanager
async def tapping(site: Site, *options: str) -> AsyncIterator[Callable[..., Any]]:
    """A running tap; yields a function that sends requests until it shows one that fits."""
    process = await asyncio.create_subprocess_exec(
        *(SWITCHGEAR, "tap", "chat", *options, "-o", "json", "--admin", f"http://{site.admin}"),
        stdout=asyncio.subprocess.PIPE,
    )
    shown: list[dict[str, Any]] = []

    async def read() -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            shown.append(json.loads(line))  # noqa: PERF401 -- to be seen at once

    reading = asyncio.create_task(read())

    async def until(tokens: int, *, at_once: int = 1, **wanted: Any) -> dict[str, Any]:
        async with asyncio.timeout(LIMIT_S):
            while True:
                sent = await asyncio.gather(*(request(site, tokens) for _ in range(at_once)))
                for _ in range(20):
                    for one in shown:
                        if one["request"] in sent and wanted.items() <= one.items():
                            return one
                    await asyncio.sleep(0.05)

    try:
        yield until
    finally:
        process.kill()
        await process.wait()
        await reading


async def request(site: Site, tokens: int) -> str:
    """Send one request; its ID."""
    async with (
        aiohttp.ClientSession() as client,
        client.post(
            f"http://127.0.0.1:{site.port}/v1/completions",
            json={"model": "fake-model", "prompt": "a secret", "max_tokens": tokens},
        ) as answer,
    ):
        await answer.read()
        return answer.headers["x-request-id"]


async def test_refused_slow_and_failed_requests_are_shown_with_the_reason(site: Site) -> None:
    engines = await site.start_engines(2)
    site.write(
        "chat.yaml",
        site.pool(probe=PATIENT, slotsPerEngine=1),
        site.route(priority="batch", objectives={"total": {"p95": "300ms"}}),
        document("ResiliencePolicy", "default", STEADY),
    )
    await site.serve()
    await site.envoy()
    await site.answered()
    async with tapping(site) as until, tapping(site, "--slow") as until_slow:
        quick = await until(FAST, result="success")
        assert (quick["number"], quick["status"], quick["priority"], quick["pool"]) == (1, 200, "batch", "chat")
        assert quick["engine"] in ("e0", "e1")
        assert quick["proxy"] == "n1"
        assert quick["first_byte_s"] is None
        slow = await until_slow(SLOW, result="success")
        assert slow["slow"]
        assert slow["total_s"] > 0.6
        assert slow["reason"].startswith("slow: total 0.")
        assert slow["reason"].endswith("objective 0.3 s")

    for engine in engines:
        await engine.set_fault(EngineErrorAfterWork())
    async with tapping(site, "--failed") as until_failed:
        failed = await until_failed(FAST, result="failure")
        assert (failed["status"], failed["reason"]) == (500, "the engine answered 500")
        assert failed["engine"] in ("e0", "e1")
        assert "secret" not in json.dumps(failed)
    for engine in engines:
        await engine.heal()

    order = ("--for", "30m", "--reason", "test", "--admin", f"http://{site.admin}")
    async with tapping(site, "--refused") as until_refused:
        full = await until_refused(SLOW, at_once=60, result="refused")
        assert (full["reason"], full["engine"]) == ("overload: the admission limit is reached", "")
        assert (await site.switchgear("degrade", "chat", "--level", "4", *order))[0] == 0
        closed = await until_refused(FAST, reason="maintenance: the route is in maintenance")
        assert (closed["number"], closed["status"], closed["result"]) == (0, 503, "refused")
