"""Signals to a real vLLM: a frozen engine core behind a healthy API server, and a kill."""

from pathlib import Path

import aiohttp
import pytest

from chaos.faults.actions import ProcessRole
from chaos.faults.freeze import FreezeFault
from chaos.faults.oom_kill import OomKillFault
from chaos.lab.engine_processes import start_real_engines
from chaos.lab.injectors.process_injector import ProcessInjector
from chaos.processes import ChildProcesses
from chaos.real_vllm.vllm_replica import MODEL
from chaos.scenario.experiment_plan import EnginePlacement
from chaos.testbed.blueprint import PoolBlueprint
from tests.chaos.faults.small_lab import engine_site, site

SOON = aiohttp.ClientTimeout(total=3.0)


@pytest.mark.vllm
@pytest.mark.timeout(900)
async def test_freeze_and_oom_kill_bite_a_real_engine_and_heal(tmp_path: Path) -> None:
    pool = PoolBlueprint(
        model=MODEL, gate=True, service_s=0.5, engines=(EnginePlacement(name="e0", zone="a", slots=4),)
    )
    async with ChildProcesses() as children, aiohttp.ClientSession() as session:
        running = await start_real_engines(children, tmp_path, [pool])
        url = f"http://127.0.0.1:{running.ports['e0']}"
        posts = {(ProcessRole.ENGINE, "e0"): running.posts["e0"]}
        lever = ProcessInjector(site(session, engine_site("e0", running.ports["e0"]), posts=posts))

        async def ask(**limit: aiohttp.ClientTimeout) -> int:
            body = {"model": MODEL, "prompt": "x", "max_tokens": 4}
            async with session.post(f"{url}/v1/completions", json=body, **limit) as answer:
                await answer.read()
                return answer.status

        assert await ask() == 200
        (freeze,), (kill,) = FreezeFault().actions("e0"), OomKillFault().actions("e0")
        await lever.inject(freeze)
        with pytest.raises(TimeoutError):
            await ask(timeout=SOON)
        async with session.get(f"{url}/health") as answer:
            assert answer.status == 200
        await lever.revert(freeze)
        assert await ask() == 200
        await lever.inject(kill)
        with pytest.raises(aiohttp.ClientError):
            await ask()
        await lever.revert(kill)
        assert await ask() == 200
