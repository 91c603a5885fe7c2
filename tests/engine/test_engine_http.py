"""What asking an engine that is down leaves behind: nothing that waits for the collector of cycles."""

import gc
import time

from chaos.processes import free_ports
from engine.engine_http import EngineHttp, EngineTarget, http_session
from engine.engine_readings import ProbeFailure, ProbeFailureReason
from engine.probe_settings import ProbeSettings

ASKED = 50


async def test_an_engine_that_refuses_leaves_nothing_for_the_collector() -> None:
    """A hundred objects for each try were left, and a control plane collects every few minutes only."""
    (port,) = free_ports(1)
    target = EngineTarget(address="127.0.0.1", port=port, model="fake-model", probe=ProbeSettings(timeout_s=20.0))
    async with http_session() as http:
        one = EngineHttp(http, target, time.monotonic, lambda _: False)
        await one.read_metrics()
        gc.collect()
        gc.disable()
        try:
            for _ in range(ASKED):
                await one.wait_disconnected()
                answer = await one.send_canary("x")
                assert answer.failure is not None
                assert answer.failure.trouble is ProbeFailureReason.REFUSED
            left = gc.collect()
        finally:
            gc.enable()
        look = await one.read_metrics()
        assert isinstance(look.counters, ProbeFailure)
    assert left < ASKED
