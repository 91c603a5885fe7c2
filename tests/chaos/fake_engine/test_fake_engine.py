"""Each fault over real HTTP: that it bites, and that healing ends it."""

import asyncio
import contextlib
import json
import socket
import time

import aiohttp
import pytest

from chaos.fake_engine import (
    ControlServer,
    EngineBadHealth,
    EngineCrash,
    EngineDrain,
    EngineErrorAfterWork,
    EngineFlap,
    EngineHang,
    EngineHangMidStream,
    EngineResetMidStream,
    EngineShed,
    EngineSigterm,
    EngineSlow,
    FakeEngine,
)
from chaos.fake_engine.call_log import CallOutcome

SOON_S = 0.15
SOON = aiohttp.ClientTimeout(total=SOON_S)


async def ask(client, engine: FakeEngine, *, timeout: aiohttp.ClientTimeout | None = None, **body):
    """Status, headers and text of one completion."""
    extra = {} if timeout is None else {"timeout": timeout}
    async with client.post(f"{engine.url}/v1/completions", json={"prompt": "x", **body}, **extra) as r:
        return r.status, r.headers, await r.text()


async def assert_well(client, engine: FakeEngine) -> None:
    for streaming in (False, True):
        status, _, text = await ask(client, engine, stream=streaming, max_tokens=5)
        assert status == 200
        assert "t5" in text


