"""The time between tokens of a pool as an objective: real Envoy, agent and control plane."""

import sys
from pathlib import Path
from typing import Any

import pytest

from chaos.processes import free_ports
from tests.with_envoy.serve.conftest import LIMIT_S, Site, eventually

pytestmark = pytest.mark.envoy

AGENT = str(Path(sys.executable).with_name("switchgear-agent"))
SLOTS = 8
TOKEN_S = 0.06


async def start_agent(site: Site, port: int) -> None:
    """An agent next to the first engine."""
    http = f"127.0.0.1:{free_ports(1)[0]}"
    await site.processes.start(
        "agent",
        [
            *(AGENT, "run", "--engine", f"http://127.0.0.1:{site.engines[0].port}", "--slots", str(SLOTS)),
            *("--http", http, "--grpc", f"127.0.0.1:{port}"),
        ],
        ready_within_s=LIMIT_S,
    )


async def test_agents_measure_the_time_between_tokens_of_a_pool(site: Site) -> None:
    await site.start_engines(1, slots=SLOTS, token_s=TOKEN_S)
    port = free_ports(1)[0]
    await start_agent(site, port)
    pool = site.pool(
        slotsPerEngine=SLOTS, objectives={"betweenTokens": {"p95": "10ms", "p99": "20s"}, "goodPercent": 90}
    )
    pool["spec"]["endpoints"][0]["agentPort"] = port
    site.write("chat.yaml", pool, site.route())
    await site.serve()
    await site.envoy()
    await site.answered()
    site.load(5.0, streaming_share=1.0, max_tokens={8: 1.0})
    found: dict[str, Any] = {}

    async def measured() -> bool:
        for one in (await site.get("/v1/objectives"))["objectives"]:
            found[one["objective"]] = one
        return bool(found["between-tokens-p99"]["windows"]["5m"]["calls"])

    await eventually(measured, "gaps between tokens")
    # No gap is as short as 10 ms, and none as long as 20 s.
    assert found["between-tokens-p95"]["windows"]["5m"]["good_percent"] == 0
    assert found["between-tokens-p99"]["windows"]["5m"]["good_percent"] == 100
    assert await site.metric("switchgear_pool_token_gap_seconds_count", of='pool="chat"') > 0
    code, out, error = await site.switchgear("get", "objectives", "--admin", f"http://{site.admin}")
    assert code == 0, error
    assert "pool/chat/between-tokens-p95  burns-fast" in out
