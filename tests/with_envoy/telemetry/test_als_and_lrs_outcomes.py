"""A real Envoy's reports of each way a call can end, and the recorded outcomes.

One test per group of rows of the table in ``outcomes``: when an Envoy of another version reports differently,
this is where it shows.
"""

import asyncio
import time
from typing import Any

import pytest

from chaos.fake_engine import engine_faults
from tests.with_envoy.telemetry.conftest import RecordedOutcome, until
from xds_server.model.pool_traffic import STALE_S
from xds_server.telemetry.attempt_outcome import AttemptOutcome

pytestmark = pytest.mark.envoy

SUCCESS, FAILURE, NEUTRAL, NOT_SENT = list(AttemptOutcome)[:4]


def outcomes(told: list[RecordedOutcome]) -> list[AttemptOutcome]:
    return [one.outcome for one in told]


async def test_als_outcome_of_each_response_status(rig):
    assert await rig.call("one-plain") == [RecordedOutcome(pool="one", engine="e0", outcome=SUCCESS)]
    await rig.engines["e0"].set_fault(engine_faults.EngineErrorAfterWork())
    assert outcomes(await rig.call("one-plain")) == [FAILURE]
    await rig.engines["e0"].set_fault(engine_faults.EngineShed())
    assert outcomes(await rig.call("one-plain")) == [NEUTRAL]
    assert outcomes(await rig.call("odd-busy")) == [NEUTRAL]
    assert outcomes(await rig.call("odd-missing")) == [NEUTRAL]
    assert rig.statuses == [200, 500, 503, 429, 404]


async def test_als_outcome_of_broken_connections(rig):
    assert outcomes(await rig.call("dead-plain")) == [FAILURE]
    for how in ("reset", "close", "rubbish", "half"):
        assert await rig.call(f"odd-{how}") == [RecordedOutcome(pool="odd", engine="odd", outcome=FAILURE)], how


async def test_als_outcome_of_timeouts(rig):
    await rig.engines["e0"].set_fault(engine_faults.EngineHang())
    assert outcomes(await rig.call("one-per-try")) == [FAILURE]
    # Headers come at once, and then nothing.
    silent = await rig.call("one-per-try-idle", stream=True)
    assert silent == [RecordedOutcome(pool="one", engine="e0", outcome=FAILURE, streaming=True)]
    # The route's own limits: the try says nothing of them, the listener does.
    assert outcomes(await rig.call("one-timeout", told=2)) == [NEUTRAL, FAILURE]
    assert outcomes(await rig.call("one-idle", told=2, stream=True)) == [NEUTRAL, FAILURE]


async def test_als_client_disconnect_does_not_count_as_engine_failure(rig):
    await rig.engines["e0"].set_fault(engine_faults.EngineHang())

    def asked() -> bool:
        return bool(rig.engines["e0"].calls_in_flight)

    assert outcomes(await rig.call("one-plain", leaves=asked)) == [NEUTRAL]
    await until(lambda: not asked(), "the engine knows")
    assert outcomes(await rig.call("one-plain", leaves=asked, stream=True)) == [NEUTRAL]
    assert rig.statuses == []


async def test_als_shed_requests_count_as_arrivals(rig):
    for pool in ("full", "empty", "shut"):
        proxy = None
        # Rates are of the last two seconds: who had no turn for so long asks again.
        while proxy is None or not proxy.arrivals_per_s:
            assert len(rig.statuses) < 60
            assert outcomes(await rig.call(f"{pool}-plain")) == [NOT_SENT]
            if known := rig.traffic(pool):
                (proxy,) = known.proxies.values()
        assert proxy.arrivals_per_s == proxy.shed_per_s
    assert set(rig.statuses) == {503}


async def test_caller_headers_cannot_hide_a_shed_request(rig):
    mine = {"x-envoy-attempt-count": "1"}
    assert outcomes(await rig.call("shut-plain", headers=mine)) == [NOT_SENT]
    assert await rig.call("one-plain", headers={"x-envoy-attempt-count": "7"}) == [
        RecordedOutcome(pool="one", engine="e0", outcome=SUCCESS)
    ]


async def test_als_retries_are_counted_separately(rig):
    seen: set[tuple[AttemptOutcome, ...]] = set()
    while len(seen) < 2:  # the first pick is the dead engine, or it is not; never the one has one in 2^60
        assert len(rig.statuses) < 60, seen
        before = len(rig.book.told)
        await rig.call("two-retried")
        await until(lambda: rig.book.told[-1].outcome is SUCCESS, "the last try ends")
        told = rig.book.told[before:]
        tried = [(one.engine, one.first) for one in told]
        assert tried in ([("gone", True), ("e1", False)], [("e1", True)])
        seen.add(tuple(outcomes(told)))
    assert seen == {(SUCCESS,), (FAILURE, SUCCESS)}


