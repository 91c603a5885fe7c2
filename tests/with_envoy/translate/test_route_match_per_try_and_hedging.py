"""Requests reach the pool their path, headers and body ask for, as seen by a real Envoy."""

import asyncio
from collections import Counter
from typing import Any

import aiohttp
import pytest

from chaos.fake_engine import EngineHang, EngineHangMidStream, EngineShed
from tests.eventually import eventually

pytestmark = pytest.mark.envoy

LIMIT_S = 60.0


def pool(name: str, *engines: Any, spec: str = "") -> str:
    endpoints = "".join(f"\n  - {{address: 127.0.0.1, port: {one.port}}}" for one in engines)
    return f"""---
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {{name: {name}}}
spec:
  model: fake-model
  {spec}
  endpoints: {endpoints}
"""


def route(name: str, *pools: str, match: str = "{}", spec: str = "") -> str:
    targets = ", ".join(f"{{pool: {one}}}" for one in pools)
    return f"""---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {{name: {name}}}
spec:
  listener: {{port: 8080, address: 127.0.0.1}}
  match: {match}
  pools: [{targets}]
  {spec}
"""


def resilience(name: str, spec: str) -> str:
    return f"""---
apiVersion: switchgear.dev/v1alpha1
kind: ResiliencePolicy
metadata: {{name: {name}}}
spec: {spec}
"""


async def route_counts(rig: Any) -> dict[str, int]:
    """Requests by Envoy route."""
    prefix = "vhost.port-8080.route."
    stats = await rig.envoy.stats(prefix)
    total = ".upstream_rq_total"
    return {
        name.removeprefix(prefix).removesuffix(total): value
        for name, value in stats.items()
        if name.endswith(total) and value
    }


async def test_model_and_stream_in_the_body_choose_the_route(rig, engine):
    big, small = await engine(model="big"), await engine(model="small")
    one = await rig(
        pool("big", big)
        + pool("small", small)
        + route("big", "big", match="{model: big}")
        + route("small", "small", match="{model: small}")
        + route("streams", "small", match="{model: small, stream: true}")
    )
    for content_type in ("application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8"):
        answer = await one.complete(model="big", headers={"content-type": content_type})
        assert (answer.status, content_type) == (200, content_type)
    assert (await one.complete(model="big", stream=True)).status == 200
    assert (await one.complete(model="small")).status == 200
    assert (await one.complete(model="small", stream=True)).status == 200
    assert await route_counts(one) == {
        "big.non-streaming": 3,
        "big.streaming": 1,
        "small.non-streaming": 1,
        "streams.streaming": 1,
    }
    assert big.book.totals().arrived == 4


async def test_unmatched_gets_a_named_404_and_invalid_json_the_route_without_a_model(rig, engine):
    big = await engine(model="big")
    one = await rig(pool("big", big) + route("big", "big", match="{model: big, pathPrefix: /v1}"))
    answer = await one.complete(model="unknown")
    assert (answer.status, answer.headers["x-switchgear-reason"]) == (404, "no-route")
    assert await answer.json() == {
        "error": {"code": 404, "message": "no route of this port matches the request", "type": "switchgear"}
    }
    async with one.client.post(
        f"{one.url}/v1/completions", data=b"{not json", headers={"content-type": "application/json"}
    ) as invalid:
        assert invalid.status == 404
    two = await rig(pool("big", big) + route("any", "big"))
    async with two.client.post(
        f"{two.url}/v1/completions", data=b"{not json", headers={"content-type": "application/json"}
    ) as invalid:
        assert invalid.status == 400  # the engine's own answer


async def test_a_body_of_three_megabytes_is_matched_and_retried(rig, engine):
    engines = [await engine(model="big", max_model_len=10_000_000) for _ in range(2)]
    await engines[0].set_fault(EngineShed(retry_after_s=None))
    one = await rig(pool("big", *engines) + route("big", "big", match="{model: big}"))
    prompt = "word " * 600_000
    asked = 0
    # Which engine is asked first is chance: that it is always the other one has one in 2^60.
    while engines[0].book.totals().shed == 0 and asked < 60:
        assert (await one.complete(model="big", prompt=prompt)).status == 200
        asked += 1
    assert engines[0].book.totals().shed > 0
    assert engines[1].book.totals().finished == asked


