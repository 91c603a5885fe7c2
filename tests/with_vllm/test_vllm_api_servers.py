"""A real vLLM with two API processes: each counts its own requests, and neither reports a start time."""

import os
import signal
from pathlib import Path

import aiohttp
import pytest

from chaos.real_vllm.vllm_replica import MODEL, START_LIMIT_S, wait_until_up
from engine.probe_settings import PREFILL_STALL_S
from tests.with_vllm.conftest import SLOTS, eventually
from tests.with_vllm.single_engine import SingleEngine, single_engine
from tests.with_vllm.traffic import Stream

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3 * START_LIMIT_S)]

FOUND_WITHIN_S = 3.0
"""From the end of the limit to the report, on two busy cores."""
WORKS = ("ready", "busy")


def streams(engine: SingleEngine, tokens: int) -> list[Stream]:
    """One stream for each slot; each connection goes to either process."""
    return [Stream(engine.session, engine.replica.url, model=MODEL, max_tokens=tokens) for _ in range(SLOTS)]


async def begun(engine: SingleEngine, tokens: int) -> list[Stream]:
    opened = streams(engine, tokens)
    await eventually(lambda: all(one.tokens_seen for one in opened), "all streams begun")
    return opened


async def own_count(engine: SingleEngine) -> int:
    """The count of the process that takes a new connection."""
    async with aiohttp.request("GET", f"{engine.replica.url}/load", headers={"Connection": "close"}) as answer:
        return int((await answer.json())["server_load"])


async def served(opened: list[Stream]) -> None:
    ended = [await one.ended() for one in opened]
    assert all(one.whole for one in ended), ended


async def hangs(engine: SingleEngine, *, step_s: float = 0.0) -> float:
    """Stop the engine core until the agent reports it; seconds until then, after steps of up to ``step_s``."""
    core = engine.replica.engine_core()
    os.kill(core, signal.SIGSTOP)
    try:
        seconds, report = await engine.until(lambda report: report["verdict"] == "hung", "the engine is hung")
    finally:
        os.kill(core, signal.SIGCONT)
    assert seconds < PREFILL_STALL_S + step_s + FOUND_WITHIN_S, report
    await engine.until(lambda report: report["verdict"] in WORKS, "the engine is back")
    return seconds


async def test_requests_of_both_api_processes_count(tmp_path: Path) -> None:
    async with single_engine(tmp_path, api_servers=2) as engine:
        _, first = await engine.until(lambda report: report["verdict"] == "ready", "the agent reports ready")
        assert first["count_is_partial"]

        opened = await begun(engine, 900)
        _, report = await engine.until(lambda report: report["requests_in_flight"] == SLOTS, "all are counted")
        assert report["verdict"] in WORKS
        assert min([await own_count(engine) for _ in range(SLOTS)]) < SLOTS
        hung_s = await hangs(engine)
        await served(opened)

        # Idle: neither gauges nor counts show work.
        await engine.until(lambda report: report["requests_in_flight"] == 0, "the engine is idle")
        # For a minute the agent may take the hang before for a long step.
        await hangs(engine, step_s=hung_s + FOUND_WITHIN_S)

        opened = await begun(engine, 900)
        drain = f"http://127.0.0.1:{engine.agent_port}/drain?deadline=60s"
        async with engine.session.post(drain) as answer:
            drained = await answer.json()
        assert drained["in_flight"] == 0, drained
        # Only the last bytes may still be on their way.
        await eventually(lambda: all(one.tokens for one in opened), "every stream has its last token")
        await served(opened)
        async with engine.session.post(f"http://127.0.0.1:{engine.agent_port}/undrain") as answer:
            assert answer.status == 200

        restarted = await engine.restarted()
        await wait_until_up(restarted.replica)
        _, second = await restarted.until(
            lambda report: report["verdict"] == "ready" and report["boot"]["number"] > 1,
            "the new process is ready",
        )
        assert second["boot"]["number"] == first["boot"]["number"] + 1
        assert second["boot_id"] != first["boot_id"]
        assert second["boot"]["mark"] is None
