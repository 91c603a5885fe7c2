"""Signals to real processes: an engine and an agent of their own, killed and stopped, and back where they were."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from chaos.faults.actions import FreezeProcess as FreezePull
from chaos.faults.actions import KillProcess, ProcessRole
from chaos.faults.agent_frozen import AgentFrozenFault
from chaos.faults.agent_killed import AgentKilledFault
from chaos.faults.freeze import FreezeFault
from chaos.faults.oom_kill import OomKillFault
from chaos.faults.rolling_restart import RollingRestartFault
from chaos.lab.agent_process import agent_process
from chaos.lab.engine_processes import call_log
from chaos.lab.injectors.process_injector import ProcessInjector
from chaos.lab.lab_handles import EngineHandle, LabHandles
from chaos.lab.process_slot import ProcessSlot
from chaos.processes import ChildProcesses, free_ports
from tests.chaos.faults.small_lab import InjectedFault, engine_site, site, until

SOON = aiohttp.ClientTimeout(total=0.5)


@dataclass(frozen=True)
class Place:
    """One engine in its own process, with an agent."""

    site: LabHandles
    engine: EngineHandle
    engine_post: ProcessSlot
    agent: str

    async def ask(self, tokens: int = 4, **limit: aiohttp.ClientTimeout) -> int:
        url = f"http://127.0.0.1:{self.engine.port}/v1/completions"
        body = {"prompt": "x", "max_tokens": tokens}
        async with self.site.session.post(url, json=body, headers={"connection": "close"}, **limit) as answer:
            await answer.read()
            return answer.status

    async def ready(self) -> bool:
        async with self.site.session.get(f"{self.agent}/readyz") as answer:
            return answer.status == 200

    async def works(self, call: asyncio.Task[int]) -> bool:
        """Whether the engine has got the call, or has even answered it."""
        totals = (await call_log(self.site.session, self.engine.control))["totals"]
        return call.done() or bool(totals["in_flight"])

    async def process_began(self) -> str:
        """When the engine's process says that it began."""
        async with self.site.session.get(f"http://127.0.0.1:{self.engine.port}/metrics") as answer:
            found = re.search(r"^process_start_time_seconds (\S+)", await answer.text(), re.MULTILINE)
            assert found is not None
            return found[1]


@pytest.fixture
async def place(client: aiohttp.ClientSession, tmp_path: Path) -> AsyncIterator[Place]:
    # On SIGTERM an agent drains its engine first.
    async with ChildProcesses(stop_limit_s=0.1) as children:
        port, control = free_ports(2)
        argv = [sys.executable, "-m", "chaos.fake_engine", "--name-prefix", "e", "--slots", "2"]
        argv += ["--port", str(port), "--control-port", str(control), "--journal", str(tmp_path / "book")]
        post = ProcessSlot(part=ProcessRole.ENGINE, target="e0", children=children, argv=argv)
        beside = agent_process(children, "e0", port, 2)
        await asyncio.gather(post.start(), beside.post.start())
        assert post.child is not None
        (listed,) = post.child.ready["engines"]
        engine = engine_site("e0", port, control=listed["control"], agent_port=beside.grpc)
        posts = {(ProcessRole.ENGINE, "e0"): post, (ProcessRole.AGENT, "e0"): beside.post}
        here = Place(site(client, engine, posts=posts), engine, post, f"http://127.0.0.1:{beside.http}")
        await until(here.ready)
        yield here


async def test_killed_engine_loses_calls_and_keeps_its_log(place: Place) -> None:
    struck = InjectedFault(place.site, OomKillFault(), "e0")
    assert await place.ask() == 200
    call = asyncio.create_task(place.ask(tokens=4000))

    async def noted() -> bool:
        totals = (await call_log(place.site.session, place.engine.control))["totals"]
        return int(totals["in_flight"]) == 1

    await until(noted)
    pid = place.engine_post.child and place.engine_post.child.pid
    await struck.pull()
    with pytest.raises(aiohttp.ClientError):
        await call
    with pytest.raises(aiohttp.ClientConnectorError):
        await place.ask()
    await struck.release()
    assert await place.ask() == 200
    await struck.release()
    assert place.engine_post.child is not None
    assert place.engine_post.child.pid != pid
    seen = await call_log(place.site.session, place.engine.control)
    reasons = [one["reason"] for one in seen["calls"] if one["tokens_asked"] == 4000]
    assert reasons == ["killed"]
    assert sum(one["tokens_asked"] == 4 and one["outcome"] == "finished" for one in seen["calls"]) == 2


