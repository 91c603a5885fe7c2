"""Signals to a real vLLM: a frozen engine core behind an API server that says all is well, and a kill."""

from pathlib import Path

import aiohttp
import pytest

from chaos.faults.freeze import Freeze
from chaos.faults.oom_kill import OomKill
from chaos.faults.pulls import Part
from chaos.fitting.blueprint import Pool
from chaos.lab.engines import start_real
from chaos.lab.levers.processes import ProcessLever
from chaos.processes import Processes
from chaos.real_vllm.replica import MODEL
from chaos.scenario.plan import EngineSpot
from tests.chaos.faults.small_lab import engine_site, site

SOON = aiohttp.ClientTimeout(total=3.0)


@pytest.mark.vllm
@pytest.mark.timeout(900)
async def test_freeze_and_oom_kill_bite_a_real_engine_and_heal(tmp_path: Path) -> None:
    pool = Pool(model=MODEL, gate=True, service_s=0.5, engines=(EngineSpot(name="e0", zone="a", slots=4),))
    async with Processes() as children, aiohttp.ClientSession() as session:
        running = await start_real(children, tmp_path, [pool])
        url = f"http://127.0.0.1:{running.ports['e0']}"
        posts = {(Part.ENGINE, "e0"): running.posts["e0"]}
        lever = ProcessLever(site(session, engine_site("e0", running.ports["e0"]), posts=posts))

        async def ask(**limit: aiohttp.ClientTimeout) -> int:
            body = {"model": MODEL, "prompt": "x", "max_tokens": 4}
            async with session.post(f"{url}/v1/completions", json=body, **limit) as answer:
                await answer.read()
                return answer.status

        assert await ask() == 200
        (freeze,), (kill,) = Freeze().pulls("e0"), OomKill().pulls("e0")
        await lever.pull(freeze)
        with pytest.raises(TimeoutError):
            await ask(timeout=SOON)
        async with session.get(f"{url}/health") as answer:
            assert answer.status == 200
        await lever.release(freeze)
        assert await ask() == 200
        await lever.pull(kill)
        with pytest.raises(aiohttp.ClientError):
            await ask()
        await lever.release(kill)
        assert await ask() == 200