async def metrics(client, engine: FakeEngine) -> dict[str, float]:
    async with client.get(f"{engine.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name.replace('{engine="0",model_name="fake-model"}', ""): float(value) for name, value in pairs}


async def load(client, engine: FakeEngine) -> int:
    async with client.get(f"{engine.url}/load") as response:
        return (await response.json())["server_load"]


@contextlib.asynccontextmanager
async def in_flight(client, engine: FakeEngine, eventually, count: int, **body):
    """Calls held open by clients that wait; they leave with the block."""
    before = engine.calls_in_flight
    calls = [asyncio.create_task(ask(client, engine, **body)) for _ in range(count)]
    await eventually(lambda: engine.calls_in_flight == before + count)
    yield calls
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


# -- a healthy engine ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [False, True])
async def test_leaving_client_frees_its_slot_at_the_end_of_the_step(
    streaming, start_engine, client, eventually
) -> None:
    engine = await start_engine(slots=1, token_s=0.2)

    async def running(count: int) -> None:
        async with asyncio.timeout(60):
            while (await metrics(client, engine))["vllm:num_requests_running"] != count:
                await asyncio.sleep(0.01)

    async with in_flight(client, engine, eventually, 1, stream=streaming, max_tokens=1000):
        await running(1)
    await eventually(lambda: engine.calls_in_flight == 0)
    await running(0)
    assert (await ask(client, engine, max_tokens=1))[0] == 200
    # The real one counts no aborts either.
    assert (await metrics(client, engine))[
        'vllm:request_success_total{engine="0",finished_reason="abort",model_name="fake-model"}'
    ] == 0
    call = engine.book.calls[0]
    assert call.outcome is CallOutcome.ABORTED
    assert call.wasted_slot_s == call.slot_s > 0


async def test_calls_beyond_the_slots_are_queued(start_engine, client, eventually) -> None:
    engine = await start_engine(slots=2, prefill_s=60.0)
    async with in_flight(client, engine, eventually, 5):
        seen = await metrics(client, engine)
        assert (seen["vllm:num_requests_running"], seen["vllm:num_requests_waiting"]) == (2, 3)
        assert await load(client, engine) == 5


async def test_metrics_count_tokens_and_times(start_engine, client) -> None:
    engine = await start_engine()
    await ask(client, engine, max_tokens=7)
    await ask(client, engine, max_tokens=5, stream=True)
    seen = await metrics(client, engine)
    assert seen["vllm:generation_tokens_total"] == 12
    assert seen["vllm:prompt_tokens_total"] == 2
    assert seen["vllm:time_to_first_token_seconds_count"] == 2
    assert seen["vllm:inter_token_latency_seconds_count"] == 10
    assert seen["vllm:e2e_request_latency_seconds_count"] == 2
    assert seen["vllm:num_preemptions_total"] == 0
    finished = 'vllm:request_success_total{engine="0",finished_reason="length",model_name="fake-model"}'
    assert seen[finished] == 2


async def test_tokens_of_a_running_call_are_counted(start_engine, client, eventually) -> None:
    engine = await start_engine(token_s=0.02)
    async with in_flight(client, engine, eventually, 1, max_tokens=4000):
        counts = []
        deadline = time.monotonic() + 60
        while len(set(counts)) < 4:
            assert time.monotonic() < deadline
            counts.append((await metrics(client, engine))["vllm:generation_tokens_total"])
            await asyncio.sleep(0.01)
        assert counts == sorted(counts)


async def test_long_prefill_moves_only_the_kv_cache_and_holds_up_a_probe(start_engine, client, eventually) -> None:
    # Four chunks of 0.4 s.
    engine = await start_engine(
        prefill_s=0.0, step_prefill_token_s=0.0004, max_num_batched_tokens=1000, max_model_len=8192
    )
    async with in_flight(client, engine, eventually, 1, prompt=[1] * 4000, max_tokens=1) as long:
        pages = [await metrics(client, engine)]
        probe = asyncio.create_task(ask(client, engine, max_tokens=1))
        while not long[0].done():
            pages.append(await metrics(client, engine))
            await asyncio.sleep(0.01)
        await probe
        after = await metrics(client, engine)
    prefill = [page for page in pages if not page["vllm:generation_tokens_total"]]
    assert len({page["vllm:kv_cache_usage_perc"] for page in prefill}) >= 3
    assert {page["vllm:prompt_tokens_total"] for page in prefill} == {0}
    assert {page["vllm:iteration_tokens_total_count"] for page in prefill} == {0}
    waiting = 'vllm:num_requests_waiting_by_reason{engine="0",model_name="fake-model",reason="capacity"}'
    assert max(page[waiting] for page in prefill) == 1
    began_s = min(call.arrived_at_s for call in engine.book.calls)
    assert all(call.closed_at_s - began_s >= 1.6 for call in engine.book.calls)
    assert after["vllm:prompt_tokens_total"] == 4001
    assert after["vllm:prefix_cache_queries_total"] == 4001
    assert after["vllm:num_requests_running"] == 0


async def test_admission_limit_counts_running_and_waiting_calls(start_engine, client, eventually) -> None:
    engine = await start_engine(slots=1, max_unfinished=3, prefill_s=60.0)
    async with in_flight(client, engine, eventually, 3):
        status, headers, text = await ask(client, engine)
        assert status == 503
        assert "retry-after" not in headers
        assert json.loads(text)["error"]["type"] == "Service Unavailable"
        seen = await metrics(client, engine)
        (rejections,) = (value for name, value in seen.items() if "admission_rejections_total" in name)
        assert rejections == 1
    assert engine.book.totals().shed == 1


async def test_call_record_has_request_id_and_attempt_number(start_engine, client) -> None:
    engine = await start_engine()
    headers = {"x-request-id": "abc", "x-envoy-attempt-count": "2"}
    async with client.post(f"{engine.url}/v1/completions", json={"prompt": "x"}, headers=headers) as r:
        await r.read()
    (call,) = engine.book.calls
    assert (call.request_id, call.attempt, call.outcome) == ("abc", 2, CallOutcome.FINISHED)
    assert call.tokens_sent == call.tokens_generated == 16
    assert call.slot_s == pytest.approx(0.01 + 15 * 0.002)


# -- faults -------------------------------------------------------------------------------------------------------


async def test_error_after_work(start_engine, client) -> None:
    engine = await start_engine()
    await engine.set_fault(EngineErrorAfterWork())
    status, _, text = await ask(client, engine)
    assert (status, json.loads(text)["error"]["code"]) == (500, 500)
    # Without the gate the headers are gone, and the error hides in a 200.
    status, _, text = await ask(client, engine, stream=True)
    assert status == 200
    assert text.startswith('data: {"error"')
    assert text.endswith("data: [DONE]\n\n")
    assert [call.outcome for call in engine.book.calls] == [CallOutcome.FAILED] * 2
    assert all(call.wasted_slot_s == pytest.approx(0.04) for call in engine.book.calls)
    await engine.heal()
    await assert_well(client, engine)


async def test_first_token_gate_turns_an_early_error_into_http_error(start_engine, client) -> None:
    engine = await start_engine(first_token_gate=True)
    await engine.set_fault(EngineErrorAfterWork(status=502))
    status, headers, _ = await ask(client, engine, stream=True)
    assert (status, headers["content-type"].split(";")[0]) == (502, "application/json")


async def test_load_shedding_answers_at_once_and_uses_no_slot(start_engine, client) -> None:
    engine = await start_engine(prefill_s=60.0)
    await engine.set_fault(EngineShed(retry_after_s=7))
    for streaming in (False, True):
        status, headers, _ = await ask(client, engine, stream=streaming)
        assert (status, headers["retry-after"]) == (503, "7")
    totals = engine.book.totals()
    assert (totals.shed, totals.started, totals.slot_s) == (2, 0, 0.0)


async def test_fault_percentage_hits_that_share_of_calls_deterministically(start_engine, client) -> None:
    patterns = []
    for _ in range(2):
        engine = await start_engine(seed=3)
        await engine.set_fault(EngineShed(share=0.3))
        patterns.append([(await ask(client, engine, max_tokens=1))[0] for _ in range(40)])
    assert patterns[0] == patterns[1]
    assert 4 <= patterns[0].count(503) <= 20


@pytest.mark.parametrize("gate", [False, True])
async def test_hang_freezes_all_metrics_but_load(gate, start_engine, client, eventually) -> None:
    engine = await start_engine(slots=8, token_s=0.02, first_token_gate=gate)
    # They have begun and cannot end before the engine hangs, however late we look.
    await engine.set_fault(EngineHangMidStream(after_tokens=4))
    async with in_flight(client, engine, eventually, 2, max_tokens=25) as early:
        await eventually(lambda: all(call.tokens for call in engine._calls.values()))
        await engine.set_fault(EngineHang())
        before = await metrics(client, engine)
        assert before["vllm:num_requests_running"] == 2
        async with in_flight(client, engine, eventually, 3, max_tokens=2) as late:
            # A stream shows its headers unless the gate holds them; a whole answer shows nothing.
            asked = {"url": f"{engine.url}/v1/completions", "json": {"prompt": "x", "stream": True}}
            if gate:
                with pytest.raises(TimeoutError):
                    await client.post(**asked, timeout=SOON)
            else:
                async with client.post(**asked) as response:
                    assert response.status == 200
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(response.content.readany(), SOON_S)
            await eventually(lambda: engine.calls_in_flight == 5)
            assert await load(client, engine) == 5
            assert await metrics(client, engine) == before
            for path in ("/health", "/v1/models"):
                async with client.get(engine.url + path) as response:
                    assert response.status == 200
            await engine.heal()
            assert [status for status, _, _ in await asyncio.gather(*early, *late)] == [200] * 5
    after = await metrics(client, engine)
    # The stream whose client left never made a token.
    assert after["vllm:generation_tokens_total"] == 2 * 25 + 3 * 2
    assert engine.book.totals().stuck_s > 0.15


@pytest.mark.parametrize(("answer", "status"), [("fail", 503), ("slow", None)])
async def test_health_endpoint_reports_a_hang_only_if_configured(answer, status, start_engine, client) -> None:
    engine = await start_engine()
    for fault in (EngineHang(health=answer), EngineBadHealth(health=answer), EngineDrain(health=answer)):
        await engine.set_fault(fault)
        if status is None:
            with pytest.raises(TimeoutError):
                await client.get(f"{engine.url}/health", timeout=SOON)
        else:
            async with client.get(f"{engine.url}/health") as response:
                assert response.status == status
    await engine.set_fault(EngineBadHealth(health=answer))
    await assert_well(client, engine)


async def test_hang_mid_stream(start_engine, client) -> None:
    engine = await start_engine(slots=4)
    await engine.set_fault(EngineHangMidStream(after_tokens=4))
    async with client.post(
        f"{engine.url}/v1/completions", json={"prompt": "x", "stream": True, "max_tokens": 6}
    ) as response:
        text = b""
        while b"t4" not in text:
            text += await response.content.readany()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await response.content.readany()
        assert (await metrics(client, engine))["vllm:num_requests_running"] == 1
        await engine.heal()
        text += await response.content.read()
    assert b"t5" in text
    assert text.endswith(b"[DONE]\n\n")
    await assert_well(client, engine)


async def test_slow_fault_slows_new_and_running_calls(start_engine, client, eventually) -> None:
    engine = await start_engine(prefill_s=0.1)
    await engine.set_fault(EngineSlow(factor=5))
    began = time.monotonic()
    await ask(client, engine, max_tokens=1)
    assert time.monotonic() - began >= 0.5
    (call,) = engine.book.calls
    assert call.slot_s == pytest.approx(0.5)
    call_in_flight = asyncio.create_task(ask(client, engine, max_tokens=1))
    await engine.set_fault(EngineSlow(factor=1000))
    await eventually(lambda: engine.calls_in_flight)
    await engine.heal()
    async with asyncio.timeout(60):
        assert (await call_in_flight)[0] == 200


async def test_port_of_a_crashed_engine_stays_reserved(start_engine, client) -> None:
    engine = await start_engine()
    await engine.set_fault(EngineCrash())
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((engine.config.host, engine.port))
    await engine.heal()
    await assert_well(client, engine)


async def test_crash_resets_calls_and_refuses_new_ones_until_healed(start_engine, client) -> None:
    engine = await start_engine(token_s=1.0)
    port = engine.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = b'{"prompt": "x", "stream": true, "max_tokens": 99}'
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(request))
    writer.write(request)
    assert b"200" in await reader.readline()
    await engine.set_fault(EngineCrash())
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    with pytest.raises(aiohttp.ClientConnectorError):
        await ask(client, engine)
    (call,) = engine.book.calls
    assert (call.outcome, call.reason) == (CallOutcome.FAILED, "crash")
    await engine.heal()
    assert engine.port == port
    # A new process counts from 0, and has its slots free.
    seen = await metrics(client, engine)
    assert seen["vllm:generation_tokens_total"] == seen["vllm:num_requests_running"] == 0
    assert (await ask(client, engine, max_tokens=1))[0] == 200


