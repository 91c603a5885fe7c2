"""Quotas of days and months with a real server: used up stays used up when the server is killed."""

import csv
import json
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest

from chaos.fake_engine.openai_api import CHARACTERS_PER_TOKEN
from tests.with_envoy.serve.conftest import PATIENT, STEADY, Site, document, eventually
from xds_server.rollout.usage_store import read

pytestmark = pytest.mark.envoy

A_DAY, TOKENS_A_MONTH = 20, 100


def write(site: Site) -> None:
    tenants = {
        "header": "x-tenant",
        "trustHeader": True,
        "bytesPerToken": 1000,
        "named": [
            {"name": "daily", "requests": 1000, "perDay": {"requests": A_DAY}},
            # Each request counts as two tokens: one for its small body, one that it asks for.
            {"name": "monthly", "requests": 1000, "perMonth": {"tokens": TOKENS_A_MONTH}},
        ],
        "others": {"requests": 1000},
    }
    site.write(
        "all.yaml",
        site.pool(probe=PATIENT),
        site.route(listener={"port": site.port, "address": "127.0.0.1", "tenants": tenants}),
        document("ResiliencePolicy", "default", STEADY),
    )


async def periods(site: Site) -> Mapping[str, Any]:
    rows = (await site.get("/v1/tenants"))["tenants"]
    return {one["tenant"]: one["periods"][0] for one in rows if one["periods"]}


async def use_up(site: Site, tenant: str) -> int:
    """Number of requests that are answered before the first refusal."""
    served = 0
    while (status := (await site.ask(**{"x-tenant": tenant}))[0]) == 200:
        served += 1
    assert status == 429
    return served


def saved(site: Site) -> dict[str, float]:
    """Requests by tenant, as the files have them."""
    days, flaws = read(site.state_dir)
    assert not flaws
    return {row.tenant: row.requests for rows in days.values() for row in rows}


async def test_used_up_quotas_stay_used_up_when_the_server_is_killed(site: Site) -> None:
    await site.start_engines(1)
    write(site)
    child = await site.serve()
    await site.envoy()
    await site.answered()
    served = await use_up(site, "daily")
    # What is answered until the server knows, and proxies have its decision.
    assert A_DAY <= served <= 3 * A_DAY

    async def counted() -> bool:
        return bool((await periods(site))["daily"]["used_requests"] == served)

    await eventually(counted, "all answers counted")
    for _ in range(TOKENS_A_MONTH // 4):
        assert (await site.ask(**{"x-tenant": "monthly"}))[0] == 200

    async def half() -> bool:
        return bool((await periods(site))["monthly"]["used_tokens"] == TOKENS_A_MONTH / 2)

    await eventually(half, "the tokens of all answers")
    assert (await site.ask())[0] == 200, "a tenant with no such quota is served"
    code, out, error = await site.switchgear("why", "tenant:daily", "--admin", f"http://{site.admin}")
    assert code == 1, error
    assert "The quota of this day is used up" in " ".join(out.split())

    def on_disk() -> bool:
        files = saved(site)
        return (files.get("daily"), files.get("monthly")) == (served, TOKENS_A_MONTH / 4)

    await eventually(on_disk, "usage on disk")
    before = await periods(site)
    await site.kill(child)
    assert (await site.ask(**{"x-tenant": "daily"}))[0] == 429, "Envoy keeps refusing"
    await site.serve()
    after = await periods(site)
    for tenant, used in (("daily", "used_requests"), ("monthly", "used_tokens")):
        assert after[tenant][used] == before[tenant][used]
    assert after["daily"]["used_ratio"] >= 1
    code, out, error = await site.switchgear(
        "get", "usage", "daily", "-o", "csv", "--admin", f"http://{site.admin}"
    )
    assert code == 0, error
    (row,) = csv.DictReader(out.splitlines())
    assert (row["tenant"], float(row["requests"])) == ("daily", after["daily"]["used_requests"])
    # Also at a proxy that has no earlier configuration.
    await site.envoy("n2", "--listen-address", "127.0.0.2")
    assert await use_up(site, "daily") == 0
    assert await site.metric("switchgear_tenant_period_used_ratio", of='tenant="daily"') >= 1


async def test_usage_is_corrected_by_what_engines_count(site: Site) -> None:
    """Each request counts a token for each byte of its body, and has far fewer; its answer is one."""
    prompt = "hello " * 400
    body = json.dumps({"model": "fake-model", "prompt": prompt, "max_tokens": 1}).encode()
    bytes_per_token = len(body) * CHARACTERS_PER_TOKEN / len(prompt)

    async def ask(session: aiohttp.ClientSession, count: int) -> None:
        headers = {"content-type": "application/json"}
        for _ in range(count):
            async with session.post(
                f"http://127.0.0.1:{site.port}/v1/completions", data=body, headers=headers
            ) as answer:
                assert answer.status == 200

    await site.start_engines(1)
    tenants = {
        "header": "x-tenant",
        "trustHeader": True,
        "bytesPerToken": 1,
        "others": {"requests": 1000, "perDay": {"tokens": 1_000_000}},
    }
    listener = {"port": site.port, "address": "127.0.0.1", "tenants": tenants}
    site.write("all.yaml", site.pool(probe={**PATIENT, "interval": "1s"}), site.route(listener=listener))
    await site.serve()
    await site.envoy()
    await site.answered()

    async def learned() -> bool:
        async with aiohttp.ClientSession() as session:
            await ask(session, 20)
        return bool(await site.metric("switchgear_pool_bytes_per_token", of='pool="chat"'))

    await eventually(learned, "the counters of the engine")

    async def used() -> tuple[float, ...]:
        (row,) = (await site.get("/v1/usage"))["usage"]
        return row["requests"], row["tokens"], row["corrected"]

    before = await used()
    async with aiohttp.ClientSession() as session:
        await ask(session, 20)

    async def counted() -> bool:
        return (await used())[0] >= before[0] + 20

    await eventually(counted, "all answers counted")
    requests, tokens, corrected = (now - then for now, then in zip(await used(), before, strict=True))
    assert tokens == (len(body) + 1) * requests
    assert corrected == pytest.approx((len(body) / bytes_per_token + 1) * requests, rel=0.25)
    learned_bytes = await site.metric("switchgear_pool_bytes_per_token", of='pool="chat"')
    assert learned_bytes == pytest.approx(bytes_per_token, rel=0.25)
    code, out, error = await site.switchgear("why", "pool:chat", "--admin", f"http://{site.admin}")
    assert code == 0, error
    assert "a token of a prompt has" in " ".join(out.split())
    _, out, _ = await site.switchgear("why", "tenant:others", "--admin", f"http://{site.admin}")
    assert "By the engines' own counters, these were about" in " ".join(out.split())
