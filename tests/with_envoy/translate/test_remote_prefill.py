"""A real Envoy names prefill engines to the side-cars of decode engines."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from chaos.fake_engine import EngineHang
from chaos.fake_engine.routing_sidecar import PREFILLED_BY_HEADER
from tests.eventually import eventually
from tests.with_envoy.translate.conftest import Rig, view
from xds_server.decide.decisions import Decisions, EngineDecision, Health, PoolDecisions, PrefillDecision
from xds_server.model.fleet import EngineId
from xds_server.model.type_urls import ENDPOINT
from xds_server.translate.envoy_json import as_json
from xds_server.translate.view_resources import translate

pytestmark = pytest.mark.envoy

V1 = "---\napiVersion: switchgear.dev/v1alpha1\nkind:"
DEAD = EngineDecision(health=Health.UNHEALTHY, reason="", since_s=0.0)
DRAINING = EngineDecision(health=Health.DRAINING, reason="", since_s=0.0)
TRIAL = EngineDecision(health=Health.HEALTHY, reason="", since_s=0.0, traffic_percent=50)
LONG = {"model": "fake-model", "prompt": "x", "max_tokens": 4000, "stream": True}
"""Eighty seconds of tokens, for engines with ``token_s=0.02``."""
FORGED = {"x-prefiller-host-port": "127.0.0.1:1", "x-switchgear-prefillers": "127.0.0.1:1=100"}


def listed(engines: Sequence[Any], zones: str) -> str:
    each = zip(engines, zones, strict=True)
    return ", ".join(
        f"{{name: {one.config.name}, address: 127.0.0.1, port: {one.port}, zone: {zone}}}" for one, zone in each
    )


def policy(
    prefill: Sequence[Any],
    decode: Sequence[Any],
    *,
    zones: tuple[str, str] = ("", ""),
    percent: int = 100,
    above: int | None = None,
) -> str:
    rules = f"pool: first, percent: {percent}" + (f", tokensAbove: {above}" if above else "")
    at_prefill, at_decode = zones[0] or "a" * len(prefill), zones[1] or "a" * len(decode)
    return f"""{V1} EnginePool
