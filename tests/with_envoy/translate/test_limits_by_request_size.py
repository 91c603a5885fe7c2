"""A request's estimated tokens set its time limits, retries and hedges, at a real Envoy."""

import asyncio
import time
from typing import Any

import pytest

from chaos.fake_engine import EngineHang, EngineShed
from tests.eventually import eventually
from tests.with_envoy.translate.test_route_match_per_try_and_hedging import pool, resilience, route, route_counts
from xds_server.decide.decisions import HedgeDecision, TimeLimits, TokenTimeLimit
from xds_server.translate.request_fields import TOTAL_HEADER, TRY_HEADER
from xds_server.translate.request_sizes import full_key

pytestmark = pytest.mark.envoy

LIMIT_S = 60.0

BY_TOKENS = "timeouts: {nonStreaming: {total: 40s, byTokens: {enabled: true, min: 300ms}}}"


def limits(per_token_s: float, *, wait_s: float = 0.0) -> dict[str, Any]:
    """Decisions with this time for each token, and no other limit of a try."""
    return {
        "limits": TimeLimits(
            first_token_s=None,
            between_tokens_s=None,
            stream_total_s=900.0,
            per_try_s=None,
            total_s=40.0,
            reason="",
            since_s=0.0,
            by_tokens=TokenTimeLimit(wait_s=wait_s, per_token_s=per_token_s),
        )
    }


async def hung_for_s(one: Any, **request: Any) -> float:
    """How long a request takes until it ends with 504."""
    began = time.monotonic()
    answer = await one.complete(**request)
    assert (answer.status, answer.headers["x-switchgear-reason"]) == (504, "timeout")
    return time.monotonic() - began


async def test_time_limit_grows_with_the_tokens_of_the_request(rig, engine):
    only = await engine()
    await only.set_fault(EngineHang())
    one = await rig(
        pool("p", only) + route("r", "p") + resilience("default", f"{{retries: {{attempts: 0}}, {BY_TOKENS}}}"),
        pools={"p": limits(0.004)},
    )
    # Envoy counts from the time of its last turn.
    assert 0.28 <= await hung_for_s(one, max_tokens=1) < 3.9
    # 4 ms for each of 1 000 tokens, and of 20 of the body.
    assert await hung_for_s(one, max_tokens=1_000) >= 4.0


async def test_try_is_repeated_after_its_own_limit_and_all_tries_end_in_time(rig, engine):
    engines = [await engine() for _ in range(2)]
    for each in engines:
        await each.set_fault(EngineHang())
    one = await rig(
        pool("p", *engines)
        + route("r", "p")
        + resilience("default", f"{{retries: {{attempts: 1, retryAfter: {{honour: false}}}}, {BY_TOKENS}}}"),
        pools={"p": limits(0.001)},
        ceilings={"p": (100, 100)},
    )
    # Two tries of 0.3 s, and a pause of at most 0.25 s.
    assert 0.6 <= await hung_for_s(one, max_tokens=1) < 20.0
    assert [each.book.totals().arrived for each in engines] == [1, 1]


async def test_long_request_outlives_the_limit_of_short_ones(rig, engine):
    only = await engine(token_s=0.002)
    one = await rig(
        pool("p", only) + route("r", "p") + resilience("default", f"{{retries: {{attempts: 0}}, {BY_TOKENS}}}"),
        pools={"p": limits(0.02)},
    )
    assert (await one.complete(max_tokens=500)).status == 200
    assert only.book.totals().finished == 1


async def test_request_without_a_limit_of_tokens_has_the_usual_time(rig, engine):
    only = await engine(prefill_s=1.0)
    one = await rig(
        pool("p", only) + route("r", "p") + resilience("default", f"{{retries: {{attempts: 0}}, {BY_TOKENS}}}"),
        pools={"p": limits(0.000_001)},
    )
    assert (await one.complete(max_tokens=None)).status == 200
    assert (await one.complete(max_tokens=1)).status == 504
    # What callers send for it is removed, by any route.
    assert (await one.complete(max_tokens=None, headers={TOTAL_HEADER: "1", TRY_HEADER: "1"})).status == 200


