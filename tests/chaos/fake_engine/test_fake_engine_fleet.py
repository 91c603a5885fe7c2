"""The fleet as a process of its own, real signals included."""

import asyncio
import os
import signal
import sys

import aiohttp
import pytest

from chaos.fake_engine import ControlServer, EngineConfig, FakeEngine
from chaos.processes import ChildProcess, ChildProcesses

COMMAND = (sys.executable, "-m", "chaos.fake_engine")
# Longer than it takes to send a signal.
STREAM = {"prompt": "x", "stream": True, "max_tokens": 4000}
SHORT = {**STREAM, "max_tokens": 60}


async def start(processes: ChildProcesses, *flags: str) -> ChildProcess:
    return await processes.start("engines", [*COMMAND, *flags], ready_within_s=60)


async def refused(client, url: str) -> bool:
    """Whether the port is closed at last; until then /health must be 200."""
    async with asyncio.timeout(60):
        while True:
            try:
                async with client.get(url) as response:
                    assert response.status == 200
            except aiohttp.ClientError:
                return True


async def test_fleet_engines_have_own_ports_and_faults(client) -> None:
    async with ChildProcesses() as processes:
        fleet = await start(processes, "--count", "9", "--slots", "2", "--name-prefix", "e", "--model", "m")
        engines = fleet.ready["engines"]
        assert [engine["name"] for engine in engines] == [f"e{i}" for i in range(9)]
        assert len({engine["port"] for engine in engines}) == 9
        async with client.put(f"{engines[4]['control']}/fault", json={"kind": "crash"}) as response:
            assert response.status == 200
        for engine in engines:
            if engine["name"] == "e4":
                with pytest.raises(aiohttp.ClientConnectorError):
                    await client.get(f"{engine['url']}/health")
                continue
            async with client.get(f"{engine['url']}/v1/models") as response:
                assert (await response.json())["data"][0]["id"] == "m"
        assert await processes.stop(fleet, limit_s=60) == 0


@pytest.mark.parametrize("timeout_s", ["0", "60"])
async def test_sigterm_acts_as_on_vllm(timeout_s, client) -> None:
    async with ChildProcesses() as processes:
        fleet = await start(processes, "--token-s", "0.01", "--shutdown-timeout-s", timeout_s)
        url = f"{fleet.ready['engines'][0]['url']}/v1/completions"
        async with client.post(url, json=STREAM if timeout_s == "0" else SHORT) as response:
            await response.content.readuntil(b"t2")
            os.kill(fleet.pid, signal.SIGTERM)
            if timeout_s == "0":
                # No error and no end: only the client's own patience ends it.
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(1.5):
                        await response.content.read()
                assert fleet.returncode is None
            else:
                assert (await response.content.read()).endswith(b"[DONE]\n\n")
        async with asyncio.timeout(60):
            assert await fleet.wait() == 0


async def test_second_sigterm_exits_despite_waiting_clients(client) -> None:
    async with ChildProcesses() as processes:
        fleet = await start(processes, "--token-s", "0.01")
        url = f"{fleet.ready['engines'][0]['url']}/v1/completions"
        async with client.post(url, json=STREAM) as response:
            await response.content.readuntil(b"t2")
            os.kill(fleet.pid, signal.SIGTERM)
            assert await refused(client, url.replace("/v1/completions", "/health"))
            os.kill(fleet.pid, signal.SIGTERM)
            async with asyncio.timeout(60):
                assert await fleet.wait() == 0


def test_ipv6_addresses_are_in_brackets() -> None:
    engine = FakeEngine(EngineConfig(name="e0", host="::1", port=8000))
    control = ControlServer([engine], host="::1", port=8001)
    assert (engine.url, control.url) == ("http://[::1]:8000", "http://[::1]:8001/_fake")
