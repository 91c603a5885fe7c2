"""Each fault of a simulated engine, pulled as a lab pulls it: a client feels it, and nothing of it stays."""

import asyncio
import re
from collections.abc import Awaitable, Callable

import aiohttp
import pytest

from chaos.fake_engine import FakeEngine
from chaos.fake_engine.engine_faults import engine_fault_object
from chaos.fake_engine.routing_sidecar import KV_PATH, PREFILLER_HEADER
from chaos.faults.crash import CrashFault
from chaos.faults.engine_error import EngineErrorFault
from chaos.faults.fault import Fault
from chaos.faults.flap import FlapFault
from chaos.faults.gray_failure import GrayFailureFault
from chaos.faults.hang import HangFault
from chaos.faults.hang_mid_stream import HangMidStreamFault
from chaos.faults.kv_cache_full import KvCacheFullFault
from chaos.faults.kv_transfer_stall import KvTransferStallFault
from chaos.faults.lying_health import LyingHealthFault
from chaos.faults.pacing_fault import PacingFault
from chaos.faults.reset_mid_stream import ResetMidStreamFault
from chaos.faults.rolling_restart import RollingRestartFault
from chaos.faults.shed import ShedFault
from chaos.faults.slow import SlowFault
from chaos.faults.zone_loss import ZoneLossFault
from chaos.lab.injectors.engine_injector import EngineInjector
from chaos.lab.lab_handles import InjectionError
from tests.chaos.faults.small_lab import InjectedFault, controlled, engine_site, site, until

PREFILL_S, TOKEN_S = 0.01, 0.002
TOKENS = 12
# A connection that is kept would be reset where a new one is refused.
CLOSE = {"connection": "close"}
# Forty times an answer's duration, so that slow answers on a busy machine do not count as hung.
SOON_S = 1.2
SOON = aiohttp.ClientTimeout(total=SOON_S)
Symptom = Callable[[aiohttp.ClientSession, FakeEngine], Awaitable[bool]]


async def ask(client, engine: FakeEngine, *, tokens: int = TOKENS, streaming: bool = False, soon: bool = False):
    """Status and body of one completion."""
    body = {"prompt": "x", "max_tokens": tokens, "stream": streaming}
    limit = {"timeout": SOON} if soon else {}
    async with client.post(f"{engine.url}/v1/completions", json=body, headers=CLOSE, **limit) as answer:
        return answer.status, await answer.text()


async def health(client, engine: FakeEngine) -> int:
    async with client.get(f"{engine.url}/health") as answer:
        return answer.status


async def well(client, engine: FakeEngine) -> bool:
    """Complete answers at the usual cost, and /health with 200."""
    for streaming in (False, True):
        status, text = await ask(client, engine, streaming=streaming)
        if status != 200 or f"t{TOKENS}" not in text:
            return False
        # The simulated GPU's own time, which no load of the machine stretches.
        if engine.book.calls[-1].slot_s != pytest.approx(PREFILL_S + (TOKENS - 1) * TOKEN_S):
            return False
    return await health(client, engine) == 200


async def fails_after_the_work(client, engine) -> bool:
    status, _ = await ask(client, engine)
    return status == 500 and engine.book.calls[-1].slot_s > 0


async def refuses_at_once(client, engine) -> bool:
    status, _ = await ask(client, engine)
    return status == 503 and engine.book.calls[-1].started_at_s is None


async def says_nothing_but_looks_well(client, engine) -> bool:
    with pytest.raises(TimeoutError):
        await ask(client, engine, soon=True)
    return await health(client, engine) == 200


async def stops_after_four_tokens(client, engine) -> bool:
    body = {"prompt": "x", "max_tokens": TOKENS, "stream": True}
    async with client.post(f"{engine.url}/v1/completions", json=body) as answer:
        await answer.content.readuntil(b"t4")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(answer.content.read(), SOON_S)
    return True


async def takes_four_times_as_long(client, engine) -> bool:
    await ask(client, engine)
    usual = PREFILL_S + (TOKENS - 1) * TOKEN_S
    return engine.book.calls[-1].slot_s == pytest.approx(4 * usual)


async def drips_three_at_a_time(client, engine) -> bool:
    paced = PREFILL_S + (TOKENS - 1) * 4 * TOKEN_S
    # What is sent some milliseconds late has the next tokens in it: asked again until it is seen as it is meant.
    for _ in range(100):
        _, text = await ask(client, engine, streaming=True)
        chunks = [len(re.findall(r" t\d+", line)) for line in text.splitlines() if " t" in line]
        if engine.book.calls[-1].slot_s != pytest.approx(paced) or f"t{TOKENS}" not in text:
            return False
        # The first token comes alone, and in its time; the others by three, and the rest of them.
        if chunks == [1, 3, 3, 3, 2]:
            return True
    return False