async def test_reset_mid_stream(start_engine, client) -> None:
    engine = await start_engine()
    await engine.set_fault(EngineResetMidStream(after_tokens=3))
    async with client.post(f"{engine.url}/v1/completions", json={"prompt": "x", "stream": True}) as response:
        text = await response.content.readuntil(b"t3")
        with pytest.raises(aiohttp.ClientError):
            text += await response.content.read()
    assert b"t3" in text
    assert b"t4" not in text
    with pytest.raises(aiohttp.ClientError):
        await ask(client, engine)
    assert [(call.outcome, call.tokens_generated) for call in engine.book.calls] == [(CallOutcome.FAILED, 3)] * 2
    await engine.heal()
    await assert_well(client, engine)


@pytest.mark.parametrize("inner", [EngineShed(), EngineCrash(), EngineHang()])
async def test_flap_alternates_between_fault_and_health(inner, start_engine, client) -> None:
    engine = await start_engine(prefill_s=0.0)
    await engine.set_fault(EngineFlap(fault=inner, period_s=0.6))
    pattern: list[bool] = []
    deadline = time.monotonic() + 60
    # It begins bad; who asks late may come upon it good.
    while pattern[-4:] != [False, True, False, True]:
        assert time.monotonic() < deadline, pattern
        try:
            good = (await ask(client, engine, timeout=SOON, max_tokens=1))[0] == 200
        except (aiohttp.ClientError, TimeoutError):
            good = False
        if not pattern or pattern[-1] != good:
            pattern.append(good)
    await engine.heal()
    await assert_well(client, engine)


