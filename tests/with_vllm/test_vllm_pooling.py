"""A real vLLM that embeds and scores: no completions, no tokens."""

import os
import signal
from pathlib import Path

import pytest

from chaos.real_vllm.vllm_replica import MODEL, START_LIMIT_S
from tests.with_vllm.single_engine import single_engine

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2 * START_LIMIT_S)]


async def test_embedding_engine_is_judged_by_its_embeddings(tmp_path: Path) -> None:
    flags = ("--runner", "pooling", "--convert", "embed")
    async with single_engine(tmp_path, *flags, agent_flags=("--api", "/v1/embeddings")) as engine:
        await engine.until(lambda report: report["verdict"] == "ready", "the agent reports ready")
        for path, body in (
            ("/score", {"text_1": "a", "text_2": "b"}),
            ("/rerank", {"query": "a", "documents": ["b"]}),
        ):
            async with engine.session.post(f"{engine.replica.url}{path}", json={"model": MODEL, **body}) as answer:
                assert answer.status == 200, await answer.text()
                assert ("results" if "rerank" in path else "data") in await answer.json(content_type=None)
        core = engine.replica.engine_core()
        os.kill(core, signal.SIGSTOP)
        try:
            await engine.until(lambda report: report["verdict"] == "hung", "the engine is hung")
        finally:
            os.kill(core, signal.SIGCONT)
        await engine.until(lambda report: report["verdict"] == "ready", "the engine is back")
