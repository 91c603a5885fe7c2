"""Reading an engine: what its counts are worth, and what asking one that is down leaves behind."""

import gc
import time

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from chaos.processes import free_ports
from engine.engine_http import MAX_MISCOUNT, EngineHttp, EngineTarget, RequestCount, http_session
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


@pytest.mark.parametrize(("started", "partial"), [("process_start_time_seconds 1.7e9\n", False), ("", True)])
async def test_counts_of_one_api_process_among_several_are_partial(started: str, partial: bool) -> None:
    """Several API processes report no start time, and each counts its own requests only."""
    names = ("generation_tokens_total", "prompt_tokens_total", "num_requests_running", "num_requests_waiting")
    page = started + "".join(f"vllm:{name} 1\n" for name in names)
    gate = {"in_flight": 1, "waiting_for_first_token": 0, "waiting_long": 0}

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=page)

    async def count(_: web.Request) -> web.Response:
        return web.json_response(gate)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/load", count)
    async with TestServer(app) as server, http_session() as http:
        target = EngineTarget(address="127.0.0.1", port=server.port or 0, model="m", probe=ProbeSettings())
        look = await EngineHttp(http, target, time.monotonic, lambda _: False).read_metrics()
    assert (look.in_flight, look.partial) == (1, partial)
    assert (look.unstarted, look.long_prompts) == ((None, None) if partial else (0, 0))


async def test_count_below_zero_is_corrected_until_the_engine_restarts() -> None:
    """vLLM's count falls for good by one for each client that leaves just as its answer ends."""
    started_at_s, load = 1.7e9, 0
    names = ("generation_tokens_total", "prompt_tokens_total", "num_requests_running", "num_requests_waiting")

    async def metrics(_: web.Request) -> web.Response:
        start = f"process_start_time_seconds {started_at_s}\n" if started_at_s else ""
        return web.Response(text=start + "".join(f"vllm:{name} 1\n" for name in names))

    async def count(_: web.Request) -> web.Response:
        return web.json_response({"server_load": load})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/load", count)
    seen: list[tuple[int | None, int | None]] = []
    async with TestServer(app) as server, http_session() as http:
        target = EngineTarget(address="127.0.0.1", port=server.port or 0, model="m", probe=ProbeSettings())
        engine = EngineHttp(http, target, time.monotonic, lambda _: False)

        async def look() -> None:
            seen.append(((await engine.read_metrics()).in_flight, await engine.count()))

        for load in (1, -1, -2, -1, 0):  # noqa: B007  # the server answers it
            await look()
        started_at_s, load = 1.8e9, 0
        await look()
        started_at_s, load = 0.0, -1
        seen.append(((await engine.read_metrics()).in_flight, None))
    assert seen == [(1, 1), (0, 0), (0, 0), (1, 1), (2, 2), (0, 0), (None, None)]


def test_impossible_miscount_is_ignored() -> None:
    counts = RequestCount()
    counts.started(1.7e9)
    answers = (2, -(10**30), 2, -MAX_MISCOUNT - 1, 3, True, "4", None)
    seen = [counts.of({"server_load": one}) for one in answers]
    assert seen == [2, None, 2, None, 3, None, None, None]
