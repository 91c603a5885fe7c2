"""Adapters with the whole control plane: the prober sees them come and go, and requests follow."""

import json

import aiohttp
import pytest
from yarl import URL

from tests.with_envoy.serve.conftest import PATIENT, STEADY, Site, document, eventually

pytestmark = pytest.mark.envoy


async def ask(site: Site, model: str) -> tuple[int, str, str]:
    """Status of a request for a model or an adapter, the engine that answered, and the reason of a refusal."""
    body = json.dumps({"model": model, "prompt": "hello", "max_tokens": 1})
    headers = {"content-type": "application/json"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{site.port}/v1/completions", data=body, headers=headers) as answer,
    ):
        await answer.read()
        said = answer.headers
        return answer.status, said.get("x-fake-engine", ""), said.get("x-switchgear-reason", "")


async def test_requests_follow_an_adapter_that_is_loaded_and_lost(site: Site) -> None:
    engines = await site.start_engines(3)
    pool = site.pool(probe=PATIENT)
    sql = site.route("sql", match={"model": "sql"}, adapter=True)
    site.write("all.yaml", pool, site.route(), sql, document("ResiliencePolicy", "default", STEADY))
    await site.serve()
    await site.envoy("n1")
    await site.answered()

    async def refused() -> bool:
        return await ask(site, "sql") == (503, "", "no-engine-with-adapter")

    await eventually(refused, "no engine has the adapter")
    assert (await ask(site, "fake-model"))[0] == 200

    async def change(verb: str, number: int) -> None:
        async with (
            aiohttp.ClientSession(engines[number].url) as session,
            session.post(f"/v1/{verb}_lora_adapter", json={"lora_name": "sql", "lora_path": "/sql"}) as done,
        ):
            assert done.status == 200

    async def served_by(number: int) -> bool:
        return {(await ask(site, "sql"))[:2] for _ in range(10)} == {(200, f"e{number}")}

    await change("load", 1)
    await eventually(lambda: served_by(1), "served by the engine that has it")
    code, printed, _ = await site.switchgear("why", "chat/e1", "--admin", f"http://{site.admin}")
    assert (code, "Adapters: sql." in printed) == (0, True), printed
    code, printed, _ = await site.switchgear("why", "chat/e0", "--admin", f"http://{site.admin}")
    assert "No requests for sql: the engine does not list it." in printed
    code, printed, _ = await site.switchgear("get", "engines", "-o", "wide", "--admin", f"http://{site.admin}")
    assert "ADAPTERS" in printed
    await change("load", 2)
    await change("unload", 1)
    await eventually(lambda: served_by(2), "moved with the adapter")
    assert await site.health(engines[1]) == "HEALTHY", "an adapter that is gone is not an engine that is gone"
    assert {(await ask(site, "fake-model"))[1] for _ in range(40)} == {"e0", "e1", "e2"}


async def test_pool_loads_an_adapter_and_names_an_engine_that_refuses(site: Site) -> None:
    engines = await site.start_engines(2, lora_paths="/adapters/sql")
    loads = [{"name": "sql", "path": "/adapters/sql"}, {"name": "law", "path": "/missing", "engines": 1}]
    pool = site.pool(probe=PATIENT, adapters=loads)
    routes = [site.route(name, match={"model": name}, adapter=True) for name in ("sql", "law")]
    site.write("all.yaml", pool, site.route(), *routes, document("ResiliencePolicy", "default", STEADY))
    await site.serve()
    await site.envoy("n1")
    await site.answered()

    async def served_by_both() -> bool:
        return {(await ask(site, "sql"))[:2] for _ in range(10)} == {(200, "e0"), (200, "e1")}

    await eventually(served_by_both, "loaded into both")
    admin = ("--admin", f"http://{site.admin}")

    async def named() -> bool:
        _, printed, _ = await site.switchgear("status", *admin)
        return "SG278" in printed and "SG279" in printed and "No adapter found for /missing" in printed

    await eventually(named, "no engine has law, and why")
    code, printed, _ = await site.switchgear("why", "pool:chat", *admin)
    assert "Adapter sql: on 2 of 2 engines, 2 wanted." in printed, (code, printed)
    assert "Adapter law: on 0 of 2 engines, 1 wanted." in printed
    _, printed, _ = await site.switchgear("get", "pools", "-o", "wide", *admin)
    assert "law=0,sql=2" in printed
    async with aiohttp.ClientSession() as session, session.get(f"http://{site.admin}/metrics") as page:
        text = await page.text()
    assert 'switchgear_pool_adapter_engines{adapter="sql",pool="chat"} 2.0' in text
    assert 'switchgear_adapter_loads_total{result="loaded"} 2.0' in text
    assert 'switchgear_condition{code="SG279",severity="warning"} 1.0' in text
    assert [engine.adapters for engine in engines] == [("sql",), ("sql",)]
    for path in ("unload_lora_adapter", "load_lora_adapter", "unload_lora_adapter/", "%75nload_lora_adapter?x=1"):
        url = URL(f"http://127.0.0.1:{site.port}/v1/{path}", encoded=True)
        for model in ("fake-model", "sql"):
            body = {"model": model, "lora_name": "sql", "lora_path": "/adapters/sql"}
            async with aiohttp.ClientSession() as caller, caller.post(url, json=body) as answer:
                assert (answer.status, answer.headers["x-switchgear-reason"]) == (404, "no-route"), path
    assert [engine.adapters for engine in engines] == [("sql",), ("sql",)], "callers can load and unload nothing"
