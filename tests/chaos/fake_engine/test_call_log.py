"""The book adds up whatever happens to the calls."""

import asyncio
import contextlib
import random

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.fake_engine.call_log import CallLog, CallOutcome, CallRecord
from chaos.fake_engine.engine_faults import (
    EngineCrash,
    EngineErrorAfterWork,
    EngineHang,
    EngineHangMidStream,
    EngineResetMidStream,
    EngineShed,
    EngineSlow,
)


def record(outcome: CallOutcome, slot_s: float, tokens: int) -> CallRecord:
    return CallRecord(
        request_id="r",
        attempt=1,
        path="/v1/completions",
        streaming=False,
        outcome=outcome,
        reason="",
        arrived_at_s=0.0,
        closed_at_s=1.0,
        started_at_s=0.0 if slot_s else None,
        slot_s=slot_s,
        stuck_s=0.0,
        tokens_asked=16,
        tokens_generated=tokens,
        tokens_sent=0,
    )


@given(
    closed=st.lists(st.tuples(st.sampled_from(CallOutcome), st.floats(0, 9), st.integers(0, 99))),
    still_open=st.integers(0, 5),
)
def test_every_call_has_one_state_and_every_second_one_total(
    closed: list[tuple[CallOutcome, float, int]], still_open: int
) -> None:
    book = CallLog()
    for outcome, slot_s, tokens in closed:
        book.open()
        book.close(record(outcome, slot_s, tokens))
    for _ in range(still_open):
        book.open()
    totals = book.totals()
    assert totals.in_flight == still_open
    assert totals.arrived == (totals.shed + totals.finished + totals.failed + totals.aborted + totals.in_flight)
    useful_s = sum(r.slot_s for r in book.calls if r.outcome is CallOutcome.FINISHED)
    assert totals.slot_s == pytest.approx(totals.wasted_slot_s + useful_s)
    assert totals.tokens_wasted <= totals.tokens_generated


async def test_call_ledger_adds_up_after_every_kind_of_ending(start_engine, client, eventually) -> None:
    engine = await start_engine(slots=3)
    rng = random.Random(1)
    answered = 0

    async def call(number: int, longest_s: float) -> None:
        nonlocal answered
        body = {"prompt": "x", "max_tokens": rng.randint(1, 30), "stream": rng.random() < 0.5}
        limit = aiohttp.ClientTimeout(total=rng.choice([0.02, 0.05, longest_s]))
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with client.post(
                f"{engine.url}/v1/completions",
                json=body,
                timeout=limit,
                headers={"x-request-id": str(number)},
            ) as r:
                text = await r.read()
                whole = b"[DONE]" in text or b'"usage"' in text
                answered += r.status == 200 and whole and b'"error"' not in text

    faults = [
        None,
        EngineErrorAfterWork(share=0.5),
        EngineShed(share=0.5),
        EngineHangMidStream(),
        EngineResetMidStream(),
    ]
    faults += [EngineHang(), EngineSlow(factor=3), EngineCrash()]
    # Who is patient meets every end but a hang's, and who is not that one: on a busy machine not in every round.
    for _ in range(10):
        for round_number, fault in enumerate(faults):
            hangs = isinstance(fault, EngineHang | EngineHangMidStream)
            await engine.set_fault(EngineHang() if isinstance(fault, EngineCrash) else fault)
            calls = [asyncio.create_task(call(100 * round_number + i, 0.4 if hangs else 60.0)) for i in range(20)]
            if isinstance(fault, EngineCrash):
                await eventually(lambda: engine.calls_in_flight)
                await engine.set_fault(fault)
            await asyncio.gather(*calls)
            await engine.heal()
        await eventually(lambda: engine.calls_in_flight == 0)
        totals = engine.book.totals()
        assert totals.in_flight == 0
        assert totals.arrived == totals.shed + totals.finished + totals.failed + totals.aborted
        if min(totals.shed, totals.finished, totals.failed, totals.aborted, totals.stuck_s) > 0:
            break
    assert min(totals.shed, totals.finished, totals.failed, totals.aborted) > 0
    assert 0 < totals.wasted_slot_s < totals.slot_s
    assert totals.stuck_s > 0
    # A client may leave in the instant in which its answer is already written; never the other way round.
    assert totals.finished >= answered
