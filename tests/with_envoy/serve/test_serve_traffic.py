"""From policy files to traffic and back: real Envoys behind a real ``switchgear serve``."""

import itertools
import time

import pytest

from chaos.fake_engine import EngineCrash, EngineDrain, EngineErrorAfterWork, EngineHang
from chaos.history.request_outcomes import OutcomeReason
from tests.with_envoy.serve.conftest import PATIENT, Site, eventually

pytestmark = pytest.mark.envoy

LIVE = 'type="RTDS"'
"""Limits that follow the demand, and so are sent at any time."""


async def synced(site: Site) -> None:
    """Return once each proxy has all that it asked for."""

    async def so() -> bool:
        proxies = (await site.get("/v1/proxies"))["proxies"]
        return bool(proxies) and all(kind["state"] == "SYNCED" for one in proxies for kind in one["types"])

    await eventually(so, "the proxies have everything")


async def test_a_folder_of_policies_makes_an_envoy_serve(site: Site) -> None:
    await site.start_engines(2)
    site.write("chat.yaml", site.pool(), site.route())
    await site.serve()
    await site.envoy()
    await site.answered()
    answered = set[str]()

    async def both() -> bool:
        # Which of them is asked is chance.
        answered.add((await site.ask())[1])
        return answered == {"e0", "e1"}

    await eventually(both, "each engine answers")
    await synced(site)
    code, out, error = await site.switchgear("status", "--admin", f"http://{site.admin}")
    assert code == 0, out + error
    assert "n1" in out
    assert "SYNCED" in out
    (proxy,) = (await site.get("/v1/proxies"))["proxies"]
    assert (proxy["node"], proxy["zone"], proxy["role"]) == ("n1", "z1", "gateway")
    assert {kind["type"] for kind in proxy["types"]} >= {"RTDS", "CDS", "EDS", "LDS", "RDS"}


async def test_hung_engine_is_ejected(site: Site) -> None:
    engines = await site.start_engines(3)
    site.write("chat.yaml", site.pool(), site.route())
    server = await site.serve()
    await site.envoy()
    await site.answered()
    load = site.load()
    await load.more(10)
    hung_at = time.monotonic()
    await engines[0].set_fault(EngineHang(health="ok"))
    await site.becomes(engines[0], "UNHEALTHY")

    async def confirmed() -> bool:
        gone = await site.metric("switchgear_engine_departures_total", of='engine="e0"')
        return await site.metric("switchgear_departure_hop_seconds_count", of='hop="ack"') >= gone > 0

    await eventually(confirmed, "the proxy has endpoints without the engine")
    await load.more(10)
    settled_at = time.monotonic()
    await load.more(60)
    late = [
        call for call in engines[0].book.calls if call.arrived_at_s > settled_at and "probe" not in call.request_id
    ]
    from_load = [call for call in late if call.request_id.startswith("load-")]
    assert from_load == [], f"requests still came {settled_at - hung_at:.1f} s after the hang"
    told = [one["health"] for one in site.logged(server, "engine.health") if one["engine"] == "chat/e0"]
    assert told[-1] == "UNHEALTHY"
    assert all(one != other for one, other in itertools.pairwise(told)), "a line for each transition and no other"
    await engines[0].heal()
    await site.becomes(engines[0], "HEALTHY")
    before = engines[0].book.totals().finished

    def back() -> bool:
        return engines[0].book.totals().finished > before + 3

    await eventually(back, "traffic is back on the healed engine")


async def test_engine_that_fails_every_call_is_ejected(site: Site) -> None:
    """Its health check stays green and it answers at once, so it would attract calls."""
    engines = await site.start_engines(3)
    site.write("chat.yaml", site.pool(), site.route())
    await site.serve()
    await site.envoy()
    await site.answered()
    load = site.load()
    await load.more(30)
    await engines[0].set_fault(EngineErrorAfterWork())
    await site.becomes(engines[0], "UNHEALTHY")
    await load.more(10)
    settled, settled_at = len(load.outcomes), time.monotonic()
    await load.more(60)
    calls = [
        call
        for call in engines[0].book.calls
        if call.arrived_at_s > settled_at and call.request_id.startswith("load-")
    ]
    assert len(calls) <= 3, "at most a trial or two while it is out"
    failed = [one for one in load.outcomes[settled:] if one.reason is not OutcomeReason.OK]
    assert failed == [], "two engines serve"
    await engines[0].heal()
    await site.becomes(engines[0], "HEALTHY")
    before = engines[0].book.totals().finished
    await eventually(
        lambda: engines[0].book.totals().finished > before + 3, "traffic is back on the healed engine"
    )


async def test_a_policy_edit_moves_a_route(site: Site) -> None:
    first, second = await site.start_engines(2)
    site.write(
        "pools.yaml", *(site.pool(name, [one], probe=PATIENT) for name, one in (("a", first), ("b", second)))
    )
    site.write("route.yaml", site.route(pool="a"))
    await site.serve()
    await site.envoy()
    await site.answered()
    assert (await site.ask())[1] == "e0"
    load = site.load()
    await load.more(5)
    site.write("route.yaml", site.route(pool="b"))

    async def moved() -> bool:
        return (await site.ask())[1] == "e1"

    await eventually(moved, "the route leads to the other pool")
    await load.more(10)
    await load.end()
    assert load.failed == []


