"""An agent next to engines that produce no tokens: embedding, pooling, scoring, reranking and speech."""

import pytest

from chaos.fake_engine import EngineErrorAfterWork, EngineHang
from tests.engine.agent.conftest import StartAgent, StartEngine

pytestmark = pytest.mark.timeout(400)

_FAST = ("--gpu", "off", "--interval", "50ms", "--idle-interval", "50ms")


@pytest.mark.parametrize(
    "path", ["/v1/embeddings", "/pooling", "/score", "/v1/rerank", "/v1/audio/transcriptions"]
)
async def test_engine_without_completions_is_judged_by_its_own_api(
    start_agent: StartAgent, start_engine: StartEngine, path: str
) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url, "--api", path, *_FAST)
    await agent.until("ready")
    assert {call.path for call in engine.book.calls} == {path}
    await engine.set_fault(EngineHang())
    await agent.until("hung")
    await engine.set_fault(EngineErrorAfterWork())
    await agent.until("degraded")
    await engine.heal()
    await agent.until("ready")


async def test_probe_of_an_api_that_the_engine_lacks_is_misconfigured(
    start_agent: StartAgent, start_engine: StartEngine
) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url, "--api", "/v1/audio/translations", "--model", "whisper", *_FAST)
    _, report = await agent.until("misconfigured")
    assert "check model and path" in report["evidence"]
