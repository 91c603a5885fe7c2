"""What a real Envoy does when an engine is cut off: what the engine holds moves, and nothing else notices."""

import asyncio
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from chaos.fake_engine import EngineCrash, EngineHang, EngineHangMidStream, EngineShed
from tests.with_envoy.cut.conftest import FINE, HUNG, POOL, Site, StartSite, eventually
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.fleet import EngineId
from xds_server.telemetry import Telemetry

pytestmark = pytest.mark.envoy

OUT = replace(HUNG, cut=False)
BOTH = pytest.mark.parametrize("protocol", ["delta", "sotw"])
NO_RESET = "retries: {conditions: [connect-failure, refused-stream]}"


async def held_by(one: Site, *hung: str, requests: int = 24) -> list[asyncio.Task[tuple[int, str]]]:
    """Requests in flight that the hung engines hold; all others were answered."""
    for engine in hung:
        await one.engines[engine].set_fault(EngineHang())
    asked = [asyncio.create_task(one.ask()) for _ in range(requests)]

    def only_theirs() -> bool:
        return all(map(one.held, hung)) and sum(not one.done() for one in asked) == sum(map(one.held, hung))

    await eventually(only_theirs, "the hung engines hold what is left")
    return asked


@BOTH
async def test_in_flight_requests_of_a_hung_engine_are_retried_elsewhere(site: StartSite, protocol: str) -> None:
    one = await site(engines=3, protocol=protocol, slots=64)
    one.plane.judge(OUT, "e0")
    await one.plane.settled()
    streams = await one.streams(9)
    one.plane.judge(FINE, "e0")
    await one.plane.settled()
    asked = await held_by(one, "e0")
    one.plane.judge(HUNG, "e0")
    assert Counter(status for status, _ in await asyncio.gather(*asked)) == {200: len(asked)}
    await eventually(lambda: one.held("e0") == 0, "nothing is held")
    assert await streams.end() == {200}
    assert one.plane.seen.nacks == []


async def test_a_stream_that_a_hung_engine_has_begun_is_ended(site: StartSite) -> None:
    one = await site(engines=2, slots=64)
    one.plane.judge(OUT, "e1")
    await one.plane.settled()
    await one.engines["e0"].set_fault(EngineHangMidStream())
    body = {"model": "fake-model", "prompt": "x", "max_tokens": 50, "stream": True}
    async with one.http.post(f"{one.url}/v1/completions", json=body) as answer:
        assert (answer.status, answer.headers["x-fake-engine"]) == (200, "e0")
        one.plane.judge(FINE, "e1")
        one.plane.judge(HUNG, "e0")
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()


@BOTH
async def test_two_engines_are_cut_at_once(site: StartSite, protocol: str) -> None:
    one = await site(engines=5, protocol=protocol, slots=64)
    asked = await held_by(one, "e0", "e1", requests=40)
    one.plane.judge(HUNG, "e0", "e1")
    assert {status for status, _ in await asyncio.gather(*asked)} == {200}


@BOTH
async def test_an_engine_comes_back_under_load_without_a_lost_request(site: StartSite, protocol: str) -> None:
    one = await site(engines=3, protocol=protocol, slots=64)
    answers: list[tuple[int, str]] = []
    stop = asyncio.Event()

    async def client() -> None:
        while not stop.is_set():
            answers.append(await one.ask(tokens=2))

    clients = [asyncio.create_task(client()) for _ in range(8)]
    for _ in range(3):
        await one.engines["e0"].set_fault(EngineHang())
        await eventually(lambda: one.held("e0") > 0, "the hung engine holds something")
        one.plane.judge(HUNG, "e0")
        await eventually(lambda: one.held("e0") == 0, "nothing is held")
        await one.engines["e0"].heal()
        one.plane.judge(OUT, "e0")
        await one.plane.settled()
        one.plane.judge(FINE, "e0")
        seen = len(answers)
        await eventually(lambda seen=seen: "e0" in {name for _, name in answers[seen:]}, "the engine serves again")
    stop.set()
    await asyncio.gather(*clients)
    assert Counter(status for status, _ in answers) == {200: len(answers)}


async def test_cut_pushes_eds_and_lds_only(site: StartSite) -> None:
    one = await site(engines=3)
    before = await one.envoy.stats("listener_manager.")
    one.plane.seen.pushes.clear()
    one.plane.judge(HUNG, "e0")
    await one.plane.settled()
    assert Counter(one.plane.seen.pushes) == {"EDS": 1, "LDS": 1}
    after = await one.envoy.stats("listener_manager.")
    moved = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert moved["listener_manager.listener_removed"] == 1
    assert "listener_manager.listener_modified" not in moved