async def refuses_connections(client, engine) -> bool:
    with pytest.raises(aiohttp.ClientConnectorError):
        await ask(client, engine)
    return True


async def preempts(client, engine) -> bool:
    call = asyncio.create_task(ask(client, engine, tokens=4000))
    await until(lambda: _true(engine.calls_in_flight))
    async with client.get(f"{engine.url}/metrics") as answer:
        text = await answer.text()
    call.cancel()
    await asyncio.wait([call])
    await until(lambda: _true(not engine.calls_in_flight))
    full = re.search(r"vllm:kv_cache_usage_perc\S* 1\.0", text)
    return bool(full) and await takes_four_times_as_long(client, engine)


async def cuts_after_three_tokens(client, engine) -> bool:
    with pytest.raises(aiohttp.ClientError):
        await ask(client, engine, streaming=True)
    return engine.book.calls[-1].tokens_sent == 3


async def serves_but_looks_ill(client, engine) -> bool:
    status, _ = await ask(client, engine)
    return status == 200 and await health(client, engine) == 503


async def looks_well_but_serves_nobody(client, engine) -> bool:
    probe, _ = await ask(client, engine, tokens=1)
    work, _ = await ask(client, engine, tokens=2)
    return (probe, work, await health(client, engine)) == (200, 500, 200)


async def comes_and_goes(client, engine) -> bool:
    seen = set()

    async def both() -> bool:
        try:
            seen.add((await ask(client, engine))[0])
        except aiohttp.ClientError:
            seen.add("dead")
        return {200, "dead"} <= seen

    await until(both)
    return True


async def _true(value: object) -> object:
    return value


BITES: list[tuple[Fault, Symptom]] = [
    (EngineErrorFault(), fails_after_the_work),
    (ShedFault(), refuses_at_once),
    (HangFault(), says_nothing_but_looks_well),
    (HangMidStreamFault(), stops_after_four_tokens),
    (SlowFault(), takes_four_times_as_long),
    (PacingFault(factor=4, burst=3), drips_three_at_a_time),
    (CrashFault(), refuses_connections),
    (KvCacheFullFault(), preempts),
    (ResetMidStreamFault(), cuts_after_three_tokens),
    (LyingHealthFault(), serves_but_looks_ill),
    (GrayFailureFault(), looks_well_but_serves_nobody),
    (FlapFault(fault=CrashFault(), period="200ms"), comes_and_goes),
    (ZoneLossFault(), refuses_connections),
]


@pytest.mark.parametrize(("fault", "symptom"), BITES, ids=[fault.kind for fault, _ in BITES])  # type: ignore[attr-defined]
async def test_engine_fault_takes_effect_and_heals(fault: Fault, symptom: Symptom, start_engine, client) -> None:
    engine = await start_engine(prefill_s=PREFILL_S, token_s=TOKEN_S, slots=4)
    async with controlled(engine) as place:
        struck = InjectedFault(site(client, place), fault, place.name)
        assert await well(client, engine)
        assert not await _always_bites(symptom, client, engine)
        await struck.pull()
        assert await symptom(client, engine)
        await struck.release()
        assert await well(client, engine)
        # Once more does no harm, whatever became of the first.
        await struck.release()
        assert await well(client, engine)


async def _always_bites(symptom: Symptom, client, engine: FakeEngine) -> bool:
    """A machine that stands still for a second looks like a hang once, and not each time."""
    for _ in range(5):
        if not await _bites(symptom, client, engine):
            return False
    return True


async def _bites(symptom: Symptom, client, engine: FakeEngine) -> bool:
    """Whether a healthy engine would show it too; a symptom that needs no fault proves nothing."""
    if symptom is comes_and_goes:
        return False
    try:
        return await symptom(client, engine)
    except (pytest.fail.Exception, asyncio.IncompleteReadError):
        return False


async def test_restart_without_drain_hangs_in_flight_requests(start_engine, client, eventually) -> None:
    engine = await start_engine(prefill_s=PREFILL_S, token_s=0.05, slots=4)
    async with controlled(engine) as place:
        struck = InjectedFault(site(client, place), RollingRestartFault(drain=False), place.name)
        stream = asyncio.create_task(ask(client, engine, tokens=1000, streaming=True))
        await eventually(lambda: engine.calls_in_flight)
        await struck.pull()
        await eventually(lambda: not engine.listening)
        assert not stream.done()
        await struck.release()
        with pytest.raises(aiohttp.ClientError):
            await stream
        assert (await ask(client, engine))[0] == 200