metadata: {{name: first}}
spec: {{model: fake-model, stage: prefill, endpoints: [{listed(prefill, at_prefill)}]}}
{V1} EnginePool
metadata: {{name: chat}}
spec: {{model: fake-model, stage: decode, endpoints: [{listed(decode, at_decode)}]}}
{V1} EnginePool
metadata: {{name: spare}}
spec: {{model: fake-model, endpoints: [{listed(decode[:1], "a")}]}}
{V1} ModelRoute
metadata: {{name: chat}}
spec: {{listener: {{port: 8080}}, pools: [{{pool: chat}}], prefill: {{{rules}}}}}
{V1} ModelRoute
metadata: {{name: plain}}
spec: {{listener: {{port: 8080}}, match: {{headers: [{{name: x-plain}}]}}, pools: [{{pool: chat}}]}}
{V1} ResiliencePolicy
metadata: {{name: default}}
spec: {{retries: {{attempts: 2}}}}
"""


@pytest.fixture
async def two_pools(engine: Any, rig: Any) -> Any:
    """Starts prefill and decode engines and an Envoy in front of them."""

    async def start(
        prefill: int,
        decode: int,
        *,
        cuts: bool = False,
        token_s: float = 0.001,
        ceilings: Mapping[str, tuple[int, int]] | None = None,
        **settings: Any,
    ) -> Any:
        first = [await engine(name=f"p{number}") for number in range(prefill)]
        chat = [await engine(name=f"d{number}", routing_sidecar=True, token_s=token_s) for number in range(decode)]
        one = await rig(policy(first, chat, **settings), dynamic_endpoints=True, cuts=cuts, ceilings=ceilings)
        return one, first, chat

    return start


def decided(health: Mapping[str, EngineDecision]) -> Decisions:
    engines = {EngineId("first", name): one for name, one in health.items()}
    pool = PoolDecisions(engines=engines, zones={}, ceilings={})
    return Decisions(engines=engines, zone_weights={}, ceilings={}, pools={"first": pool})


async def push(
    one: Rig,
    health: Mapping[str, EngineDecision],
    *,
    cuts: bool = False,
    decisions: Decisions | None = None,
) -> None:
    """Push the endpoints that follow from decisions on prefill engines; nothing else changes."""
    items = translate(one.policies, one.fleet, decisions or decided(health), view(cuts=cuts))
    taken = "cluster.chat.update_success"
    before = (await one.envoy.stats(taken))[taken]
    one.push_endpoints({item.name: as_json(item) for item in items if item.type_url == ENDPOINT})

    async def seen() -> bool:
        return bool((await one.envoy.stats(taken))[taken] > before)

    await one.envoy.wait_for(seen, "knowing the lists")


async def named(one: Rig, engines: Sequence[Any], count: int = 60, **headers: str) -> Counter[str]:
    """How often each prefill engine was named; ``none`` for requests without."""
    names = {f"127.0.0.1:{engine.port}": engine.config.name for engine in engines}
    answers = [await one.complete(headers=headers) for _ in range(count)]
    assert {answer.status for answer in answers} == {200}
    return Counter(
        names[where] if (where := answer.headers.get(PREFILLED_BY_HEADER)) else "none" for answer in answers
    )


@pytest.mark.parametrize("cuts", [False, True])
async def test_header_follows_verdicts_from_the_push_on(two_pools: Any, cuts: bool) -> None:
    one, first, _ = await two_pools(3, 2, cuts=cuts)
    assert set(await named(one, first)) == {"p0", "p1", "p2"}
    before = [engine.book.totals().arrived for engine in first]
    await push(one, {"p0": DEAD, "p2": DRAINING}, cuts=cuts)
    assert await named(one, first, 40) == {"p1": 40}
    assert [engine.book.totals().arrived for engine in first] == [before[0], before[1] + 40, before[2]]
    await push(one, {}, cuts=cuts)
    assert set(await named(one, first)) == {"p0", "p1", "p2"}


async def test_without_a_prefill_engine_decode_engines_prefill_themselves(two_pools: Any) -> None:
    one, first, chat = await two_pools(2, 2)
    await push(one, {"p0": DEAD, "p1": DEAD})
    assert await named(one, first, 20, **FORGED) == {"none": 20}
    assert sum(engine.book.totals().finished for engine in chat) == 20
    assert not [engine for engine in first if engine.book.totals().arrived]


async def test_weights_and_zones_hold(two_pools: Any) -> None:
    one, first, _ = await two_pools(3, 1)
    await push(one, {"p0": TRIAL})
    found = await named(one, first, 400)
    assert 40 <= found["p0"] <= 125, "a fifth: half of the share of the others"
    zoned, engines, _ = await two_pools(2, 2, zones=("ab", "ab"))
    pairs: Counter[tuple[str, str]] = Counter()
    for _ in range(40):
        answer = await zoned.complete()
        pairs[answer.headers["x-fake-engine"], answer.headers[PREFILLED_BY_HEADER].rpartition(":")[2]] += 1
    assert set(pairs) == {(f"d{number}", str(engines[number].port)) for number in range(2)}


async def test_callers_cannot_name_an_engine(two_pools: Any) -> None:
    one, first, _ = await two_pools(1, 2)
    assert await named(one, first, 20, **FORGED) == {"p0": 20}
    # A route without prefill to the same engines names none, and hides what the caller sent.
    assert await named(one, first, 20, **FORGED, **{"x-plain": "1"}) == {"none": 20}


async def test_percent_sends_a_part(two_pools: Any) -> None:
    one, first, _ = await two_pools(1, 1, percent=25)
    found = await named(one, first, 400)
    assert 60 <= found["p0"] <= 145


async def test_some_requests_get_no_name_while_prefill_engines_are_slow(two_pools: Any) -> None:
    one, first, _ = await two_pools(2, 1)
    slow = PrefillDecision(named_percent=25.0, reason="", since_s=0.0)
    chat = PoolDecisions(engines={}, zones={}, ceilings={}, prefill=slow)
    some = decided({})
    await push(one, {}, decisions=replace(some, pools={**some.pools, "chat": chat}))
    found = await named(one, first, 400, **FORGED)
    assert 55 <= found["p0"] + found["p1"] <= 150
    assert min(found["p0"], found["p1"]) > 15
    await push(one, {})
    assert (await named(one, first, 40))["none"] == 0


async def test_only_prompts_above_a_size_are_prefilled_elsewhere(two_pools: Any) -> None:
    one, _, _ = await two_pools(2, 1, above=500)

    async def for_prompt(characters: int, **headers: str) -> set[bool]:
        answers = [await one.complete(headers=headers, prompt="x" * characters) for _ in range(10)]
        assert {answer.status for answer in answers} == {200}
        return {PREFILLED_BY_HEADER in answer.headers for answer in answers}

    rest = len(json.dumps({"model": "fake-model", "prompt": "", "max_tokens": 1}))
    assert await for_prompt(4 * 500 - rest) == {False}
    assert await for_prompt(4 * 500 - rest, **FORGED) == {False}, "callers cannot name an engine"
    assert await for_prompt(4 * 500 - rest + 1) == {True}

    async def chunks() -> AsyncIterator[bytes]:
        yield json.dumps({"model": "fake-model", "prompt": "x", "max_tokens": 1}).encode()

    kind = {"content-type": "application/json"}
    async with one.client.post(f"{one.url}/v1/completions", data=chunks(), headers=kind) as answer:
        assert (answer.status, PREFILLED_BY_HEADER in answer.headers) == (200, True), "a body of unknown size"


async def test_lists_change_under_open_streams(two_pools: Any) -> None:
    one, first, chat = await two_pools(2, 1, token_s=0.02)
    async with one.client.post(f"{one.url}/v1/completions", json=LONG) as stream:
        await stream.content.readany()
        for health in ({"p0": DEAD}, {"p0": DEAD, "p1": DEAD}, {}):
            await push(one, health)
        assert chat[0].calls_in_flight == 1, "the stream outlives the pushes"
        for _ in range(5):
            assert await stream.content.readany(), "and gets its tokens"
    assert set(await named(one, first, 30)) == {"p0", "p1"}


async def test_a_retry_draws_again(two_pools: Any) -> None:
    """A prefill engine dies, and no push has come yet: its requests fail at the side-car and are tried again."""
    one, first, chat = await two_pools(2, 4)
    await first[0].stop()
    answers = [await one.complete() for _ in range(60)]
    # Three tries draw a dead one of two with a chance of an eighth.
    assert Counter(answer.status for answer in answers)[200] >= 42
    reached = {answer.headers[PREFILLED_BY_HEADER] for answer in answers if answer.status == 200}
    assert reached == {f"127.0.0.1:{first[1].port}"}
    stats = await one.envoy.stats("cluster.chat.")
    assert stats["cluster.chat.upstream_rq_retry"] > 20
    assert not stats["cluster.chat.outlier_detection.ejections_enforced_total"], "decode engines are not to blame"
    assert all(engine.book.totals().finished for engine in chat)


async def test_full_decode_pool_starts_no_prefill(two_pools: Any) -> None:
    one, first, _ = await two_pools(1, 1, token_s=0.02, ceilings={"chat": (1, 1)})
    async with one.client.post(f"{one.url}/v1/completions", json=LONG) as stream:
        await stream.content.readany()
        answers = await asyncio.gather(*(one.complete() for _ in range(5)))
        assert {(answer.status, answer.headers["x-switchgear-reason"]) for answer in answers} == {
            (503, "overload")
        }
        assert first[0].book.totals().arrived == 1, "that of the stream"
    await eventually(lambda: first[0].calls_in_flight == 0, "no prefill in flight", 10)


async def test_a_caller_that_leaves_ends_the_prefill(two_pools: Any) -> None:
    one, first, chat = await two_pools(1, 1)
    await first[0].set_fault(EngineHang())
    waiting = asyncio.create_task(one.complete())
    await eventually(lambda: first[0].calls_in_flight == 1, "a prefill in flight", 10)
    assert chat[0].calls_in_flight == 0, "nothing holds a slot of the decode engine while it waits"
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    await eventually(lambda: first[0].calls_in_flight == 0, "no prefill in flight", 10)