async def test_a_control_plane_that_restarts_in_the_middle_changes_nothing(site: StartSite) -> None:
    one = await site(engines=3, slots=64)
    asked = await held_by(one, "e0")
    one.plane.judge(HUNG, "e0")
    assert {status for status, _ in await asyncio.gather(*asked)} == {200}
    await one.plane.stop()
    assert {status for status, _ in await one.many(20)} == {200}
    await one.plane.start()
    await eventually(one.plane.synced, "the proxy is back and in sync")
    assert {name for _, name in await one.many(20)} == {"e1", "e2"}
    await one.engines["e0"].heal()
    one.plane.judge(OUT, "e0")
    await one.plane.settled()
    one.plane.judge(FINE, "e0")
    await one.plane.settled()
    await eventually(lambda: served_by(one, "e0"), "the engine serves again")


async def served_by(one: Site, engine: str) -> bool:
    answers = await one.many(10)
    assert {status for status, _ in answers} == {200}
    return engine in {name for _, name in answers}


async def test_cut_decided_during_a_disconnect_is_made_on_reconnect(site: StartSite) -> None:
    one = await site(engines=3, slots=64)
    await one.plane.stop()
    asked = await held_by(one, "e0")
    one.plane.judged[next(key for key in one.plane.judged if key.engine == "e0")] = HUNG
    await one.plane.start()
    assert {status for status, _ in await asyncio.gather(*asked)} == {200}


async def test_proxy_without_internal_listeners_keeps_in_flight_requests(site: StartSite) -> None:
    one = await site(engines=3, cuts=False, slots=64)
    assert all("socket_address" in host["address"] for host in (await one.hosts()).values())
    asked = await held_by(one, "e0")
    held = one.held("e0")
    one.plane.judge(HUNG, "e0")
    await one.plane.settled()
    assert {name for _, name in await one.many(20)} == {"e1", "e2"}
    assert one.held("e0") == held
    await one.engines["e0"].heal()
    answers = await asyncio.gather(*asked)
    assert {status for status, _ in answers} == {200}
    assert Counter(name for _, name in answers)["e0"] >= held


@pytest.mark.parametrize("cuts", [True, False])
async def test_envoy_outlier_detection_ejects_a_crashed_engine_with_growing_ejection_time(
    site: StartSite, cuts: bool
) -> None:
    one = await site(engines=4, cuts=cuts, slots=64)
    await one.plane.stop()
    began_s = time.monotonic()
    await one.engines["e0"].set_fault(EngineCrash())
    prefix = f"cluster.{POOL}.outlier_detection."
    for ejections in (1, 2, 3, 4):

        async def so_often(ejections: int = ejections) -> bool:
            answers = [await one.ask() for _ in range(3)]
            assert {status for status, _ in answers} == {200}
            return (await one.envoy.stats(prefix)).get(f"{prefix}ejections_enforced_total", 0) >= ejections

        await eventually(so_often, f"ejection {ejections}")
        failed = total((await one.hosts())["e0"]["stats"], "rq_error")
        ejected = (await one.envoy.stats(prefix))[f"{prefix}ejections_enforced_total"]
        # Those for which it was ejected, and perhaps some of the next time where our turn came late.
        assert failed < 3 * (ejected + 1)
    # 1, 2 and 3 s, each until the next sweep, had to pass before the fourth: 8 s at least, and 6 at most if they
    # were equal on a machine that is not busy. A busy one notices late, and so can only make it more.
    assert time.monotonic() - began_s > 7
    await one.plane.start()


def total(stats: list[dict[str, Any]], name: str) -> int:
    return sum(int(one.get("value", 0)) for one in stats if one["name"] == name)


async def test_load_shedding_engine_is_never_ejected(site: StartSite) -> None:
    one = await site(engines=3)
    await one.engines["e0"].set_fault(EngineShed(retry_after_s=None))
    for _ in range(10):
        assert {status for status, _ in await one.many(10)} == {200}
    assert one.engines["e0"].book.totals().shed >= 10
    stats = await one.envoy.stats(f"cluster.{POOL}.outlier_detection.")
    assert stats[f"cluster.{POOL}.outlier_detection.ejections_enforced_total"] == 0


async def test_without_retries_of_resets_engines_are_reached_directly_and_refusals_are_retried(
    site: StartSite,
) -> None:
    one = await site(engines=3, resilience=NO_RESET)
    assert all("socket_address" in host["address"] for host in (await one.hosts()).values())
    await one.engines["e0"].set_fault(EngineCrash())
    assert {status for status, _ in await one.many(30)} == {200}


