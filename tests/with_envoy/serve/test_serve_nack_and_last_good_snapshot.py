"""Traffic when configuration is refused, and when the control plane dies, is away or starts badly."""

import asyncio
import contextlib
import json
import time
from typing import Any

import grpc
import pytest

from tests.with_envoy.serve.conftest import PATIENT, STEADY, Site, document, eventually
from xds_server.rollout import learned_state

pytestmark = pytest.mark.envoy

BAD_REGEX = "x{80}"
"""An expression that policies and Envoy accept, unless an Envoy is started with a lower limit."""

UPDATES = (
    "cluster_manager.cds.update_success",
    "listener_manager.lds.update_success",
    "cluster.chat.update_success",
)


def regex_route(site: Site, regex: str) -> dict[str, Any]:
    return site.route(match={"headers": [{"name": "x-tier", "regex": regex}]})


async def rolled_back(site: Site, count: int) -> bool:
    return await site.metric("switchgear_xds_rolled_back_resources") == count


async def nacks(site: Site, count: int) -> bool:
    return await site.metric("switchgear_xds_nacks_total") == count


async def nacked(site: Site) -> bool:
    proxies = (await site.get("/v1/proxies"))["proxies"]
    return any(kind["state"] == "NACK" for proxy in proxies for kind in proxy["types"])


async def test_nacked_route_is_rolled_back_for_old_and_new_proxies(site: Site) -> None:
    await site.start_engines(2)
    site.write("pool.yaml", site.pool(probe=PATIENT), document("ResiliencePolicy", "default", STEADY))
    path = site.write("route.yaml", regex_route(site, "gold|silver"))
    server = await site.serve()
    first = await site.envoy("n1", strict_regex=True)
    await site.answered(**{"x-tier": "gold"})
    load = site.load(headers={"x-tier": "gold"})
    await load.more(5)

    site.write("route.yaml", regex_route(site, BAD_REGEX))
    await eventually(lambda: site.logged(server, "xds.nack"), "the refusal is logged")
    (nack,) = site.logged(server, "xds.nack")
    assert (nack["node"], nack["type"], nack["resource"]) == ("n1", "RDS", f"port-{site.port}")
    assert any(place.startswith(f"{path}:") for place in nack["policy"]), nack
    assert "max program size" in nack["reason"]
    assert await site.metric("switchgear_xds_nacks_total") == 1
    await eventually(lambda: rolled_back(site, 1), "the refused version is reported as rolled back")
    assert await nacked(site)
    code, out, _ = await site.switchgear("status", "--admin", site.admin)
    assert code == 1
    assert "route.yaml" in out
    assert "max program size" in out
    await load.more(10)

    # A proxy that comes now judges by itself, and then gets what was accepted last.
    second = await site.envoy("n2", strict_regex=True)
    assert await second.ready()
    await eventually(lambda: has_routes(second, "gold|silver"), "the routes accepted last are in place")
    assert not await has_routes(second, BAD_REGEX)
    # It refuses all that is new to it, and once more the one route among what it accepted meanwhile.
    await eventually(lambda: nacks(site, 3), "the route at fault is found")

    site.write("route.yaml", regex_route(site, "gold|bronze"))
    for envoy in (first, second):

        async def updated(envoy: Any = envoy) -> bool:
            return "gold|bronze" in await envoy.get("/config_dump?resource=dynamic_route_configs")

        await eventually(updated, "the corrected route is in place")

    async def calm() -> bool:
        return not await nacked(site)

    await eventually(calm, "nothing is refused any more")
    await eventually(lambda: rolled_back(site, 0), "nothing is rolled back any more")
    code, out, error = await site.switchgear("status", "--admin", site.admin)
    assert code == 0, out + error
    await load.more(10)
    await load.end()
    assert load.failed == []


async def has_routes(envoy: Any, text: str) -> bool:
    return bool(text in await envoy.get("/config_dump?resource=dynamic_route_configs"))