async def test_newest_fault_wins_until_it_is_healed(start_engine, client) -> None:
    engine = await start_engine()
    async with controlled(engine) as place:
        lever = EngineInjector(site(client, place))
        (older,), (newer,) = ShedFault().actions(place.name), SlowFault().actions(place.name)
        await lever.inject(older)
        await lever.inject(newer)
        assert engine.fault == SlowFault().engine_fault()
        await lever.revert(newer)
        assert engine.fault == ShedFault().engine_fault()
        await lever.revert(older)
        assert engine.fault is None


async def test_refused_engine_fault_has_a_reason(client) -> None:
    real = engine_site("e0", 1)
    (pull,) = HangFault().actions("e0")
    assert "real engine" in EngineInjector(site(client, real)).refusal(pull)
    assert "unknown engine e0" in EngineInjector(site(client)).refusal(pull)
    deaf = engine_site("e0", 1, control="http://127.0.0.1:9/_fake/e0")
    with pytest.raises(InjectionError, match="PUT"):
        await EngineInjector(site(client, deaf)).inject(pull)


def test_retry_after_header_is_integer_seconds() -> None:
    assert (
        engine_fault_object(ShedFault.model_validate({"retryAfter": "1200ms"}).engine_fault())["retry_after_s"]
        == 2
    )


async def test_stalled_transfer_holds_decode_engines_and_fills_the_prefill_engine(
    start_engine, client, eventually
) -> None:
    prompt = "word " * 300
    first = await start_engine(
        prefill_s=PREFILL_S, token_s=TOKEN_S, slots=4, kv_cache_tokens=1, max_model_len=1024
    )
    decode = await start_engine(prefill_s=PREFILL_S, token_s=TOKEN_S, slots=4, routing_sidecar=True)
    headers = {**CLOSE, PREFILLER_HEADER: f"127.0.0.1:{first.port}"}

    async def answered() -> int:
        body = {"prompt": prompt, "max_tokens": TOKENS}
        async with client.post(f"{decode.url}/v1/completions", json=body, headers=headers) as answer:
            return answer.status

    async def page(engine: FakeEngine, name: str) -> float:
        async with client.get(f"{engine.url}/metrics") as answer:
            (found,) = re.findall(rf"^{name}{{[^}}]*}} (\S+)$", await answer.text(), re.MULTILINE)
        return float(found)

    async with controlled(first) as place:
        struck = InjectedFault(site(client, place), KvTransferStallFault(), place.name)
        assert await answered() == 200
        assert await page(first, "vllm:kv_cache_usage_perc") == 0, "the KV cache is freed when it is fetched"
        await struck.pull()
        # A prompt takes 376 tokens of 1024: the third has no room, and gets no token.
        calls = [asyncio.create_task(answered()) for _ in range(3)]
        await until(lambda: _at_least(page(decode, "vllm:num_requests_waiting"), 2))
        await until(lambda: _at_least(page(first, "vllm:num_requests_running"), 1))
        assert decode.calls_in_flight == 2
        assert await page(first, "vllm:kv_cache_usage_perc") > 0.7
        await struck.release()
        await eventually(lambda: first.calls_in_flight == 0)
        # The caches were freed, not sent: vLLM refuses what it cannot load.
        assert sorted([await one for one in calls]) == [200, 500, 500]
        assert await answered() == 200


async def test_kv_cache_that_none_fetches_is_freed_after_the_time_limit(start_engine, client) -> None:
    engine = await start_engine(prefill_s=0.0, token_s=TOKEN_S, kv_keep_s=0.2)
    body = {"prompt": "word", "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    async with client.post(f"{engine.url}/v1/completions", json=body) as answer:
        call = (await answer.json())["kv_transfer_params"]["remote_request_id"]

    async def used() -> bool:
        async with client.get(f"{engine.url}/metrics") as found:
            return "kv_cache_usage_perc" in (text := await found.text()) and not re.search(
                r"vllm:kv_cache_usage_perc\S* 0\.0$", text, re.MULTILINE
            )

    assert await used()
    await until(lambda: _not(used()))
    async with client.get(f"{engine.url}{KV_PATH}{call}") as answer:
        assert answer.status == 404


async def _at_least(value: Awaitable[float], limit: float) -> bool:
    return await value >= limit


async def _not(value: Awaitable[bool]) -> bool:
    return not await value
