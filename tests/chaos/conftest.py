"""A fleet of fake engines in the test's own loop, a client, and a way to wait for what must become true."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest

from chaos.fake_engine import EngineConfig, FakeEngine

Eventually = Callable[[Callable[[], object]], Awaitable[None]]
StartEngine = Callable[..., Awaitable[FakeEngine]]


@pytest.fixture
async def start_engine() -> AsyncIterator[StartEngine]:
    """Start an engine with settings of EngineConfig; fast by default, and stopped with the test."""
    engines: list[FakeEngine] = []

    async def start(**settings: object) -> FakeEngine:
        fast = {"prefill_s": 0.01, "token_s": 0.002, "name": f"engine-{len(engines)}"}
        engine = FakeEngine(EngineConfig(**{**fast, **settings}))  # type: ignore[arg-type] # a test's settings
        engines.append(engine)
        await engine.start()
        return engine

    yield start
    for engine in engines:
        await engine.stop()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=100)) as session:
        yield session


@pytest.fixture
def eventually() -> Eventually:
    """Wait until a condition holds; fail after a minute."""

    async def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "it never became true"
            await asyncio.sleep(0.005)

    return wait