async def test_nack_is_remembered_over_a_restart(site: Site) -> None:
    await site.start_engines(1)
    site.write("pool.yaml", site.pool())
    site.write("route.yaml", regex_route(site, "gold|silver"))
    server = await site.serve()
    first = await site.envoy("n1", strict_regex=True)
    await site.answered(**{"x-tier": "gold"})
    site.write("route.yaml", regex_route(site, BAD_REGEX))
    kept = site.state_dir / "last-good.json"

    def remembered() -> bool:
        with contextlib.suppress(FileNotFoundError):
            return f"port-{site.port}" in json.dumps(json.loads(kept.read_text())["payload"]["parked"])
        return False

    await eventually(remembered, "the refusal is kept")
    await site.kill(server)
    first.stop()

    # No proxy is left to report what it accepted, and the file on disk is still the refused one.
    await site.serve()
    second = await site.envoy("n2", strict_regex=True)
    await eventually(lambda: has_routes(second, "gold|silver"), "the routes before the refused ones")
    await site.answered(**{"x-tier": "gold"})
    await eventually(lambda: nacks(site, 2), "the route at fault is found")
    await eventually(lambda: rolled_back(site, 1), "the edit has no effect")
    (shown,) = (await site.get("/v1/troubles"))["rolled_back"]
    assert shown["refused_by"] == ["n1", "n2"]
    site.write("route.yaml", regex_route(site, "gold|bronze"))
    await site.answered(**{"x-tier": "bronze"})


async def test_restarted_control_plane_resends_nothing(site: Site) -> None:
    """Also not to proxies of several zones, which do not all come back at once: they share limits and zones.

    Nor before the learned limits, which take 30 s of traffic: here an earlier run learned them.
    """
    zones = ("z1", "z2")
    endpoints = [
        {"address": "127.0.0.1", "port": engine.port, "zone": zone}
        for engine, zone in zip(await site.start_engines(2), zones, strict=True)
    ]
    site.write("chat.yaml", site.pool(endpoints=endpoints, probe=PATIENT), site.route())
    limits = {"first_token_s": None, "per_try_s": 12.3, "first_byte": None, "widened": 1.0, "doubted_ago_s": None}
    learned_state.save(
        site.state_dir, {"chat": {"limits": {**limits, "answer": {"time_s": 6.8, "age_s": 1.0}}}}, time.time()
    )
    server = await site.serve()
    envoys = [await site.envoy(f"in-{zone}", "--zone", zone) for zone in zones]
    await site.answered()

    async def synced() -> bool:
        proxies = (await site.get("/v1/proxies"))["proxies"]
        return len(proxies) == 2 and all(kind["state"] == "SYNCED" for proxy in proxies for kind in proxy["types"])

    await eventually(synced, "both proxies have everything")
    load = site.load()
    await load.more(10)
    before = [{name: (await envoy.stats(name))[name] for name in UPDATES} for envoy in envoys]

    await site.kill(server)
    await load.more(30)
    await site.serve()
    await eventually(synced, "both proxies are back")
    await load.more(10)
    after = [{name: (await envoy.stats(name))[name] for name in UPDATES} for envoy in envoys]
    await load.end()
    assert load.failed == []
    assert after == before
    for envoy in envoys:  # that can cut: three times 12.3 s
        assert '"per_try_timeout": "36.9' in await envoy.get("/config_dump?resource=dynamic_route_configs")
    # Limits follow the demand that a new process hears of again; they are live numbers, and disturb nothing.
    assert await site.metric("switchgear_xds_pushes_total", without='type="RTDS"') == 0


async def test_traffic_continues_without_a_control_plane(site: Site) -> None:
    engines = await site.start_engines(2)
    site.write("chat.yaml", site.pool(probe=PATIENT), site.route())
    server = await site.serve()
    await site.envoy()
    await site.answered()
    for engine in engines:
        await site.becomes(engine, "HEALTHY")
    assert await site.stop(server) == 0
    before = [engine.book.totals().finished for engine in engines]
    load = site.load()
    await load.more(60)
    await load.end()
    assert load.failed == []
    now = [engine.book.totals().finished for engine in engines]
    assert all(more > had for more, had in zip(now, before, strict=True))