async def test_a_bad_edit_changes_nothing_but_the_status(site: Site) -> None:
    await site.start_engines(1)
    path = site.write("chat.yaml", site.pool(probe=PATIENT), site.route())
    good = path.read_text()
    server = await site.serve()
    await site.envoy()
    await site.answered()
    await site.becomes(site.engines[0], "HEALTHY")
    await synced(site)
    pushes = await site.metric("switchgear_xds_pushes_total", without=LIVE)
    path.write_text(good.replace("model:", "modle:"))

    async def refused() -> bool:
        return (await site.get("/v1/policies"))["state"] == "refused"

    await eventually(refused, "the edit is refused")
    policies = await site.get("/v1/policies")
    assert policies["serving_digest"] != policies["digest"]
    assert any("modle" in error["message"] + error["path"] for error in policies["errors"])
    code, out, _ = await site.switchgear("status", "--admin", site.admin)
    assert code == 1
    assert "chat.yaml" in out
    assert await site.metric("switchgear_policy_refused") == 1
    await site.answered()
    path.write_text(good)

    async def accepted() -> bool:
        return (await site.get("/v1/policies"))["state"] == "accepted"

    await eventually(accepted, "the edit is taken back")
    assert await site.metric("switchgear_xds_pushes_total", without=LIVE) == pushes
    assert len(site.logged(server, "policies.refused")) == 1


async def test_cluster_change_is_warmed_and_applied_at_once(site: Site) -> None:
    await site.start_engines(2)
    policy = {
        "apiVersion": "switchgear.dev/v1alpha1",
        "kind": "ResiliencePolicy",
        "metadata": {"name": "default"},
        "spec": {"timeouts": {"connect": "250ms"}},
    }
    site.write("chat.yaml", site.pool(probe=PATIENT), site.route())
    site.write("default.yaml", policy)
    await site.serve()
    envoy = await site.envoy()
    await site.answered()
    load = site.load()
    await load.more(5)
    policy["spec"] = {"timeouts": {"connect": "350ms"}}
    site.write("default.yaml", policy)

    async def applied() -> bool:
        dump = await envoy.get("/config_dump?resource=dynamic_active_clusters")
        return '"connect_timeout": "0.350s"' in dump

    await eventually(applied, "the new connect timeout is active")
    await load.more(10)
    await load.end()
    assert load.failed == []
    # 0.2 s on a quiet machine. Without endpoints behind the change Envoy waits until it gives up, and counts it.
    assert (await envoy.stats("cluster.chat.init_fetch_timeout")).get("cluster.chat.init_fetch_timeout", 0) == 0


async def test_draining_engine_cuts_no_stream(site: Site) -> None:
    engines = await site.start_engines(2, token_s=0.05)
    site.write("chat.yaml", site.pool(), site.route())
    await site.serve()
    await site.envoy()
    await site.answered()
    load = site.load(rate_per_s=10.0, streaming_share=1.0, max_tokens={40: 1.0})
    # More than are asked for below: looks at the engine count among its calls.
    await eventually(lambda: engines[0].calls_in_flight >= 6, "streams on the engine")
    drained_at = time.monotonic()
    await engines[0].set_fault(EngineDrain())
    await site.becomes(engines[0], "DRAINING")
    await eventually(lambda: engines[0].calls_in_flight == 0, "the engine is empty")
    await load.more(10)
    outcomes = await load.end()
    in_flight = [one for one in outcomes if one.arrived_at_s < drained_at < one.arrived_at_s + one.latency_s]
    assert len(in_flight) >= 3
    assert load.failed == []


async def test_reports_that_change_nothing_push_nothing_and_one_that_does_is_pushed_and_timed(site: Site) -> None:
    engines = await site.start_engines(3)
    site.write("chat.yaml", site.pool(probe=PATIENT), site.route())
    await site.serve()
    await site.envoy()
    await site.answered()
    for engine in engines:
        await site.becomes(engine, "HEALTHY")
    await synced(site)
    pushes = await site.metric("switchgear_xds_pushes_total", without=LIVE)
    reports = await site.metric("switchgear_engine_reports_total")

    async def reported() -> bool:
        return await site.metric("switchgear_engine_reports_total") >= reports + 30

    await eventually(reported, "thirty more reports")
    assert await site.metric("switchgear_xds_pushes_total", without=LIVE) == pushes
    await engines[1].set_fault(EngineCrash())
    await site.becomes(engines[1], "UNHEALTHY")

    async def pushed() -> bool:
        return await site.metric("switchgear_report_to_push_seconds_count") >= 1

    await eventually(pushed, "a report was pushed")
    assert await site.metric("switchgear_report_to_push_seconds_sum") > 0
    assert await site.metric("switchgear_xds_pushes_total", without=LIVE) <= pushes + 4  # not one for each report
