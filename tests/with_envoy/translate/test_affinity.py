"""Requests with one key go to one engine while it is healthy and has room, at a real Envoy."""

import asyncio
import io
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from tests.eventually import eventually
from tests.with_envoy.conftest import ENVOY_VERSION
from tests.with_envoy.translate.conftest import Rig, view
from tests.with_envoy.translate.recording_engine import Hearing
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.decisions import NO_DECISIONS, EngineDecision, Health
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.fleet import EngineId
from xds_server.model.order import Order, OrderAction
from xds_server.model.type_urls import ENDPOINT
from xds_server.translate.envoy_json import as_json
from xds_server.translate.translated_resource import TranslatedResource
from xds_server.translate.view_resources import translate

pytestmark = pytest.mark.envoy

ENGINES = 4
PREFIX = "{prefix: {characters: 64}}"


@pytest.fixture
async def engines() -> AsyncIterator[tuple[Hearing, ...]]:
    """Engines that say who they are, and keep the headers that they get."""
    found = tuple(Hearing(says={"x-engine": str(number)}) for number in range(ENGINES))
    runners = [await one.listen() for one in found]
    yield found
    for runner in runners:
        await runner.cleanup()


def policy(engines: Sequence[Hearing], affinity: str, *, more: str = "", route: str = "") -> str:
    """One route to a pool of these engines, the first half in zone a, the others in zone b."""
    listed = ", ".join(
        f"{{name: e{number}, address: 127.0.0.1, port: {one.port}, zone: {'a' if number < 2 else 'b'}{more}}}"
        for number, one in enumerate(engines)
    )
    return (
        "apiVersion: switchgear.dev/v1alpha1\nkind: EnginePool\nmetadata: {name: p}\n"
        f"spec: {{model: fake-model, endpoints: [{listed}]}}\n---\n"
        "apiVersion: switchgear.dev/v1alpha1\nkind: ModelRoute\nmetadata: {name: r}\n"
        f"spec: {{listener: {{port: 8080}}, pools: [{{pool: p}}], affinity: {affinity}{route}}}\n"
    )


async def ask(rig: Rig, messages: Sequence[tuple[str, str]], headers: Mapping[str, str] | None = None) -> str:
    """The engine that answers this conversation."""
    body = {"model": "fake-model", "messages": [{"role": role, "content": text} for role, text in messages]}
    async with rig.client.post(
        f"{rig.url}/v1/chat/completions",
        data=io.BytesIO(json.dumps(body).encode()),
        headers={"content-type": "application/json", **(headers or {})},
    ) as answer:
        assert answer.status == 200, await answer.text()
        return answer.headers["x-engine"]


async def homes(rig: Rig, keys: int = 60) -> list[str]:
    """The engine of each key of a header, asked one by one."""
    return [await ask(rig, [("user", "hi")], {"x-session": f"s{number}"}) for number in range(keys)]


by_prompt = pytest.mark.skipif(tuple(map(int, ENVOY_VERSION.split("."))) < (1, 38), reason="no key of prompts")


@by_prompt
async def test_turns_of_a_conversation_go_to_one_engine(rig, engines):
    one = await rig(policy(engines, PREFIX))
    first: dict[int, str] = {}
    for talk in range(20):
        turns = [("system", "You are kind. " * 400), ("user", f"question {talk}")]
        first[talk] = await ask(one, turns)
        for turn in range(3):
            turns += [("assistant", f"answer {turn}" * 50), ("user", f"and {turn}?")]
            assert await ask(one, turns) == first[talk]
    assert len(set(first.values())) == ENGINES, "conversations are spread"


async def test_no_engine_gets_a_header_for_the_prompt(rig, engines):
    one, other = await rig(policy(engines, PREFIX)), await rig(policy(engines, "{header: x-session}"))
    await ask(one, [("user", "secret")])
    with_prefix = {header for engine in engines for request in engine.seen for header in request}
    await ask(other, [("user", "secret")])
    with_header = {header for engine in engines for request in engine.seen for header in request}
    assert with_prefix == with_header


async def test_requests_without_a_prompt_have_no_key(rig, engines):
    one = await rig(policy(engines, PREFIX))
    assert len({await ask(one, []) for _ in range(40)}) > 1


