"""A real vLLM with two data-parallel ranks, one of which is stopped."""

import os
import signal
from pathlib import Path

import pytest

from chaos.real_vllm.vllm_replica import MODEL, START_LIMIT_S
from engine.probe_settings import PREFILL_STALL_S
from tests.with_vllm.conftest import SLOTS, eventually
from tests.with_vllm.single_engine import single_engine
from tests.with_vllm.traffic import Stream

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2 * START_LIMIT_S)]

FOUND_WITHIN_S = 3.0
"""From the end of the limit to the report, on two busy cores."""


async def test_stopped_rank_is_hung_by_name_and_returns(tmp_path: Path) -> None:
    async with single_engine(tmp_path, "--data-parallel-size", "2") as engine:
        await engine.until(lambda report: report["verdict"] == "ready", "the agent reports ready")
        core = engine.replica.engine_core(1)
        # Under load: both ranks hold streams.
        streams = [Stream(engine.session, engine.replica.url, model=MODEL, max_tokens=900) for _ in range(SLOTS)]
        await eventually(lambda: all(one.tokens_seen for one in streams), "all streams begun")
        os.kill(core, signal.SIGSTOP)
        try:
            seconds, report = await engine.until(lambda report: report["verdict"] == "hung", "the rank is hung")
        finally:
            os.kill(core, signal.SIGCONT)
        assert seconds < PREFILL_STALL_S + FOUND_WITHIN_S, report
        assert report["hung_ranks"] == ["1"], report
        assert "data-parallel rank 1: " in report["evidence"]
        await engine.until(lambda report: report["verdict"] in ("ready", "busy"), "the engine is back")
        ended = [await one.ended() for one in streams]
        assert all(one.whole for one in ended), ended
        # Idle: its gauges show no work.
        await engine.until(lambda report: report["requests_in_flight"] == 0, "the engine is idle")
        os.kill(core, signal.SIGSTOP)
        try:
            seconds, report = await engine.until(lambda report: report["verdict"] == "hung", "the rank is hung")
        finally:
            os.kill(core, signal.SIGCONT)
        assert report["hung_ranks"] == ["1"], report
        await engine.until(lambda report: report["verdict"] == "ready", "the engine is back")
