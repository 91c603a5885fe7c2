"""A client of an engine that hangs: what readings say of its one request while canaries are given up."""

import asyncio
import time

from engine.engine_http import EngineHttp
from engine.engine_readings import CanaryReading, MetricsReading, ProbeFailure, ProbeFailureReason
from engine.vllm_metrics import VllmCounters

_CANARY_S = 0.6


class HangingEngine(EngineHttp):
    """Simulates a hung engine with one request. Its counters always arrive just after a canary was given up."""

    _given_up: asyncio.Event | None = None

    async def read_metrics(self, *, suspect: bool = False, stalled: bool = False) -> MetricsReading:  # noqa: ARG002
        assert not suspect
        if self._given_up is not None:
            await self._given_up.wait()
        counters = VllmCounters(generation_tokens=5.0, prompt_tokens=9.0, running=1, waiting=0, started_at_s=1.0)
        return MetricsReading(at_s=time.monotonic(), counters=counters, in_flight=1)

    async def send_canary(
        self, prompt: str, timeout_s: float | None = None, *, rank: int | None = None
    ) -> CanaryReading:
        assert prompt
        assert timeout_s is not None
        assert rank is None
        self._given_up, sent_at_s = asyncio.Event(), time.monotonic()
        await asyncio.sleep(_CANARY_S)
        self._given_up.set()
        silent = ProbeFailure(trouble=ProbeFailureReason.SILENT, detail="no token in time")
        return CanaryReading(sent_at_s=sent_at_s, at_s=time.monotonic(), failure=silent)