@pytest.mark.parametrize("cuts", [False, True])
async def test_header_is_the_key_and_only_keys_of_a_lost_engine_move(rig, engines, cuts):
    one = await rig(policy(engines, "{header: x-session}"), dynamic_endpoints=True, cuts=cuts)
    before = await homes(one)
    assert await homes(one) == before
    assert len(set(before)) == ENGINES
    await push(one, {"e0": Health.UNHEALTHY}, {}, cuts=cuts)
    without = await homes(one)
    assert "0" not in without
    moved = [
        number for number, (old, new) in enumerate(zip(before, without, strict=True)) if old not in ("0", new)
    ]
    assert len(moved) <= len(before) // 10, "keys of other engines stay"
    await push(one, {}, {}, cuts=cuts)
    assert await homes(one) == before, "keys come back"


async def test_requests_without_key_are_spread(rig, engines):
    one = await rig(policy(engines, "{header: x-session}"))
    found = Counter([await ask(one, [("user", "hi")]) for _ in range(120)])
    assert len(found) == ENGINES
    assert max(found.values()) < 2 * 120 / ENGINES


async def test_hot_key_is_bounded_by_the_slack(rig, engines):
    released = asyncio.Event()
    for engine in engines:
        engine.open = released
    one = await rig(policy(engines, "{header: x-session, slackPercent: 10}"))
    asked = []
    for number in range(1, 61):
        asked.append(asyncio.ensure_future(ask(one, [("user", "hi")], {"x-session": "hot"})))
        # One by one: Envoy counts a request once its connection is open.
        await eventually(lambda: sum(len(engine.seen) for engine in engines) == number, "the request", 60.0)  # noqa: B023
    released.set()
    await asyncio.gather(*asked)
    # Envoy rounds the bound up, and lets one more through.
    assert max(len(engine.seen) for engine in engines) <= 1.1 * 60 / ENGINES + 2


async def test_ejected_engine_of_a_zone_moves_its_keys_within_the_weights(rig, engines):
    """Zone a has 3/4 of the weight, and one of its two engines is out: the control plane lowers its weight."""
    weights = {"a": 600, "b": 200}
    one = await rig(policy(engines, "{header: x-session}"), dynamic_endpoints=True, weights=weights)
    found = Counter(await homes(one, 400))
    assert 0.65 < (found["0"] + found["1"]) / 400 < 0.85
    await push(one, {"e0": Health.UNHEALTHY}, weights)
    found = Counter(await homes(one, 400))
    assert not found["0"]
    # 600 / 2 to 200, as least-request would have it.
    assert 0.5 < found["1"] / 400 < 0.7


async def test_zone_without_weight_gets_no_key(rig, engines):
    one = await rig(policy(engines, "{header: x-session}"), dynamic_endpoints=True, weights={"b": 100})
    assert set(await homes(one)) == {"2", "3"}


async def test_engine_on_trial_gets_a_share_of_its_keys(rig, engines):
    one = await rig(policy(engines, "{header: x-session}"), dynamic_endpoints=True)
    before = Counter(await homes(one, 1_000))
    await push(one, {"e0": Health.HEALTHY}, {}, percent=25)
    after = Counter(await homes(one, 1_000))
    # Its zone keeps its half of the keys: 25 of 125 parts of them instead of one of two, 0.4 of what it had.
    assert 0.25 < after["0"] / before["0"] < 0.6
    assert 0.4 < (after["0"] + after["1"]) / 1_000 < 0.6


async def test_held_engine_gets_few_of_its_keys_until_it_was_healthy_long_enough(rig, engines):
    one = await rig(policy(engines, "{header: x-session, returnAfter: 60s}"), dynamic_endpoints=True)
    memory, keys, last, found = NO_MEMORY, 600, "", list[list[str]]()
    bad = Order(engine=EngineId("p", "e0"), action=OrderAction.EJECT, until_s=math.inf, reason="test")
    for now_s, out in ((0.0, False), (1.0, True), (2.0, False), (50.0, False), (63.0, False)):
        orders = {bad.engine: bad} if out else {}
        decided, memory = decide(
            one.policies, one.fleet, memory, proxies=ConnectedProxies(), now_s=now_s, orders=orders
        )
        items = translate(one.policies, one.fleet, decided, view())
        pushed = [item for item in items if item.type_url == ENDPOINT]
        text = json.dumps([as_json(item) for item in pushed])
        if text != last:
            last = text
            await pushed_to(one, pushed)
        found.append(await homes(one, keys))
    before, out, held, waiting, back = found
    assert "0" not in out
    assert waiting == held
    assert back == before, "keys come back"
    own = before.count("0")
    assert 0 < held.count("0") < 0.2 * own
    stay = sum(new == old for old, new in zip(out, held, strict=True))
    assert stay > 0.9 * keys, "while the engine is held, nearly all keys stay where they went"


