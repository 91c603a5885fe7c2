"""A real agent process for a fake engine, and helpers to query it."""

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from chaos.fake_engine import EngineConfig, FakeEngine

LIMIT_S = 60.0


@dataclass
class RunningAgent:
    """An agent process; ``get`` and ``post`` answer status and body."""

    process: asyncio.subprocess.Process
    http_port: int
    grpc_port: int
    client: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    async def get(self, path: str) -> tuple[int, str]:
        async with self.client.get(self.url + path) as response:
            return response.status, await response.text()

    async def post(self, path: str) -> tuple[int, Any]:
        async with self.client.post(self.url + path) as response:
            return response.status, json.loads(await response.text())

    async def report(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads((await self.get("/report"))[1])
        return said

    async def probes(self) -> tuple[int, int, int]:
        """Status of readyz, livez and startupz."""
        ready, live, start = [(await self.get(path))[0] for path in ("/readyz", "/livez", "/startupz")]
        return ready, live, start

    async def until_probes(self, ready: int, live: int, start: int) -> None:
        """Until the three of them answer so."""
        began_s = time.monotonic()
        while (answers := await self.probes()) != (ready, live, start):
            if time.monotonic() - began_s > LIMIT_S:
                pytest.fail(f"never {(ready, live, start)}; last: {answers}")
            await asyncio.sleep(0.01)

    async def until(self, *verdicts: str) -> tuple[float, dict[str, Any]]:
        """Seconds until the verdict was one of these, and the report."""
        return await self.until_report(lambda report: report["verdict"] in verdicts)

    async def until_report(self, holds: Callable[[dict[str, Any]], object]) -> tuple[float, dict[str, Any]]:
        began_s = time.monotonic()
        while not holds(report := await self.report()):
            if time.monotonic() - began_s > LIMIT_S:
                pytest.fail(f"it never came; last: {report}")
            await asyncio.sleep(0.01)
        return time.monotonic() - began_s, report

    async def until_status(self, path: str, status: int) -> str:
        began_s = time.monotonic()
        while (answer := await self.get(path))[0] != status:
            if time.monotonic() - began_s > LIMIT_S:
                pytest.fail(f"{path} never was {status}; last: {answer}")
            await asyncio.sleep(0.01)
        return answer[1]


StartAgent = Callable[..., Awaitable[RunningAgent]]
StartEngine = Callable[..., Awaitable[FakeEngine]]


@pytest.fixture
async def start_agent() -> AsyncIterator[StartAgent]:
    """Start an agent for the engine at a URL, with further flags; stopped with the test."""
    agents: list[RunningAgent] = []

    async def start(engine_url: str, *flags: str) -> RunningAgent:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "engine.agent", "run", "--engine", engine_url),
            *("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--slots", "8", *flags),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        line = json.loads(await asyncio.wait_for(process.stdout.readline(), LIMIT_S))
        client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60))
        agents.append(RunningAgent(process, line["http_port"], line["grpc_port"], client))
        return agents[-1]

    yield start
    for agent in agents:
        with contextlib.suppress(ProcessLookupError):
            agent.process.send_signal(signal.SIGINT)
        await asyncio.wait_for(agent.process.wait(), LIMIT_S)
        await agent.client.close()


@pytest.fixture
async def start_engine() -> AsyncIterator[StartEngine]:
    """Start a fake engine with settings of EngineConfig; stopped with the test."""
    engines: list[FakeEngine] = []

    async def start(**settings: Any) -> FakeEngine:
        engine = FakeEngine(EngineConfig(**{"prefill_s": 0.01, "first_token_gate": True, **settings}))
        engines.append(engine)
        await engine.start()
        return engine

    yield start
    for engine in engines:
        await engine.stop()


@contextlib.asynccontextmanager
async def load(engine: FakeEngine, callers: int, *, tokens: int = 64) -> AsyncIterator[None]:
    """``callers`` requests at any time, each replaced when it ends, whatever its end."""

    async def call(http: aiohttp.ClientSession) -> None:
        body = {"model": "fake-model", "prompt": "x", "max_tokens": tokens}
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.post(f"{engine.url}/v1/completions", json=body) as response:
                    await response.read()
            await asyncio.sleep(0.01)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        tasks = [asyncio.create_task(call(http)) for _ in range(callers)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


Load = Callable[..., contextlib.AbstractAsyncContextManager[None]]


@pytest.fixture
def under_load() -> Load:
    return load
