"""A prompt whose steps outlast the limit, retried from engine to engine, with the real prober and decisions."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest

from chaos.fake_engine import EngineConfig, EngineHang, FakeEngine
from engine.report import EngineReport
from policies.model import PolicySet
from policies.pool import EnginePool
from policies.resilience import ResilienceSpec
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.decisions import EngineDecision, Health
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.engine_health.engine_prober import Prober
from xds_server.model.fleet import declared, with_report

pytestmark = pytest.mark.timeout(300)

ENGINES = 4
# One chunk of 2048 tokens takes 6 s; the limit of a prefill is 3 s.
SLOW_CHUNK = {"step_prefill_token_s": 6.0 / 2048, "prefill_s": 0.01}
POISON = list(range(2048))
TRY_S = 4.5
LIMIT_S = 60.0


class Watched:
    """The decisions on a pool of fake engines, made as reports of the prober arrive."""

    def __init__(self, engines: list[FakeEngine]) -> None:
        endpoints = [
            {"name": one.config.name, "address": "127.0.0.1", "port": one.port, "slots": 8} for one in engines
        ]
        spec = {"model": "fake-model", "endpoints": endpoints, "probe": {"interval": "200ms"}}
        pool = EnginePool.model_validate({"metadata": {"name": "p"}, "spec": spec})
        effective = {"p": ResilienceSpec()}
        self.policies = PolicySet(pools={"p": pool}, routes={}, policies={}, effective=effective)
        self.fleet = declared(self.policies)
        self.memory = NO_MEMORY
        self.decisions: dict[str, EngineDecision] = {}
        self.ejected: list[str] = []

    def on_report(self, report: EngineReport) -> None:
        now_s = time.monotonic()
        self.fleet = with_report(self.fleet, report, now_s)
        proxies = ConnectedProxies(by_role={"gateway": 1}, calling_zones=frozenset())
        decided, self.memory = decide(self.policies, self.fleet, self.memory, proxies=proxies, now_s=now_s)
        self.decisions = {key.engine: one for key, one in decided.engines.items()}
        for name, one in self.decisions.items():
            if one.health is Health.UNHEALTHY and name not in self.ejected:
                self.ejected.append(name)

    async def until(self, *ejected: str) -> None:
        """Wait until these engines have been ejected."""
        async with asyncio.timeout(LIMIT_S):
            while not set(ejected) <= set(self.ejected):
                await asyncio.sleep(0.05)

    async def until_heard(self) -> None:
        """Wait until every engine is in rotation by its own report."""
        async with asyncio.timeout(LIMIT_S):
            while not all(engine.good_looks for engine in self.fleet.pools["p"]):
                await asyncio.sleep(0.05)
        self.ejected.clear()


@contextlib.asynccontextmanager
async def pool() -> AsyncIterator[tuple[list[FakeEngine], Watched]]:
    engines = [FakeEngine(EngineConfig(name=f"e{one}", **SLOW_CHUNK)) for one in range(ENGINES)]
    for one in engines:
        await one.start()
    watched = Watched(engines)
    prober = Prober(watched.on_report)
    prober.watch(watched.policies)
    probing = asyncio.create_task(prober.run())
    try:
        await watched.until_heard()
        yield engines, watched
    finally:
        probing.cancel()
        await asyncio.wait([probing])
        for one in engines:
            await one.stop()


async def attempt(http: aiohttp.ClientSession, engine: FakeEngine) -> bool:
    """Whether the prompt got its answer here, within the time of one attempt."""
    body = {"model": "fake-model", "prompt": POISON, "max_tokens": 1}
    with contextlib.suppress(TimeoutError, aiohttp.ClientError):
        limit = aiohttp.ClientTimeout(total=TRY_S)
        async with http.post(f"{engine.url}/v1/completions", json=body, timeout=limit) as answer:
            await answer.read()
            return answer.status == 200
    return False


async def test_prompt_retried_over_all_engines_ejects_one() -> None:
    async with pool() as (engines, watched), aiohttp.ClientSession() as http:
        for engine in engines:
            assert not await attempt(http, engine), "its prefill outlasts the attempt"
        await watched.until("e0")
        reasons = {name: one.reason for name, one in watched.decisions.items()}
        assert watched.ejected == ["e0"], reasons


async def test_two_engines_that_hang_at_once_are_both_ejected() -> None:
    async with pool() as (engines, watched):
        for engine in engines[:2]:
            await engine.set_fault(EngineHang())
        began_s = time.monotonic()
        await watched.until("e0", "e1")
        assert time.monotonic() - began_s < 15.0
        assert set(watched.ejected) == {"e0", "e1"}