@pytest.mark.parametrize("count", [4, 8])
async def test_one_of_n_engines_that_leaves_moves_one_of_n_keys(rig, count):
    engines = [Hearing(says={"x-engine": str(number)}) for number in range(count)]
    async with AsyncExitStack() as running:
        for engine in engines:
            running.push_async_callback((await engine.listen()).cleanup)
        text = policy(engines, "{header: x-session}").replace("zone: b", "zone: a")
        one = await rig(text, dynamic_endpoints=True)
        before = await homes(one, 2000)
        await push(one, {"e0": Health.UNHEALTHY}, {})
        moved = [old for old, new in zip(before, await homes(one, 2000), strict=True) if old != new]
        assert len(moved) / 2000 < 1 / count + 0.03
        assert len(moved) - before.count("0") < 0.01 * 2000, "keys of other engines"


@pytest.mark.parametrize("tenants", [True, False])
async def test_requests_of_a_tenant_go_to_one_engine(rig, engines, tenants):
    callers = "tenants: {header: x-tenant, trustHeader: true, others: {requests: 100000}}"
    text = policy(engines, "{tenant: true}").replace("port: 8080}", f"port: 8080, {callers}}}")
    one = await rig(text)
    named = [{"x-tenant": f"t{number}"} if tenants else {} for number in range(20)]
    homes_of = [{await ask(one, [("user", f"hi {turn}")], each) for turn in range(6)} for each in named]
    assert all(len(those) == 1 for those in homes_of) is tenants
    assert len(set.union(*homes_of)) == ENGINES, "tenants, and callers without one, are spread"


async def test_cookie_is_set_and_then_kept(rig, engines):
    one = await rig(policy(engines, "{cookie: {name: chat, ttl: 1h}}"))
    body = io.BytesIO(b"{}")
    async with one.client.post(f"{one.url}/v1/completions", data=body) as answer:
        home, set_cookie = answer.headers["x-engine"], answer.headers["set-cookie"]
    assert "Max-Age=3600" in set_cookie
    assert "Path=/" in set_cookie
    value = set_cookie.partition(";")[0]
    assert {await ask(one, [("user", "hi")], {"cookie": value}) for _ in range(12)} == {home}


async def test_cookie_without_ttl_is_never_set(rig, engines):
    one = await rig(policy(engines, "{cookie: {name: chat}}"))
    async with one.client.post(f"{one.url}/v1/completions", data=io.BytesIO(b"{}")) as answer:
        assert "set-cookie" not in answer.headers
    assert len({await ask(one, [("user", "hi")], {"cookie": "chat=7"}) for _ in range(12)}) == 1


async def test_key_stays_within_the_allowed_regions(rig, engines):
    one = await rig(
        policy(engines[:2], "{header: x-session}", more=", region: eu", route=", allowedRegions: [eu]").replace(
            "zone: a, region: eu}]", "zone: a, region: us}]"
        )
    )
    assert set(await homes(one, 30)) == {"0"}


async def test_retry_of_a_keyed_request_goes_to_another_engine(rig, engines):
    one = await rig(policy(engines, "{header: x-session}"))
    home = int(await ask(one, [("user", "hi")], {"x-session": "s"}))
    engines[home].status = 503
    assert int(await ask(one, [("user", "hi")], {"x-session": "s"})) != home


async def push(
    one: Rig, out: Mapping[str, Health], weights: Mapping[str, int], *, cuts: bool = False, percent: float = 100.0
) -> None:
    """Pushes the pool's endpoints with this health of some engines; returns when Envoy has them."""
    engines = {
        EngineId("p", name): EngineDecision(health=health, reason="", since_s=0.0, traffic_percent=percent)
        for name, health in out.items()
    }
    decided = replace(NO_DECISIONS, engines=engines, zone_weights={("p", ""): weights} if weights else {})
    items = translate(one.policies, one.fleet, decided, view(cuts=cuts))
    await pushed_to(one, [item for item in items if item.type_url == ENDPOINT])


async def pushed_to(one: Rig, endpoints: Sequence[TranslatedResource]) -> None:
    """Pushes these endpoints; returns when Envoy has them."""
    taken = "cluster.p.update_success"
    before = (await one.envoy.stats(taken))[taken]
    one.push_endpoints({item.name: as_json(item) for item in endpoints})

    async def seen() -> bool:
        return bool((await one.envoy.stats(taken))[taken] > before)

    await one.envoy.wait_for(seen, "knowing the endpoints")
