"""The fake engine schedules as a real vLLM does: the same requests move the same metrics in the same order."""

import json
import random
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from chaos.fake_engine import EngineConfig, FakeEngine
from chaos.processes import ChildProcesses, free_ports
from chaos.real_vllm.tiny_model import ModelShape, write_model
from chaos.real_vllm.vllm_replica import (
    ENVIRONMENT,
    MODEL,
    VllmReplica,
    vllm_command,
    vllm_python,
    wait_until_up,
)
from tests.eventually import eventually
from tests.with_vllm.metrics_trace import (
    BLOCK_SIZE,
    BLOCKS,
    CHUNK_TOKENS,
    CONTEXT_TOKENS,
    SCENARIOS,
    SLOTS,
    Trace,
    finals,
    while_prefilling,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


async def recorded(url: str, model: str) -> dict[str, Trace]:
    """A trace of each scenario."""
    timeout = aiohttp.ClientTimeout(total=60.0)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        traces = {scenario.__name__: Trace(session, url, model) for scenario in SCENARIOS}
        for scenario in SCENARIOS:
            await traces[scenario.__name__].record(scenario)
        return traces


def prompts() -> Iterator[list[int]]:
    """Prompts that share prefixes, in an order that fills the cache and evicts the least recently used."""

    def drawn(seed: int, blocks: float) -> list[int]:
        return random.Random(seed).choices(range(3, 250), k=round(blocks * BLOCK_SIZE))

    first, second, third = drawn(1, 20.5), drawn(2, 30), drawn(3, 45)
    yield from (first, first, [*first, *drawn(4, 2)], [*first[: 10 * BLOCK_SIZE + 7], *drawn(5, 1)])
    yield from (second, second, first, third, second, first, drawn(6, 60), drawn(7, 1), third)


async def prefix_hits(url: str) -> list[int]:
    """Tokens of each prompt that the engine found in its prefix cache, as its counters say."""
    found = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60.0)) as session:

        async def counters() -> tuple[int, int]:
            async with session.get(f"{url}/metrics") as answer:
                page = await answer.text()
            queries, hits = (
                sum(
                    float(one)
                    for one in re.findall(rf"^vllm:prefix_cache_{name}_total{{[^}}]*}} (\S+)$", page, re.MULTILINE)
                )
                for name in ("queries", "hits")
            )
            return round(queries), round(hits)

        for prompt in prompts():
            queries, hits = await counters()
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
            async with session.post(f"{url}/v1/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()

            async def counted(wanted: int = queries + len(prompt)) -> bool:
                return (await counters())[0] == wanted

            await eventually(counted, "the prompt is counted", 30.0)
            found.append((await counters())[1] - hits)
    return found


@pytest.fixture
async def vllm(tmp_path: Path) -> AsyncIterator[str]:
    """URL of a real engine with a small KV cache."""
    python = vllm_python()
    assert python is not None, "tests marked vllm are skipped without one"
    (port,) = free_ports(1)
    model = write_model(tmp_path / "model", ModelShape(context_tokens=CONTEXT_TOKENS))
    argv = [
        *vllm_command(port=port, python=python, model=model, slots=SLOTS, context_tokens=CONTEXT_TOKENS),
        *("--max-num-batched-tokens", str(CHUNK_TOKENS)),
        *("--block-size", str(BLOCK_SIZE), "--num-gpu-blocks-override", str(BLOCKS + 1)),
    ]
    async with ChildProcesses(log_dir=tmp_path, stop_limit_s=2.0) as children:
        child = await children.start("vllm", argv, env=ENVIRONMENT)
        await wait_until_up(VllmReplica(name="vllm", port=port, child=child))
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
async def fake() -> AsyncIterator[str]:
    """URL of a fake engine with the same settings."""
    engine = FakeEngine(
        EngineConfig(
            model=MODEL,
            slots=SLOTS,
            max_model_len=CONTEXT_TOKENS,
            max_num_batched_tokens=CHUNK_TOKENS,
            block_size=BLOCK_SIZE,
            kv_cache_tokens=BLOCKS * BLOCK_SIZE,
            enable_prefix_caching=True,
            prefill_s=0.0,
            token_s=0.005,
            step_prefill_token_s=0.0004,
            step_context_token_s=1e-7,
        )
    )
    await engine.start()
    yield engine.url
    await engine.stop()


async def test_fake_engine_moves_metrics_like_vllm(vllm: str, fake: str, tmp_path: Path) -> None:
    real, simulated = await recorded(vllm, MODEL), await recorded(fake, MODEL)
    real_hits, simulated_hits = await prefix_hits(vllm), await prefix_hits(fake)
    assert simulated_hits == real_hits
    assert max(real_hits) > 0, "the same prompt again is found"
    assert real_hits[-1] == 0, "what was least recently used is gone"
    for name, traces in (("real", real), ("fake", simulated)):
        text = json.dumps({scenario: trace.as_object() for scenario, trace in traces.items()})
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    for scenario in ("long_prompt", "short_behind_long"):
        assert while_prefilling(simulated[scenario]) == while_prefilling(real[scenario]), scenario
    for scenario, trace in real.items():
        assert finals(simulated[scenario]) == finals(trace), scenario
        for metric in ("num_requests_running", "num_requests_waiting"):
            assert max(simulated[scenario].sequence(metric), default=0) == max(
                trace.sequence(metric), default=0
            ), (scenario, metric)
    # How often the cache fills up depends on when requests arrive.
    assert real["crowd"].total("num_preemptions_total") > 0
    assert simulated["crowd"].total("num_preemptions_total") > 0