async def test_a_body_over_the_limit_is_refused(rig, engine):
    small = await engine(max_model_len=10_000_000)
    one = await rig(pool("p", small) + route("r", "p", match="{model: fake-model}", spec="maxBodyBytes: 2000000"))
    assert (await one.complete(prompt="x" * 1_900_000)).status == 200
    assert (await one.complete(prompt="x" * 2_100_000)).status == 413


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, "absent"),
        ({"x-tier": "gold"}, "exact"),
        ({"x-tier": "golden-eagle"}, "prefix"),
        ({"x-tier": "t-42"}, "regex"),
        ({"x-tier": "other"}, "other"),
    ],
)
async def test_header_conditions(rig, engine, headers, expected):
    conditions = {
        "exact": "{name: x-tier, exact: gold}, {name: x-tier, present: true}",
        "prefix": "{name: x-tier, prefix: golden}, {name: x-tier, exact: gold, invert: true}",
        "regex": "{name: x-tier, regex: 't-[0-9]+'}, {name: x-tier, present: true}",
        "absent": "{name: x-tier, present: false}",
    }
    only = await engine()
    one = await rig(
        pool("p", only)
        + "".join(route(name, "p", match=f"{{headers: [{text}]}}") for name, text in conditions.items())
        + route("other", "p")
    )
    assert (await one.complete(headers=headers)).status == 200
    assert await route_counts(one) == {f"{expected}.non-streaming": 1}


async def test_caller_headers_cannot_change_timeouts(rig, engine):
    only = await engine(prefill_s=0.2)
    one = await rig(pool("p", only) + route("r", "p"))
    answer = await one.complete(
        headers={"x-envoy-upstream-rq-timeout-ms": "1", "x-forwarded-for": "10.0.0.1", "x-envoy-max-retries": "9"}
    )
    assert answer.status == 200


async def test_a_retry_goes_to_another_engine(rig, engine):
    engines = [await engine() for _ in range(3)]
    await engines[0].set_fault(EngineShed(retry_after_s=None))
    await engines[1].set_fault(EngineShed(retry_after_s=None))
    one = await rig(pool("p", *engines) + route("r", "p"))
    statuses = [(await one.complete()).status for _ in range(30)]
    assert statuses == [200] * 30
    assert engines[2].book.totals().finished == 30
    attempts = Counter(call.attempt for shedding in engines[:2] for call in shedding.book.calls)
    assert set(attempts) <= {1, 2}  # never a third try on one that has refused


async def test_a_retry_finds_the_busy_engine_among_idle_ones_that_refuse(rig, engine):
    """Least-request is drawn to engines with nothing in flight, again and again; only the last try finds it."""
    refusing = [await engine() for _ in range(3)]
    busy = await engine(slots=64)
    for each in (*refusing, busy):
        await each.set_fault(EngineHang())
    # With a ceiling, for its retry budget: on a slow machine all twelve look for another engine at once.
    one = await rig(pool("p", *refusing, busy) + route("r", "p"), ceilings={"p": (1000, 1000)})
    held = [asyncio.create_task(one.complete()) for _ in range(24)]
    await eventually(
        lambda: sum(each.calls_in_flight for each in (*refusing, busy)) == 24, "all are under way", LIMIT_S
    )
    before = busy.calls_in_flight
    assert before
    for each in refusing:
        await each.set_fault(EngineShed(retry_after_s=None))
    asked = [asyncio.create_task(one.complete()) for _ in range(12)]

    def found() -> bool:
        return busy.calls_in_flight == before + len(asked) or any(each.done() for each in asked)

    await eventually(found, "all have found it", LIMIT_S)
    await busy.heal()
    assert [answer.status for answer in await asyncio.gather(*asked)] == [200] * 12
    await asyncio.gather(*held)


async def test_per_try_idle_timeout_retries_a_hung_stream_behind_the_first_token_gate(rig, engine):
    engines = [await engine(first_token_gate=True) for _ in range(2)]
    await engines[0].set_fault(EngineHang())
    one = await rig(
        pool("p", *engines, spec="firstTokenGate: true")
        + route("r", "p")
        # Longer than a busy machine keeps the well engine from its first token.
        + resilience("default", "{timeouts: {streaming: {firstToken: 3s}}}"),
        ceilings={"p": (100, 100)},
    )
    asked = 0
    while engines[0].book.totals().aborted == 0:
        assert asked < 160, "no request was sent to the hung engine"
        answers = await asyncio.gather(*(one.complete(stream=True) for _ in range(8)))
        assert Counter(answer.status for answer in answers) == {200: 8}
        asked += 8
    assert engines[1].book.totals().finished >= asked


@pytest.mark.parametrize("between", ["300ms", "900ms"])
async def test_stream_idle_timeout_cuts_a_silent_stream(rig, engine, between):
    # Silent before the limit of the first token runs out: that limit must not take the other one with it.
    only = await engine(first_token_gate=True, token_s=0.05)
    await only.set_fault(EngineHangMidStream(after_tokens=2))
    one = await rig(
        pool("p", only, spec="firstTokenGate: true")
        + route("r", "p")
        + resilience(
            "default",
            f"{{timeouts: {{streaming: {{firstToken: 300ms, betweenTokens: {between}}}}}}}",
        )
    )
    refused = 0

    async def cut() -> bool:
        """Whether it has begun, and was cut; an engine that had no turn for its first token in time has not."""
        nonlocal refused
        try:
            assert (await one.complete(stream=True, max_tokens=20)).status == 504
        except aiohttp.ClientPayloadError:
            return True
        refused += 1
        assert refused < 30
        return False

    await eventually(cut, "a stream that has begun is cut", LIMIT_S)


