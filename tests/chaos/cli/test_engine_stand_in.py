"""``switchgear-chaos engine``: serves like vLLM, hangs with its core, and ends with it."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from chaos.fake_engine.engine_core import NAME
from tests.eventually import eventually

PROGRAM = str(Path(sys.executable).with_name("switchgear-chaos"))
LIMIT_S = 60.0


class StandIn:
    def __init__(self, *argv: str) -> None:
        self.process = subprocess.Popen(
            [PROGRAM, "engine", *argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        self.first = self.process.stdout.readline()
        found = re.search(r"http://\S+:\d+", self.first)
        self.url = found[0] if found else ""

    def core(self) -> int:
        """Process id of the core, found as the page does: by its parent and its name."""
        found = subprocess.run(
            ["pgrep", "-P", str(self.process.pid), NAME[:15]], capture_output=True, text=True, check=True
        )
        return int(found.stdout)

    def ended(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, self.first + output


@pytest.fixture
async def stand_in() -> AsyncIterator[StandIn]:
    one = StandIn("m", "--port", "0", "--slots", "2", "--token-ms", "5")
    yield one
    one.process.kill()
    one.process.communicate()


async def ask(session: aiohttp.ClientSession, one: StandIn, limit_s: float) -> int:
    """Status of a completion; 0 if none came in time."""
    timeout = aiohttp.ClientTimeout(total=limit_s)
    body = {"model": "m", "prompt": "hello", "max_tokens": 2}
    try:
        async with session.post(f"{one.url}/v1/completions", json=body, timeout=timeout) as answer:
            await answer.read()
            return answer.status
    except TimeoutError:
        return 0


async def test_engine_hangs_while_its_core_is_stopped(stand_in: StandIn) -> None:
    async with aiohttp.ClientSession() as session:

        async def answers() -> bool:
            return await ask(session, stand_in, 5.0) == 200

        async def hangs() -> bool:
            return await ask(session, stand_in, 0.5) == 0

        assert await ask(session, stand_in, LIMIT_S) == 200
        os.kill(stand_in.core(), signal.SIGSTOP)
        await eventually(hangs, "it hangs", LIMIT_S)
        async with session.get(f"{stand_in.url}/health") as health:
            assert health.status == 200
        async with session.get(f"{stand_in.url}/v1/models") as models:
            assert [one["id"] for one in (await models.json())["data"]] == ["m"]
        os.kill(stand_in.core(), signal.SIGCONT)
        await eventually(answers, "it answers again", LIMIT_S)


async def test_engine_ends_with_its_core(stand_in: StandIn) -> None:
    os.kill(stand_in.core(), signal.SIGKILL)
    code, output = stand_in.ended()
    assert code == 1
    assert "VLLM::EngineCore ended with -9" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_engine_and_core_end_at_a_signal(stand_in: StandIn, number: signal.Signals) -> None:
    core = stand_in.core()
    stand_in.process.send_signal(number)
    assert stand_in.ended()[0] == 0
    assert not Path(f"/proc/{core}").exists()


async def test_core_does_not_outlive_a_killed_engine(stand_in: StandIn) -> None:
    core = Path(f"/proc/{stand_in.core()}")
    stand_in.process.kill()

    def gone() -> bool:
        return not core.exists() or core.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "Z"

    await eventually(gone, "the core is gone", LIMIT_S)


def test_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        one = StandIn("--port", str(taken.getsockname()[1]))
        code, output = one.ended()
    assert code == 2
    assert re.search(r"cannot listen on 127\.0\.0\.1:\d+: .*in use", output)
    assert "Traceback" not in output
