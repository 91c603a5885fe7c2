"""What is let in, what is shed and where it goes, as seen by a real Envoy."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from chaos.fake_engine import EngineCrash, EngineHang
from tests.eventually import eventually
from xds_server.decide.decision_memory import CapacityEstimate, EndpointWeight
from xds_server.decide.decisions import MEASURED, Decisions, EngineCapacity, EngineDecision, Health
from xds_server.decide.pool_inputs import PoolEngines
from xds_server.decide.routing.endpoint_weights import endpoint_weights
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.memo import Memo
from xds_server.model.type_urls import ENDPOINT
from xds_server.translate.endpoints import load_assignment
from xds_server.translate.envoy_json import as_json
from xds_server.translate.translated_resource import TranslatedResource

pytestmark = pytest.mark.envoy

LIMIT_S = 60.0


def policy(*documents: str) -> str:
    return "---\n".join(f"apiVersion: switchgear.dev/v1alpha1\n{document}\n" for document in documents)


def pool(name: str, *engines: Any, zones: str = "", slots: tuple[int, ...] = ()) -> str:
    places = [
        f"{{address: 127.0.0.1, port: {one.port}, name: e{number}, zone: '{zones[number : number + 1]}'"
        + (f", slots: {slots[number]}}}" if slots else "}")
        for number, one in enumerate(engines)
    ]
    return f"""kind: EnginePool
metadata: {{name: {name}}}
spec: {{model: fake-model, endpoints: [{", ".join(places)}]}}"""


def route(name: str, target: str, spec: str = "") -> str:
    return f"""kind: ModelRoute
