"""An agent next to an engine with data-parallel ranks, one of which hangs."""

import pytest

from chaos.fake_engine import EngineHang
from tests.engine.agent.conftest import Load, StartAgent, StartEngine

pytestmark = pytest.mark.timeout(400)

_FAST = ("--gpu", "off", "--interval", "100ms", "--idle-interval", "100ms")


async def test_hung_rank_under_load_is_named_and_the_engine_returns_with_it(
    start_agent: StartAgent, start_engine: StartEngine, under_load: Load
) -> None:
    engine = await start_engine(data_parallel_size=2)
    agent = await start_agent(engine.url, *_FAST)
    await agent.until("ready")
    async with under_load(engine, 6):
        await agent.until_report(lambda report: report["requests_in_flight"] >= 6)
        await engine.set_fault(EngineHang(rank=1))
        hung_after_s, report = await agent.until("hung")
        assert hung_after_s < 4.0, report
        assert report["hung_ranks"] == ["1"]
        assert report["ranks"] == ["0", "1"]
        assert report["reasons"][0]["threshold"].endswith("from every data-parallel rank")
        assert report["evidence"].startswith("data-parallel rank 1: ")
        await agent.until_probes(503, 200, 200)
        await engine.heal()
        await agent.until("ready", "busy")
        assert (await agent.report())["hung_ranks"] == []


async def test_rank_that_hangs_while_the_engine_is_idle_is_found(
    start_agent: StartAgent, start_engine: StartEngine
) -> None:
    engine = await start_engine(data_parallel_size=3)
    agent = await start_agent(engine.url, *_FAST)
    await agent.until("ready")
    await engine.set_fault(EngineHang(rank=2))
    _, report = await agent.until("hung")
    assert report["hung_ranks"] == ["2"]
    await engine.heal()
    await agent.until("ready")
