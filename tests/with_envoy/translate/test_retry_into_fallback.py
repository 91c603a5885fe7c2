"""A retry leaves a pool for its fallback: real Envoys from 1.39 on."""

from typing import Any

import pytest

from chaos.fake_engine import EngineCrash, EngineHang, EngineShed
from tests.with_envoy.translate.test_max_requests_and_load_shedding import policy, pool, route

pytestmark = pytest.mark.envoy

SHEDS = EngineShed(retry_after_s=None)
TRIES = 4
"""By default."""


def arrived(*engines: Any) -> int:
    return sum(engine.book.totals().arrived for engine in engines)


@pytest.mark.parametrize("fault", [SHEDS, EngineCrash()], ids=["sheds", "crashed"])
async def test_retry_leaves_a_failing_pool_after_two_tries(rig, engine, fault):
    main, small, last = [await engine() for _ in range(3)], await engine(), await engine()
    text = policy(
        pool("p", *main), pool("small", small), pool("last", last), route("r", "p", "fallbacks: [small, last]")
    )
    one = await rig(text)
    for each in main:
        await each.set_fault(fault)
    answers = [await one.complete(stream=bool(number % 2)) for number in range(20)]
    assert {answer.status for answer in answers} == {200}
    assert small.book.totals().finished >= 18, "the first fallback is preferred"
    if fault is SHEDS:
        assert arrived(*main) == 2 * 20
    assert not await bugs(one)


async def test_requests_of_a_failing_fallback_stay_there(rig, engine):
    main, small = await engine(), [await engine() for _ in range(2)]
    one = await rig(policy(pool("p", main), pool("small", *small), route("r", "p", "fallbacks: [small]")))
    await one.set_runtime({"switchgear.route.r.p": 0, "switchgear.route.r.small": 200_000_000})
    for each in small:
        await each.set_fault(SHEDS)
    assert {(await one.complete()).status for _ in range(10)} == {503}
    assert (arrived(main), arrived(*small)) == (0, TRIES * 10)
    assert not await bugs(one)


@pytest.mark.parametrize("change", ["disclosed", "never"])
async def test_retry_never_meets_another_model(rig, engine, change):
    main, small = [await engine(model="fake-model") for _ in range(2)], await engine(model="other")
    other = pool("small", small).replace("fake-model", "other")
    text = policy(pool("p", *main), other, route("r", "p", f"fallbacks: [small]\n  modelChange: {change}"))
    one = await rig(text)
    for each in main:
        await each.set_fault(SHEDS)
    assert {(await one.complete()).status for _ in range(10)} == {503}
    assert (arrived(*main), arrived(small)) == (TRIES * 10, 0)


async def test_retry_budget_holds_for_retries_that_leave(rig, engine):
    main, small = [await engine() for _ in range(2)], await engine()
    one = await rig(policy(pool("p", *main), pool("small", small), route("r", "p", "fallbacks: [small]")))
    budget = "circuit_breakers.p.high.retry_budget"
    await one.set_runtime({f"{budget}.budget_percent": 0, f"{budget}.min_retry_concurrency": 0})
    for each in main:
        await each.set_fault(SHEDS)
    assert {(await one.complete()).status for _ in range(10)} == {503}
    assert (arrived(*main), arrived(small)) == (10, 0)


async def test_hedges_stay_in_the_pool(rig, engine):
    main, small = [await engine() for _ in range(4)], await engine()
    hedging = "{hedging: {enabled: true, delay: 200ms, perRequest: 3, maxPercent: 100}}"
    hedges = f"kind: ResiliencePolicy\nmetadata: {{name: default}}\nspec: {hedging}"
    text = policy(pool("p", *main), pool("small", small), route("r", "p", "fallbacks: [small]"), hedges)
    one = await rig(text)
    for each in main[:3]:
        await each.set_fault(EngineHang())
    assert {(await one.complete()).status for _ in range(5)} == {200}
    assert arrived(small) == 0


async def bugs(rig: Any) -> int:
    """Failed checks that Envoy counts as its own bugs."""
    stat = "server.envoy_bug_failures"
    return (await rig.envoy.stats(stat))[stat]