metadata: {{name: {name}}}
spec:
  listener: {{port: 8080, address: 127.0.0.1}}
  pools: [{{pool: {target}}}]
  {spec}"""


def picked(slots: int, services_s: tuple[float, ...], wait_s: float) -> Mapping[EngineId, EndpointWeight]:
    """What is decided for engines of pool ``p`` with these service times, behind one proxy."""
    engines = [
        Engine(
            id=EngineId("p", f"e{place}"), address="127.0.0.1", port=1, zone="", region="", slots=slots, weight=1,
            tensor_parallel_group="", labels={},
        )
        for place in range(len(services_s))
    ]  # fmt: skip
    known: Mapping[EngineId, EndpointWeight] = {}
    for now_s in (0.0, 10.0):
        known = endpoint_weights(
            PoolEngines(
                engines=engines,
                decisions={one.id: EngineDecision(health=Health.HEALTHY, reason="", since_s=0) for one in engines},
                capacities={
                    one.id: EngineCapacity(slots=slots, service_s=service_s, source=MEASURED)
                    for one, service_s in zip(engines, services_s, strict=True)
                },
            ),
            {one.id: CapacityEstimate(done=100.0, busy=100.0) for one in engines},
            learn=True,
            wait_s=wait_s,
            proxies=1,
            zones_moved_s=-10.0,
            before=known,
            now_s=now_s,
        )
    return known


BATCH = "priority: batch\n  match: {headers: [{name: x-class, exact: batch}]}"


async def burst(rig: Any, count: int, **request: Any) -> Counter[tuple[int, str | None]]:
    """Answers to ``count`` requests at once: (status, why)."""
    answers = await asyncio.gather(*(rig.complete(**request) for _ in range(count)))
    return Counter((answer.status, answer.headers.get("x-switchgear-reason")) for answer in answers)


async def crowd(rig: Any, only: Any, count: int, room: int, **request: Any) -> Counter[tuple[int, str | None]]:
    """As ``burst``, but the engine answers only after all excess requests were refused."""
    before = only.calls_in_flight
    await only.set_fault(EngineHang())
    asked = [asyncio.create_task(rig.complete(**request)) for _ in range(count)]

    def sorted_out() -> bool:
        return only.calls_in_flight - before >= room and sum(one.done() for one in asked) >= count - room

    await eventually(sorted_out, f"{room} of {count} are in, and the others refused", LIMIT_S)
    await only.heal()
    answers = await asyncio.gather(*asked)
    return Counter((answer.status, answer.headers.get("x-switchgear-reason")) for answer in answers)


async def test_max_requests_per_priority_class_sheds_with_retry_after(rig, engine):
    slow = await engine(slots=64)
    one = await rig(
        policy(pool("p", slow), route("people", "p"), route("jobs", "p", BATCH)), ceilings={"p": (4, 2)}
    )
    await slow.set_fault(EngineHang())
    people = [asyncio.create_task(one.complete()) for _ in range(10)]
    jobs = [asyncio.create_task(one.complete(headers={"x-class": "batch"})) for _ in range(10)]

    def refused() -> tuple[int, int]:
        return sum(each.done() for each in people), sum(each.done() for each in jobs)

    await eventually(lambda: slow.calls_in_flight == 6 and refused() == (6, 8), "what fits is in", LIMIT_S)
    shed = await one.complete()
    assert shed.status == 503
    assert shed.headers["retry-after"] == "1"
    assert (await shed.json())["error"]["code"] == 503
    await slow.heal()
    for asked, fits in ((people, 4), (jobs, 2)):
        answers = await asyncio.gather(*asked)
        said = Counter((answer.status, answer.headers.get("x-switchgear-reason")) for answer in answers)
        assert said == {(200, None): fits, (503, "overload"): 10 - fits}


async def test_rtds_max_requests_change_applies_at_once(rig, engine):
    only = await engine(slots=64)
    one = await rig(policy(pool("p", only), route("people", "p")), ceilings={"p": (8, 8)})
    assert (await crowd(one, only, 10, room=8))[200, None] == 8
    await one.set_runtime({"circuit_breakers.p.high.max_requests": 3})
    assert (await crowd(one, only, 10, room=3))[200, None] == 3
    await one.set_runtime({"circuit_breakers.p.high.max_requests": 10})
    assert (await crowd(one, only, 10, room=10))[200, None] == 10


async def test_pool_without_healthy_engines_answers_503(rig):
    one = await rig(policy("kind: EnginePool\nmetadata: {name: p}\nspec: {model: m}", route("r", "p")))
    answer = await one.complete()
    assert (answer.status, answer.headers["x-switchgear-reason"]) == (503, "no-engine")
    assert answer.headers["retry-after"] == "1"


async def test_zone_locality_weights_are_honoured(rig, engine):
    engines = [await engine(prefill_s=0) for _ in range(4)]
    one = await rig(policy(pool("p", *engines, zones="aabc"), route("r", "p")), weights={"a": 300, "b": 100})
    for _ in range(20):
        assert await burst(one, 20) == {(200, None): 20}
    in_a = engines[0].book.totals().arrived + engines[1].book.totals().arrived
    in_b = engines[2].book.totals().arrived
    assert in_a + in_b == 400
    assert 255 <= in_a <= 345  # 300 of 400, five standard deviations
    assert engines[3].book.totals().arrived == 0


async def test_unequal_engines_are_filled_by_their_slots(rig, engine):
    # Room for everything: what an engine gets then says how Envoy fills it, not how fast it is.
    engines = [await engine(slots=64, prefill_s=0.05) for _ in range(2)]
    one = await rig(policy(pool("p", *engines, slots=(3, 12)), route("r", "p")), ceilings={"p": (100, 100)})

    async def caller() -> None:
        for _ in range(20):
            assert (await one.complete()).status == 200

    await asyncio.gather(*(caller() for _ in range(15)))
    assert 0.7 <= engines[1].book.totals().arrived / 300 <= 0.9  # 12 of 15; equal weights gave half


async def test_an_engine_that_is_twice_as_slow_holds_its_part_of_the_ceiling(rig, engine):
    # So long that turns of a busy machine, which come late and then all at once, hardly count.
    slots, wait_s, services_s = 4, 1.0, (0.5, 1.0)
    engines = [await engine(slots=slots, prefill_s=service_s, token_s=0.0) for service_s in services_s]
    fast, slow = (slots * (1 + wait_s / service_s) for service_s in services_s)  # 12 and 8
    text = policy(pool("p", *engines, slots=(slots, slots)), route("r", "p"))
    factors = {key: weight.factor for key, weight in picked(slots, services_s, wait_s).items()}
    one = await rig(text, ceilings={"p": (100, 100)}, pools={"p": {"weight_factors": factors}})
    held: list[tuple[int, int]] = []

    async def caller() -> None:
        for _ in range(7):
            assert (await one.complete()).status == 200
            held.append(tuple(each.book.totals().in_flight for each in engines))

    await asyncio.gather(*(caller() for _ in range(round(fast + slow))))
    steady = held[len(held) // 4 : -len(held) // 4]
    ratio = sum(slower for _, slower in steady) / sum(faster for faster, _ in steady)
    assert ratio == pytest.approx(slow / fast, rel=0.3)  # equal weights held 1


async def test_fallback_takes_over_by_its_weight(rig, engine):
    main, small = await engine(), await engine()
    one = await rig(policy(pool("p", main), pool("small", small), route("r", "p", "fallbacks: [small]")))
    assert await burst(one, 10) == {(200, None): 10}
    assert (main.book.totals().arrived, small.book.totals().arrived) == (10, 0)
    await one.set_runtime({"switchgear.route.r.p": 0, "switchgear.route.r.small": 100})
    assert await burst(one, 10) == {(200, None): 10}
    assert (main.book.totals().arrived, small.book.totals().arrived) == (10, 10)


async def test_readmitted_engine_is_not_held_to_its_outlier_ejection(rig, engine):
    """Left out of EDS while dead it is a new host when it returns; otherwise it stays ejected for the cooldown."""
    engines = [await engine() for _ in range(2)]
    # Out for longer than this test takes: who is free again before was let go, and did not just wait.
    resilience = "kind: ResiliencePolicy\nmetadata: {name: default}\nspec: {breaker: {localEjection: 60s}}"
    text = policy(pool("p", *engines), route("r", "p"), resilience)
    one = await rig(text, dynamic_endpoints=True)

    await engines[0].set_fault(EngineCrash())

    async def noticed() -> int:
        assert (await one.complete()).status == 200  # tried elsewhere
        return await ejected(one)

    await eventually(noticed, "Envoy ejects it", LIMIT_S)

    everyone = one.fleet.pools["p"]
    healthy = {engine.id: EngineDecision(health=Health.HEALTHY, reason="", since_s=0) for engine in everyone}
    without = {**healthy, EngineId("p", "e0"): EngineDecision(health=Health.UNHEALTHY, reason="", since_s=0)}
    listed = endpoints(everyone, without)
    await push(one, listed, healthy_hosts=1)
    await engines[0].heal()
    await push(one, endpoints(everyone, healthy), healthy_hosts=1)  # listed all along: ejected still
    assert await ejected(one)

    await push(one, endpoints(everyone[1:], healthy), healthy_hosts=1)
    await push(one, endpoints(everyone, healthy), healthy_hosts=2)  # left out in between: free
    assert not await ejected(one)
    before = engines[0].book.totals().finished

    async def serves() -> bool:
        assert (await one.complete()).status == 200
        return bool(engines[0].book.totals().finished > before)

    await eventually(serves, "it serves again", LIMIT_S)


def endpoints(engines: Any, decided: Any) -> dict[str, Any]:
    decisions = Decisions(engines=decided, zone_weights={}, ceilings={})
    spec = load_assignment("p", tuple(engines), decisions, "", Memo())
    return as_json(TranslatedResource(type_url=ENDPOINT, name="p", message=spec))


async def ejected(rig: Any) -> int:
    return (await rig.envoy.stats("cluster.p.outlier_detection.ejections_active")).popitem()[1]


async def push(rig: Any, endpoints: dict[str, Any], *, healthy_hosts: int) -> None:
    """Replaces the endpoints and waits until Envoy has taken them."""
    successes = (await rig.envoy.stats("cluster.p.update_success"))["cluster.p.update_success"]
    rig.push_endpoints({"p": endpoints})

    async def taken() -> bool:
        stats = await rig.envoy.stats("cluster.p.")
        return (
            stats["cluster.p.update_success"] > successes
            and stats["cluster.p.membership_healthy"] == healthy_hosts
        )

    await rig.envoy.wait_for(taken, f"having {healthy_hosts} healthy hosts")
