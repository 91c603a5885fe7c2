"""A real vLLM with LoRA adapters of random weights: the agent sees them come and go."""

from pathlib import Path
from typing import Any

import pytest

from chaos.real_vllm.random_adapter import RANK, write_adapter
from chaos.real_vllm.vllm_replica import MODEL, START_LIMIT_S
from tests.with_vllm.single_engine import SingleEngine, single_engine

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2 * START_LIMIT_S)]


async def answer(one: SingleEngine, path: str, **body: Any) -> tuple[int, str]:
    async with one.session.post(f"{one.replica.url}{path}", json=body) as told:
        return told.status, await told.text()


async def completed(one: SingleEngine, model: str) -> int:
    status, _ = await answer(one, "/v1/completions", model=model, prompt="abc", max_tokens=4, temperature=0.0)
    return status


async def test_agent_reports_adapters_that_are_loaded_and_unloaded(tmp_path: Path) -> None:
    first, second = write_adapter(tmp_path / "first", seed=1), write_adapter(tmp_path / "second", seed=2)
    flags = ("--enable-lora", "--max-loras", "2", "--max-lora-rank", str(RANK), "--lora-modules", f"first={first}")
    environment = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    async with single_engine(tmp_path, *flags, environment=environment) as one:
        await one.until(lambda told: told["verdict"] == "ready" and told["adapters"] == ["first"], "the first one")
        assert [await completed(one, model) for model in (MODEL, "first", "second")] == [200, 200, 404]
        status, text = await answer(one, "/v1/load_lora_adapter", lora_name="second", lora_path=str(second))
        assert status == 200, text
        await one.until(lambda told: told["adapters"] == ["first", "second"], "both")
        assert [await completed(one, model) for model in (MODEL, "first", "second")] == [200, 200, 200]
        status, text = await answer(one, "/v1/unload_lora_adapter", lora_name="first")
        assert status == 200, text
        _, told = await one.until(lambda told: told["adapters"] == ["second"], "the second one")
        assert told["verdict"] == "ready"
        assert [await completed(one, model) for model in (MODEL, "first", "second")] == [200, 404, 200]