async def test_learned_time_changes_routes_only(rig, engine):
    only = await engine()
    await only.set_fault(EngineHang())
    one = await rig(
        pool("p", only) + route("r", "p") + resilience("default", f"{{retries: {{attempts: 0}}, {BY_TOKENS}}}"),
        pools={"p": limits(0.1)},
        dynamic_routes=True,
    )
    held = asyncio.create_task(one.complete(max_tokens=200))  # 20 s and more
    await eventually(lambda: only.calls_in_flight == 1, "the first request runs", LIMIT_S)
    await one.decide(**limits(0.001))
    assert await hung_for_s(one, max_tokens=200) < 19.0
    assert not held.done()
    held.cancel()


LARGE = "retries: {large: {tokensAbove: 1000, attempts: 1}, retryAfter: {honour: false}}"


async def test_large_requests_get_fewer_tries_and_none_without_spare_capacity(rig, engine):
    engines = [await engine() for _ in range(4)]
    for each in engines:
        await each.set_fault(EngineShed(retry_after_s=None))
    one = await rig(
        pool("p", *engines) + route("r", "p") + resilience("default", f"{{{LARGE}}}"), ceilings={"p": (100, 100)}
    )

    async def tries(max_tokens: int) -> int:
        before = sum(each.book.totals().shed for each in engines)
        assert (await one.complete(max_tokens=max_tokens)).status == 503
        return sum(each.book.totals().shed for each in engines) - before

    assert [await tries(1), await tries(2_000)] == [4, 2]
    await one.set_runtime({full_key("p"): 100})
    assert [await tries(1), await tries(2_000)] == [4, 1]
    await one.set_runtime({full_key("p"): 0})
    assert await tries(2_000) == 2
    assert set(await route_counts(one)) == {
        "r.non-streaming",
        "r.non-streaming.above-1000",
        "r.non-streaming.above-1000-full",
    }


async def test_large_request_that_no_engine_has_seen_is_repeated_without_spare_capacity(rig, engine):
    engines = [await engine() for _ in range(2)]
    one = await rig(
        pool("p", *engines) + route("r", "p") + resilience("default", f"{{{LARGE}}}"), ceilings={"p": (100, 100)}
    )
    await one.set_runtime({full_key("p"): 100})
    await engines[0].stop()
    statuses = [(await one.complete(max_tokens=2_000)).status for _ in range(20)]
    assert statuses == [200] * 20


@pytest.mark.parametrize("stream", [True, False])
async def test_only_short_requests_are_hedged(rig, engine, stream):
    engines = [await engine(first_token_gate=True, prefill_s=1.0) for _ in range(2)]
    one = await rig(
        pool("p", *engines, spec="firstTokenGate: true")
        + route("r", "p")
        + resilience("default", "{hedging: {enabled: true, delay: 100ms, maxTokens: 1000, maxPercent: 100}}"),
        pools={
            "p": {"hedge": HedgeDecision(on=True, delay_s=0.1, answer_delay_s=0.1, reason="", since_s=0.0)},
        },
        ceilings={"p": (100, 100)},
    )

    def arrived() -> int:
        return sum(each.book.totals().arrived for each in engines)

    assert (await one.complete(max_tokens=5, stream=stream)).status == 200
    assert arrived() == 2
    assert (await one.complete(max_tokens=1_001, stream=stream)).status == 200
    assert arrived() == 3
    kind = "streaming" if stream else "non-streaming"
    assert set(await route_counts(one)) == {f"r.{kind}", f"r.{kind}.above-1000"}


async def test_request_with_a_deadline_has_the_limit_of_its_size_too(rig, engine):
    only = await engine()
    await only.set_fault(EngineHang())
    read = "{port: 8080, address: 127.0.0.1, deadline: {header: x-timeout-ms, max: 60s}}"
    one = await rig(
        pool("p", only)
        + route("r", "p").replace("{port: 8080, address: 127.0.0.1}", read)
        + resilience("default", f"{{retries: {{attempts: 0}}, {BY_TOKENS}}}"),
        pools={"p": limits(0.004)},
    )
    assert await hung_for_s(one, max_tokens=1_000, headers={"x-timeout-ms": "500"}) < 4.0
    assert await hung_for_s(one, max_tokens=1, headers={"x-timeout-ms": "30000"}) < 20.0