async def test_drain_finishes_running_calls_and_refuses_new_ones(start_engine, client, eventually) -> None:
    engine = await start_engine(token_s=0.01)
    await engine.set_fault(EngineHangMidStream(after_tokens=4))
    async with in_flight(client, engine, eventually, 2, max_tokens=30, stream=True) as early:
        await engine.set_fault(EngineDrain())
        assert (await ask(client, engine))[0] == 503
        for status, _, text in await asyncio.gather(*early):
            assert status == 200
            assert text.endswith("[DONE]\n\n")
    await engine.heal()
    await assert_well(client, engine)


# -- SIGTERM ------------------------------------------------------------------------------------------------------


async def test_sigterm_by_default_hangs_running_streams(start_engine, client, eventually) -> None:
    # It listens for a while; who was kept from asking meanwhile finds the port closed, and tries another engine.
    for listens_s in (0.3, 5.0, 30.0):
        engine = await start_engine(token_s=0.01)
        await engine.set_fault(EngineHangMidStream(after_tokens=4))
        async with in_flight(client, engine, eventually, 2, max_tokens=50, stream=True) as early:
            await engine.set_fault(EngineSigterm(listens_s=listens_s))
            try:
                status, _, text = await ask(client, engine)
                async with client.get(f"{engine.url}/health") as response:
                    assert response.status == 200
            except aiohttp.ClientError:
                continue
            assert (status, json.loads(text)["error"]["message"]) == (
                500,
                "cannot schedule new futures after shutdown",
            )
            await eventually(lambda engine=engine: not engine.listening)
            with pytest.raises(aiohttp.ClientError):
                await asyncio.wait_for(ask(client, engine), 60)
            done, _ = await asyncio.wait(early, timeout=0.2)
            assert not done
            assert not engine.terminated.is_set()
        async with asyncio.timeout(60):
            await engine.terminated.wait()
        assert engine.book.totals().aborted == 2
        await engine.heal()
        await assert_well(client, engine)
        return
    pytest.fail("it never listened")