async def test_start_with_broken_policies_serves_the_last_good_snapshot(site: Site) -> None:
    engines = await site.start_engines(2)
    path = site.write("chat.yaml", site.pool(), site.route())
    good = path.read_text()
    server = await site.serve()
    kept = site.state_dir / "last-good.json"
    await eventually(kept.exists, "the policies are kept")
    await site.kill(server)

    path.write_text("kind: [")
    server = await site.serve()
    await site.envoy()
    await site.answered()
    policies = await site.get("/v1/policies")
    assert (policies["state"], policies["stale"]) == ("refused", True)
    assert await site.metric("switchgear_policy_stale") == 1
    assert site.logged(server, "policies.stale")
    # Not a picture of the past: engines are still judged.
    await engines[0].stop()
    await site.becomes(engines[0], "UNHEALTHY")
    await site.answered()
    engines.pop(0)

    path.write_text(good)

    async def fresh() -> bool:
        policies = await site.get("/v1/policies")
        return (policies["state"], policies["stale"]) == ("accepted", False)

    await eventually(fresh, "the files are served again")
    assert await site.metric("switchgear_policy_stale") == 0


async def test_xds_port_opens_after_the_first_snapshot(site: Site) -> None:
    await site.start_engines(1)
    path = site.write("chat.yaml", site.pool())
    path.write_text("kind: [")
    (site.state_dir).mkdir()
    (site.state_dir / "last-good.json").write_text("not ours")
    starting = asyncio.create_task(site.serve())

    async def told() -> bool:
        with contextlib.suppress(OSError):
            return (await site.get("/v1/policies"))["state"] == "refused"
        return False

    await eventually(told, "the admin port says why")
    assert (await site.get("/readyz"))["ready"] is False
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection(*site.xds.split(":"))
    assert not starting.done()
    site.write("chat.yaml", site.pool(), site.route())
    await starting
    assert (await site.get("/readyz"))["ready"] is True


async def test_shrinking_policies_are_held_until_released(site: Site) -> None:
    await site.start_engines(2)
    site.write("chat.yaml", site.pool(), site.route())
    others = [site.pool(f"p{number}") for number in range(4)]
    site.write("others.yaml", *others)
    server = await site.serve()
    envoy = await site.envoy()
    await site.answered()
    site.write("others.yaml", document("ResiliencePolicy", "default", {}))

    async def held() -> bool:
        return (await site.get("/v1/policies"))["state"] == "held"

    await eventually(held, "the shrunken policies are held back")
    assert "would remove" in (await site.get("/v1/policies"))["held"]
    assert '"p3"' in await envoy.get("/config_dump?resource=dynamic_active_clusters")
    code, out, _ = await site.switchgear("status", "--admin", site.admin)
    assert code == 1
    assert "held back" in out
    (event,) = site.logged(server, "policies.held")
    assert "--allow-shrink" in event["release"]

    assert await site.post("/v1/allow-shrink") == 200

    async def gone() -> bool:
        return '"p3"' not in await envoy.get("/config_dump?resource=dynamic_active_clusters")

    await eventually(gone, "the pools are gone")
    await site.answered()


async def test_proxyless_grpc_client_resolves_the_engines(site: Site) -> None:
    await site.start_engines(1)

    async def hello(_request: bytes, _context: Any) -> bytes:
        return b"pong"

    backend = grpc.aio.server()
    backend.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("t.Echo", {"Ping": grpc.unary_unary_rpc_method_handler(hello)}),)
    )
    port = backend.add_insecure_port("127.0.0.1:0")
    await backend.start()
    pool = site.pool("echo")
    pool["spec"]["endpoints"] = [{"address": "127.0.0.1", "port": port}]
    pool["spec"]["probe"] = {"enabled": False}
    site.write("echo.yaml", pool)
    await site.serve()
    config = site.folder / "grpc.json"
    config.write_text(
        f'{{"xds_servers": [{{"server_uri": "{site.xds}", "channel_creds": [{{"type": "insecure"}}],'
        ' "server_features": ["xds_v3"]}], "node": {"id": "g1", "locality": {"zone": "z1"}}}'
    )
    script = (
        "import grpc, sys\n"
        "with grpc.insecure_channel('xds:///echo') as channel:\n"
        "    call = channel.unary_unary('/t.Echo/Ping')\n"
        "    print(call(b'ping', timeout=50, wait_for_ready=True).decode())\n"
    )
    out = await site.python(script, {"GRPC_XDS_BOOTSTRAP": str(config)})
    await backend.stop(None)
    assert out == "pong\n"