async def test_stopped_engine_is_silent_and_computes_nothing(place: Place) -> None:
    struck = InjectedFault(place.site, FreezeFault(), "e0")
    assert await place.ask() == 200
    # Two seconds of work: who is kept from stopping the engine so long comes too late, and tries again.
    for tokens in range(100, 110):
        call = asyncio.create_task(place.ask(tokens=tokens))
        await until(lambda call=call: place.works(call))
        await struck.pull()
        with pytest.raises(TimeoutError):
            await place.ask(timeout=SOON)
        # Longer than the call would have taken, and long enough to be noticed as a stop.
        ended, _ = await asyncio.wait([call], timeout=1.5)
        await struck.release()
        assert await call == 200
        if not ended:
            break
    assert not ended
    await struck.release()
    assert await place.ask() == 200
    seen = (await call_log(place.site.session, place.engine.control))["calls"]
    (stopped,) = [one for one in seen if one["tokens_asked"] == tokens]
    assert stopped["stuck_s"] > 0.5


async def test_killed_agent_restarts_on_the_same_ports(place: Place) -> None:
    struck = InjectedFault(place.site, AgentKilledFault(), "e0")
    await struck.pull()
    with pytest.raises(aiohttp.ClientConnectorError):
        await place.site.session.get(f"{place.agent}/readyz", headers={"connection": "close"})
    assert await place.ask() == 200
    await struck.release()
    await until(place.ready)


async def test_stopped_agent_keeps_connections_but_is_silent(place: Place) -> None:
    struck = InjectedFault(place.site, AgentFrozenFault(), "e0")
    await struck.pull()
    with pytest.raises(TimeoutError):
        await place.site.session.get(f"{place.agent}/readyz", timeout=SOON)
    assert await place.ask() == 200
    await struck.release()
    await until(place.ready)


async def test_restart_with_drain_waits_for_running_calls(place: Place) -> None:
    before = await place.process_began()
    struck = InjectedFault(place.site, RollingRestartFault(), "e0")
    call = asyncio.create_task(place.ask(tokens=100))
    await until(lambda: place.works(call))
    await struck.pull()
    assert not await place.ready()
    assert await call == 200

    async def ended() -> bool:
        # Read on the control port: a draining engine should get no new requests.
        return not (await call_log(place.site.session, place.engine.control))["listening"]

    await until(ended)
    with pytest.raises(aiohttp.ClientConnectorError):
        await place.ask()
    await struck.release()
    assert await place.ask() == 200
    assert await place.process_began() != before
    await until(place.ready)


async def test_process_restarts_after_its_last_fault_is_reverted(place: Place) -> None:
    lever = ProcessInjector(place.site)
    one, other = (
        KillProcess(part=ProcessRole.ENGINE, target="e0"),
        KillProcess(part=ProcessRole.ENGINE, target="e0"),
    )
    slow = FreezePull(part=ProcessRole.ENGINE, target="e0", on_share=0.5, period_s=0.1)
    await asyncio.gather(lever.inject(one), lever.inject(other), lever.inject(slow))
    await lever.revert(one)
    with pytest.raises(aiohttp.ClientConnectorError):
        await place.ask()
    await lever.revert(other)
    await lever.revert(slow)
    assert await place.ask() == 200
    forever = KillProcess(part=ProcessRole.ENGINE, target="e0", stays_dead=True)
    await lever.inject(forever)
    await lever.revert(forever)
    assert not place.engine_post.running


async def test_missing_process_is_refused_or_skipped(client) -> None:
    lever = ProcessInjector(site(client, engine_site("e0", 1)))
    assert "no process of its own" in lever.refusal(OomKillFault().actions("e0")[0])
    (nobody,) = AgentKilledFault().actions("e0")
    assert lever.refusal(nobody) == ""
    await lever.inject(nobody)
    await lever.revert(nobody)