@pytest.mark.parametrize("stream", [True, False])
async def test_hedging_rescues_hung_requests_and_spares_slow_ones(rig, engine, stream):
    engines = [await engine(first_token_gate=True, prefill_s=0.6) for _ in range(2)]
    for each in engines:
        await each.set_fault(EngineHang())
    one = await rig(
        pool("p", *engines, spec="firstTokenGate: true")
        + route("r", "p")
        + resilience(
            "default", "{hedging: {enabled: true, delay: 200ms, maxPercent: 100}, retries: {attempts: 0}}"
        ),
        # A hedge that the budget refuses is not made up for: the first try then waits for the total limit.
        ceilings={"p": (100, 100)},
    )
    slow = asyncio.create_task(one.complete(stream=stream))  # slower than the delay on both engines
    await eventually(lambda: all(each.calls_in_flight for each in engines), "both tries of it run", LIMIT_S)
    for each in engines:
        await each.heal()
    assert (await slow).status == 200
    hedges = (await one.envoy.stats("cluster.p.upstream_rq_retry"))["cluster.p.upstream_rq_retry"]
    assert hedges == 1
    ejections = "cluster.p.outlier_detection.ejections_active"
    await engines[0].set_fault(EngineHang())
    answers = await asyncio.gather(*(one.complete(stream=stream) for _ in range(4)))
    assert Counter(answer.status for answer in answers) == {200: 4}
    # A hedge is a timeout to Envoy; it must not eject the engine that is only slow, of all things.
    assert (await one.envoy.stats(ejections))[ejections] == 0


@pytest.mark.parametrize("slots", [32, 200])
@pytest.mark.parametrize("in_flight", [1, 12, 40, 90, 200])
async def test_hedges_stay_within_their_percentage_of_requests_in_flight(rig, engine, in_flight, slots):
    engines = [await engine(first_token_gate=True, slots=slots) for _ in range(2)]
    one = await rig(
        pool("p", *engines, spec=f"firstTokenGate: true\n  slotsPerEngine: {slots}")
        + route("r", "p")
        + resilience("default", "{hedging: {enabled: true, delay: 100ms, maxPercent: 5}, retries: {attempts: 3}}"),
        ceilings={"p": (400, 400)},
    )
    for each in engines:
        await each.set_fault(EngineHang())
    asked = [asyncio.create_task(one.complete()) for _ in range(in_flight)]

    def calls() -> int:
        return sum(each.calls_in_flight for each in engines)

    await eventually(lambda: calls() > in_flight, "a hedge is made", LIMIT_S)
    overflow = "cluster.p.upstream_rq_retry_overflow"

    async def all_wanted_one() -> bool:
        stats = await one.envoy.stats("cluster.p.upstream_rq_retry")
        return stats[overflow] + stats["cluster.p.upstream_rq_retry"] >= in_flight

    await eventually(all_wanted_one, "the delay of each request is over", LIMIT_S)
    # Envoy takes the percentage of all calls in flight, hedges among them.
    allowed = max(1, int(0.05 * (in_flight + calls())))
    assert 1 <= calls() - in_flight <= allowed
    for each in engines:
        await each.heal()
    assert {answer.status for answer in await asyncio.gather(*asked)} == {200}


async def test_without_first_token_gate_a_hung_stream_is_cut_and_its_engine_ejected(rig, engine):
    engines = [await engine() for _ in range(3)]
    await engines[0].set_fault(EngineHang())
    one = await rig(
        pool("p", *engines)
        + route("r", "p")
        + resilience(
            "default",
            # Longer than a busy machine keeps well engines from a token; and out is out for the rest of the test.
            "{timeouts: {streaming: {betweenTokens: 2s}}, breaker: {localEjection: 60s,"
            " interval: 500ms, windowCalls: 4, minCalls: 4, consecutiveErrors: 0}}",
        )
    )
    active = "cluster.p.outlier_detection.ejections_active"
    cut = 0
    async with asyncio.timeout(LIMIT_S):
        while (await one.envoy.stats(active)).get(active) != 1:
            answers = await asyncio.gather(*(one.complete(stream=True) for _ in range(18)), return_exceptions=True)
            cut += sum(isinstance(answer, aiohttp.ClientPayloadError) for answer in answers)
    assert cut
    before = engines[0].book.totals().arrived
    answers = await asyncio.gather(*(one.complete(stream=True) for _ in range(18)))
    assert Counter(answer.status for answer in answers) == {200: 18}
    assert engines[0].book.totals().arrived == before
