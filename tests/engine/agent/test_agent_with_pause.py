"""An agent next to an engine that is paused by order, and one that hangs."""

import aiohttp
import pytest

from chaos.fake_engine import EngineHang
from tests.engine.agent.conftest import LIMIT_S, StartAgent, StartEngine

pytestmark = pytest.mark.timeout(400)

_FAST = ("--gpu", "off", "--interval", "50ms", "--idle-interval", "50ms", "--restart-after-hung", "1s")


async def _order(url: str, path: str) -> None:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT_S)) as http,
        http.post(f"{url}{path}") as answer,
    ):
        assert answer.status == 200


async def test_paused_engine_leaves_without_a_restart_and_returns_on_resume(
    start_agent: StartAgent, start_engine: StartEngine
) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url, *_FAST)
    await agent.until("ready")
    await _order(engine.url, "/pause")
    await agent.until("paused")
    _, report = await agent.until_report(lambda report: report["since_s"] > 3.0)
    assert report["verdict"] == "paused"
    assert "paused by order" in report["evidence"]
    assert report["reasons"][0]["reading"] == "pause"
    await agent.until_probes(503, 200, 200)
    await _order(engine.url, "/resume")
    await agent.until("ready")


async def test_hang_is_not_a_pause(start_agent: StartAgent, start_engine: StartEngine) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url, *_FAST)
    await agent.until("ready")
    await engine.set_fault(EngineHang())
    await agent.until("hung")
    await agent.until_probes(503, 503, 200)