async def test_sigterm_with_shutdown_timeout_finishes_running_calls(start_engine, client, eventually) -> None:
    for listens_s in (0.06, 5.0, 30.0):
        engine = await start_engine(token_s=0.01)
        await engine.set_fault(EngineHangMidStream(after_tokens=4))
        async with in_flight(client, engine, eventually, 3, max_tokens=30, stream=True) as early:
            await engine.set_fault(EngineSigterm(shutdown_timeout_s=100, listens_s=listens_s))
            try:
                status = (await ask(client, engine))[0]
            except aiohttp.ClientError:
                continue
            assert status == 500
            assert all(text.endswith("[DONE]\n\n") for _, _, text in await asyncio.gather(*early))
        async with asyncio.timeout(60):
            await engine.terminated.wait()
        assert not engine.listening
        return
    pytest.fail("it never listened")


# -- the control port ---------------------------------------------------------------------------------------------


async def test_control_api_sets_faults_and_shows_the_log(start_engine, client) -> None:
    engines = [await start_engine(), await start_engine()]
    control = ControlServer(engines)
    await control.start()
    fault_url = f"{control.engine_url('engine-1')}/fault"
    try:
        async with client.put(fault_url, json={"kind": "crash"}) as response:
            assert (response.status, await response.json()) == (200, {"kind": "crash"})
        async with client.get(control.url) as response:
            assert [(e["name"], e["listening"]) for e in await response.json()] == [
                ("engine-0", True),
                ("engine-1", False),
            ]
        async with client.delete(fault_url) as response:
            assert response.status == 200
        async with client.get(fault_url) as response:
            assert await response.json() is None
        for _ in range(3):
            await ask(client, engines[1], max_tokens=1)
        book_url = f"{control.engine_url('engine-1')}/book"
        async with client.get(book_url, params={"calls": "2"}) as response:
            book = await response.json()
        assert book["totals"]["finished"] == 3
        assert [call["outcome"] for call in book["calls"]] == ["finished"] * 2
        for method, url, data, status in [
            ("PUT", fault_url, b'{"kind": "explode"}', 400),
            ("GET", f"{control.url}/nosuch/book", None, 404),
            ("GET", f"{book_url}?calls=many", None, 400),
        ]:
            async with client.request(method, url, data=data) as response:
                assert response.status == status
    finally:
        await control.stop()
