"""A real vLLM with LoRA adapters of random weights: the agent sees them come and go, and Switchgear loads some."""

import sys
from pathlib import Path
from typing import Any

import pytest

from chaos.processes import free_ports
from chaos.real_vllm.random_adapter import RANK, write_adapter
from chaos.real_vllm.vllm_replica import MODEL, START_LIMIT_S
from tests.with_vllm.conftest import LIMIT_S, eventually
from tests.with_vllm.single_engine import SingleEngine, single_engine

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2 * START_LIMIT_S)]

SWITCHGEAR = str(Path(sys.executable).with_name("switchgear"))
POLICY = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {{name: tiny}}
spec:
  model: {model}
  endpoints: [{{name: e, address: 127.0.0.1, port: {port}}}]
  adapters:
    - {{name: first, path: {first}}}
    - {{name: law, path: {missing}}}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {{name: first}}
spec: {{listener: {{port: 8000}}, match: {{model: first}}, adapter: true, pools: [{{pool: tiny}}]}}
"""


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


async def test_control_plane_loads_an_adapter_that_the_pool_states(tmp_path: Path) -> None:
    first = write_adapter(tmp_path / "first", seed=1)
    flags = ("--enable-lora", "--max-loras", "2", "--max-lora-rank", str(RANK))
    environment = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    async with single_engine(tmp_path, *flags, environment=environment) as one:
        assert [await completed(one, model) for model in (MODEL, "first")] == [200, 404]
        values = {"model": MODEL, "port": one.replica.port, "first": first, "missing": tmp_path / "none"}
        (tmp_path / "policy.yaml").write_text(POLICY.format(**values))
        xds, admin = (f"127.0.0.1:{port}" for port in free_ports(2))
        argv = [SWITCHGEAR, "serve", "-f", str(tmp_path / "policy.yaml"), "--listen", xds, "--admin", admin]
        await one.children.start("serve", argv, ready_within_s=LIMIT_S)
        _, told = await one.until(lambda told: told["adapters"] == ["first"], "loaded")
        assert told["verdict"] == "ready"
        assert [await completed(one, model) for model in (MODEL, "first", "law")] == [200, 200, 404]

        async def rows() -> dict[str, Any]:
            async with one.session.get(f"http://{admin}/v1/pools") as page:
                [pool] = (await page.json())["pools"]
                return {each["adapter"]: each for each in pool["adapters"]}

        async def known() -> bool:
            found = await rows()
            return found["first"]["engines"] == 1 and "No adapter found" in found["law"]["trouble"]

        await eventually(known, "one is loaded, the other one refused")
        assert (await rows())["law"]["engines"] == 0