def settled(told: list[RecordedOutcome]) -> bool:
    return {one.engine for one in told} == {"e0", "e1"} or (told[0].engine == "e1" and told[0].first)


async def test_als_hedged_attempts_do_not_count_as_failures(rig):
    await rig.engines["e0"].set_fault(engine_faults.EngineSlow(factor=20))
    wanted = {
        RecordedOutcome(pool="hedge", engine="e0", outcome=NEUTRAL),
        RecordedOutcome(pool="hedge", engine="e1", outcome=SUCCESS, first=False),
    }
    told: list[RecordedOutcome] = []
    asked = 0
    # Until the slow one is picked first, and the other one is not slow as well: this machine may be busy.
    while set(told) != wanted or len(told) != len(wanted):
        assert asked < 60, told
        asked += 1
        before = len(rig.book.told)
        await rig.call("hedge-on")
        # A later try on e1 runs next to another one.
        await until(lambda: rig.book.told[before:] and settled(rig.book.told[before:]), "both tries end")  # noqa: B023
        told = rig.book.told[before:]
        assert FAILURE not in outcomes(told)
    assert FAILURE not in outcomes(rig.book.told)


async def test_als_engine_behind_an_internal_listener_is_identified(rig):
    assert await rig.call("cut-plain") == [RecordedOutcome(pool="cut", engine="e0", outcome=SUCCESS)]
    await rig.engines["e0"].set_fault(engine_faults.EngineHang())
    held = asyncio.create_task(rig.call("cut-plain"))

    def in_flight() -> Any:
        traffic = rig.traffic("cut")
        return traffic and traffic.engines["e0"].in_flight

    await until(lambda: in_flight() == 1, "the load report shows the request")
    held.cancel()


async def test_lrs_reports_hanging_requests_until_the_stream_ends(rig):
    await rig.call("one-plain")
    await rig.engines["e0"].set_fault(engine_faults.EngineHang())
    held = [asyncio.create_task(rig.call("one-plain")) for _ in range(3)]

    def in_flight() -> Any:
        traffic = rig.traffic("one")
        return traffic and traffic.engines["e0"].in_flight

    await until(lambda: in_flight() == 3, "three requests in flight")
    assert rig.traffic("one").proxies["envoy-under-test"].in_flight_on == {"e0": 3}
    await rig.stop_server()
    last_s = rig.telemetry.traffic(0.0)["one"].heard_at_s
    assert rig.telemetry.traffic(last_s + 1.0)["one"].engines["e0"].in_flight == 3
    assert rig.telemetry.traffic(last_s + STALE_S + 2.0) == {}
    for one in held:
        one.cancel()


async def test_als_sampling_percent_is_a_live_runtime_value(rig):
    await rig.set_runtime("switchgear.access_log.percent", 0)
    for _ in range(3):
        await rig.call("one-plain", told=0)
    await rig.set_runtime("switchgear.access_log.percent", 100)
    assert len(await rig.call("one-plain")) == 1
    assert len(rig.book.told) == 1


async def test_failed_requests_are_recorded_by_request_id(rig):
    await rig.engines["e0"].set_fault(engine_faults.EngineErrorAfterWork())
    names = []
    for route in ("one-plain", "one-timeout"):
        if route == "one-timeout":
            await rig.engines["e0"].set_fault(engine_faults.EngineHang())
        body = {"model": "fake-model", "prompt": "x", "max_tokens": 4}
        async with rig.client.post(f"{rig.url}/{route}", json=body) as answer:
            names.append(answer.headers["x-request-id"])

    def known() -> tuple[str, ...]:
        return rig.book.failed_requests("one", "e0", time.monotonic())

    await until(lambda: len(known()) == 2, "both failures")
    assert known() == (names[1], names[0])


async def test_als_times_of_streams_and_retries(rig):
    slow = rig.engines["e0"]
    await slow.set_fault(engine_faults.EngineSlow(factor=20))  # prefill 0.2 s, 0.1 s for each token
    began_s = time.monotonic()
    await rig.call("one-per-try-idle", stream=True)
    took_s = time.monotonic() - began_s
    latency = rig.book.latency()["one"]["one-per-try-idle"]
    whole, first_byte = latency.durations["success"], latency.first_bytes["success"]
    assert 0.3 < whole.sum_s <= took_s
    assert 0.0 < first_byte.sum_s < whole.sum_s - 0.1, "headers or the first token, not the end"


async def test_als_time_of_a_retry_includes_the_failed_tries(rig):
    await rig.engines["e0"].set_fault(engine_faults.EngineErrorAfterWork(status=503))
    began_s = time.monotonic()
    assert outcomes(await rig.call("one-retried", told=3, tokens=40)) == [NEUTRAL] * 3
    took_s = time.monotonic() - began_s
    # Tries that counted from their own start would add up to less than the request took.
    assert rig.book.latency()["one"]["one-retried"].durations["shed"].sum_s > 1.5 * took_s
