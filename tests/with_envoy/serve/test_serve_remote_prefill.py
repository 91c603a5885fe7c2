"""Prefill and decode with the whole control plane: verdicts of the prober decide which prefill engine is named."""

import json

import aiohttp
import pytest

from chaos.fake_engine import EngineCrash, EngineHang
from chaos.fake_engine.routing_sidecar import PREFILLED_BY_HEADER
from tests.with_envoy.serve.conftest import STEADY, Site, document, eventually

pytestmark = pytest.mark.envoy


async def named(site: Site) -> tuple[int, int]:
    """Status of a request, and the port of the prefill engine that was named for it; 0 for none."""
    body = json.dumps({"model": "fake-model", "prompt": "hello", "max_tokens": 1})
    headers = {"content-type": "application/json", "x-prefiller-host-port": "127.0.0.1:1"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{site.port}/v1/completions", data=body, headers=headers) as answer,
    ):
        await answer.read()
        return answer.status, int(answer.headers.get(PREFILLED_BY_HEADER, ":0").rpartition(":")[2])


async def test_hung_and_dead_prefill_engines_are_not_named(site: Site) -> None:
    await site.start_engines(2, name="p")
    await site.start_engines(2, routing_sidecar=True)
    first, decode = site.engines[:2], site.engines[2:]
    prefill = site.pool("first", first, stage="prefill")
    for endpoint, name in zip(prefill["spec"]["endpoints"], ("p0", "p1"), strict=True):
        endpoint["name"] = name
    chat = site.pool("chat", decode, stage="decode")
    route = site.route(prefill={"pool": "first"})
    site.write("all.yaml", prefill, chat, route, document("ResiliencePolicy", "default", STEADY))
    await site.serve()
    await site.envoy("n1")
    await site.answered()
    p0, p1 = (engine.port for engine in first)

    async def only(*ports: int) -> bool:
        return {await named(site) for _ in range(12)} == {(200, port) for port in ports}

    await eventually(lambda: only(p0, p1), "both are named")

    async def prefilled_percent() -> float | None:
        code, printed, _ = await site.switchgear(
            "get", "pools", "chat", "-o", "json", "--admin", f"http://{site.admin}"
        )
        assert code == 0, printed
        percent: float | None = json.loads(printed)["prefilled_percent"]
        return percent

    async def all_named() -> bool:
        return await prefilled_percent() == 100

    await eventually(all_named, "access logs show it for all requests")
    await first[0].set_fault(EngineCrash())
    await eventually(lambda: only(p1), "the dead one is not named")
    await first[1].set_fault(EngineHang())

    async def why(subject: str) -> str:
        _, printed, _ = await site.switchgear("why", subject, "--admin", f"http://{site.admin}")
        return printed

    async def aggregated() -> bool:
        return "0 of 2 engines of pool first are named" in await why("pool:chat")

    await eventually(aggregated, "neither is named")
    await eventually(lambda: only(0), "decode engines prefill themselves")

    async def fewer_named() -> bool:
        percent = await prefilled_percent()
        return percent is not None and 0 < percent < 90

    await eventually(fewer_named, "access logs show it, whatever callers send under the header's name")
    assert "Prefill: not named to decode engines: ejected." in await why("first/p0")
    await first[0].heal()
    await eventually(lambda: only(p0), "the healed one is named")
    named_by = (
        "Prefill: named by 2 of 2 engines in rotation of pool chat, for 100 % of the requests that get a name."
    )
    assert named_by in await why("first/p0")
    assert {await site.health(engine) for engine in decode} == {"HEALTHY"}