async def test_policy_without_internal_listeners_cuts_nothing(site: StartSite) -> None:
    one = await site(engines=3, slots=64)
    streams = await one.streams(9)
    for resilience in (NO_RESET, "{}", NO_RESET):
        one.plane.edit(one.write(resilience))
        await one.plane.settled()
        assert {status for status, _ in await one.many(12)} == {200}
    assert await streams.end() == {200}


@pytest.fixture
async def black_hole() -> AsyncIterator[int]:
    """A port on which connections never open: its accept queue is full."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    waiting = []
    for _ in range(3):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(listener.getsockname())
        waiting.append(one)
    yield listener.getsockname()[1]
    for one in (*waiting, listener):
        one.close()


async def test_an_engine_behind_a_black_hole_is_given_up_after_the_connect_timeout(
    site: StartSite, black_hole: int
) -> None:
    one = await site(engines=3)
    pool = one.plane.fleet.pools[POOL]
    one.plane.fleet = replace(one.plane.fleet, pools={POOL: (replace(pool[0], port=black_hole), *pool[1:])})
    one.plane.publish()
    await one.plane.settled()
    answers = await one.many(30)
    assert Counter(status for status, _ in answers) == {200: 30}
    assert {name for _, name in answers} == {"e1", "e2"}
    stats = await one.envoy.stats(f"cluster.hop/{POOL}.")
    assert stats[f"cluster.hop/{POOL}.upstream_cx_connect_timeout"] > 0


async def test_als_and_lrs_name_engines_behind_internal_listeners(site: StartSite) -> None:
    telemetry = Telemetry(Metrics())
    one = await site(engines=3, slots=64, handlers=telemetry.handlers())
    telemetry.watch(one.plane.policies)
    loop = asyncio.get_running_loop()
    assert {status for status, _ in await one.many(30)} == {200}
    asked = await held_by(one, "e0")

    def told() -> bool:
        pool = telemetry.traffic(loop.time()).get(POOL)
        engines = pool.engines if pool else {}
        return (
            {"e0", "e1", "e2"} <= engines.keys()
            and sum(engine.succeeded for engine in engines.values()) == 30 + len(asked) - one.held("e0")
            and engines["e0"].in_flight == one.held("e0")
        )

    await eventually(told, "the proxy reports each engine")
    held = one.held("e0")
    one.plane.judge(HUNG, "e0")
    await asyncio.gather(*asked)

    def ended() -> bool:
        engine = telemetry.traffic(loop.time())[POOL].engines["e0"]
        return bool(engine.failed == held and engine.in_flight == 0)

    await eventually(ended, "what was cut has ended")
    telemetry.stop()


@pytest.mark.parametrize(("at_once", "least", "most"), [(4, 0.1, 0.35), (60, 0.2, 0.48)])
async def test_half_open_engine_gets_its_share_of_trial_traffic(
    site: StartSite, at_once: int, least: float, most: float
) -> None:
    one = await site(engines=4, slots=64)
    one.plane.judge(replace(FINE, traffic_percent=25.0), "e0")
    await one.plane.settled()
    served: Counter[str] = Counter()

    async def client() -> None:
        while served.total() < 600:
            served[(await one.ask(tokens=5))[1]] += 1

    await asyncio.gather(*(client() for _ in range(at_once)))
    others = (served.total() - served["e0"]) / 3
    assert least < served["e0"] / others < most


async def test_engine_with_a_new_address_drains_at_the_old_one(site: StartSite) -> None:
    one = await site(engines=2, slots=64)
    streams = await one.streams(6)
    pool = one.plane.fleet.pools[POOL]
    # The engines swap ports: each answers the other's requests.
    moved = (replace(pool[0], port=pool[1].port), replace(pool[1], port=pool[0].port))
    one.plane.fleet = replace(one.plane.fleet, pools={POOL: moved})
    one.plane.judge(replace(FINE, health=OUT.health), "e1")
    await one.plane.settled()
    assert set(await one.many(10)) == {(200, "e1")}
    assert await streams.end() == {200}


async def test_removed_engine_drains_its_in_flight_requests(site: StartSite) -> None:
    one = await site(engines=2, slots=64)
    streams = await one.streams(6)
    one.plane.leaving = {EngineId(POOL, "e0"): 900.0}
    one.plane.edit(one.write(names=["e1"]))
    await one.plane.settled()
    assert {name for _, name in await one.many(10)} == {"e1"}
    assert await streams.end() == {200}
