"""Tenants behind three Envoys: a noisy one keeps its quota, and others lose nothing."""

import json
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest

from chaos.history.request_outcomes import RequestOutcome
from tests.with_envoy.serve.conftest import PATIENT, STEADY, Load, Site, document, eventually

pytestmark = pytest.mark.envoy

HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
NOISY_PER_S, CALM_PER_S = 12, 60
MEASURED_REQUESTS = 600
"""Of the noisy tenant, at ten times its quota: five seconds or more."""
MOBILE_PER_S, MOBILE_REQUESTS = 30, 900
"""Of a tenant whose callers use one Envoy, at three times its quota: ten seconds."""
TOLERANCE = 0.1
BUNCHED = 0.15
"""Share that a busy machine may refuse in addition, because requests arrive closer together than sent."""


def tenants(**more: Any) -> dict[str, Any]:
    return {
        "header": "x-tenant",
        "trustHeader": True,
        "named": [
            {"name": "noisy", "requests": NOISY_PER_S},
            {"name": "calm", "requests": CALM_PER_S},
            {"name": "hourly", "requests": CALM_PER_S * 3600, "per": "hour"},
        ],
        "others": {"requests": 3},
        **more,
    }


def write(site: Site, **more: Any) -> None:
    listener = {"port": site.port, "tenants": tenants(**more)}
    site.write(
        "all.yaml",
        site.pool(probe=PATIENT),
        site.route(listener=listener),
        document("ResiliencePolicy", "default", STEADY),
    )


def load(site: Site, tenant: str, rate_per_s: float, seed: int) -> Load:
    headers = {"x-tenant": tenant}
    return site.load(rate_per_s, HOSTS, max_tokens={1: 1.0}, headers=headers, seed=seed)


def statuses(outcomes: list[RequestOutcome]) -> set[int]:
    return {one.status for one in outcomes}


def admissible(sent: list[RequestOutcome]) -> int:
    """Requests that empty buckets of a second's quota, one per Envoy, would admit at the times they were sent."""
    rate_per_s, total = NOISY_PER_S / len(HOSTS), 0
    for target in {one.target for one in sent}:
        times_s = sorted(one.arrived_at_s + one.lag_s for one in sent if one.target == target)
        left, last_s = 0.0, times_s[0]
        for at_s in times_s:
            left, last_s = min(rate_per_s, left + (at_s - last_s) * rate_per_s), at_s
            if left >= 1.0:
                left, total = left - 1.0, total + 1
    return total


async def rows(site: Site) -> dict[str, Any]:
    return {one["tenant"]: one for one in (await site.get("/v1/tenants"))["tenants"]}


async def refusal(site: Site, tenant: str) -> tuple[Mapping[str, str], str]:
    """Headers and message of a refused request of this tenant."""
    body = json.dumps({"model": "fake-model", "prompt": "hello", "max_tokens": 1})
    headers = {"content-type": "application/json", "x-tenant": tenant}
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.post(
                f"http://{HOSTS[0]}:{site.port}/v1/completions", data=body, headers=headers
            ) as answer:
                if answer.status == 429:
                    return answer.headers.copy(), (await answer.json())["error"]["message"]
                await answer.read()


async def test_noisy_tenant_keeps_its_quota_over_three_envoys_and_others_lose_nothing(site: Site) -> None:
    await site.start_engines(2)
    write(site)
    await site.serve()
    for number, host in enumerate(HOSTS):
        await site.envoy(f"n{number}", "--listen-address", host)

    async def divided() -> bool:
        return {one["proxies"] for one in (await rows(site)).values()} == {len(HOSTS)}

    await eventually(divided, "quotas divided by three")
    calm = [load(site, "calm", 6.0, 1), load(site, "hourly", 6.0, 2)]
    await calm[0].more(5)
    noisy = load(site, "noisy", 10.0 * NOISY_PER_S, 3)
    await noisy.more(10 * NOISY_PER_S)  # the bursts are used up
    begun = len(noisy.outcomes)
    await noisy.more(MEASURED_REQUESTS)
    headers, message = await refusal(site, "noisy")
    measured = (await noisy.end())[begun:]
    for one in calm:
        assert statuses(await one.end()) == {200}
    assert statuses(measured) == {200, 429}
    over_s = max(one.ended_at_s for one in measured) - min(one.ended_at_s for one in measured)
    admitted = sum(one.status == 200 for one in measured)
    assert admitted <= NOISY_PER_S * over_s * (1 + TOLERANCE), f"in {over_s} s"
    possible = admissible(measured)
    assert admitted >= possible * (1 - BUNCHED), f"{possible} possible in {over_s} s"

    assert headers["x-switchgear-reason"] == "quota-exceeded"
    assert message == "the quota of this tenant is used up; try again later"
    # A third, as far as requests came evenly.
    assert 1 <= int(headers["x-ratelimit-limit"]) <= NOISY_PER_S // 2
    assert headers["x-ratelimit-remaining"] == "0"
    assert headers["retry-after"] == headers["x-ratelimit-reset"] in {"1", "2"}

    sent = {one.status: 0 for one in noisy.outcomes}
    for outcome in noisy.outcomes:
        sent[outcome.status] += 1

    async def counted() -> bool:
        traffic = (await rows(site))["noisy"]["traffic"]
        return bool(traffic["admitted"] >= sent[200] and traffic["refused"] > sent[429])

    await eventually(counted, f"{sent} counted")
    assert await site.metric("switchgear_tenant_requests_total", of='outcome="over_quota"') == 0
    assert await site.metric("switchgear_tenant_quota_requests_per_second", of='tenant="noisy"') == NOISY_PER_S
    code, out, error = await site.switchgear("why", f"tenant:{site.port}/noisy", "--admin", f"http://{site.admin}")
    assert code in {0, 1}, error
    assert f"divided over {len(HOSTS)} proxies by what this tenant asks of each" in " ".join(out.split())
    code, out, error = await site.switchgear("get", "tenants", "--admin", f"http://{site.admin}")
    assert code == 0, error
    assert f"{site.port}/noisy" in out


async def test_tokens_of_a_tenant_keep_its_quota_over_three_envoys(site: Site) -> None:
    await site.start_engines(2)
    # Each request counts as two tokens: one for its body of less than 1000 bytes, one that it asks for.
    metered = {"name": "metered", "requests": 1000, "tokens": 2 * NOISY_PER_S, "tokensBurst": 2 * NOISY_PER_S}
    write(site, named=[metered, {"name": "calm", "requests": CALM_PER_S}], bytesPerToken=1000)
    await site.serve()
    for number, host in enumerate(HOSTS):
        await site.envoy(f"n{number}", "--listen-address", host)

    async def divided() -> bool:
        return {one["proxies"] for one in (await rows(site)).values()} == {len(HOSTS)}

    await eventually(divided, "quotas divided by three")
    calm = load(site, "calm", 6.0, 1)
    greedy = load(site, "metered", 10.0 * NOISY_PER_S, 3)
    await greedy.more(10 * NOISY_PER_S)  # the bursts are used up
    begun = len(greedy.outcomes)
    await greedy.more(MEASURED_REQUESTS)
    measured = (await greedy.end())[begun:]
    assert statuses(await calm.end()) == {200}
    assert statuses(measured) == {200, 429}
    over_s = max(one.ended_at_s for one in measured) - min(one.ended_at_s for one in measured)
    admitted, possible = sum(one.status == 200 for one in measured), admissible(measured)
    assert possible * (1 - BUNCHED) <= admitted <= NOISY_PER_S * over_s * (1 + TOLERANCE), (possible, over_s)
    code, out, error = await site.switchgear(
        "why", f"tenant:{site.port}/metered", "--admin", f"http://{site.admin}"
    )
    assert code in {0, 1}, error
    assert "And 24 tokens per second" in " ".join(out.split())


async def test_shadow_serves_and_counts_what_it_would_refuse(site: Site) -> None:
    await site.start_engines(1)
    write(site, mode="shadow")
    await site.serve()
    await site.envoy("n1", "--listen-address", HOSTS[0])

    async def served() -> bool:
        async with aiohttp.ClientSession() as session:
            body = json.dumps({"model": "fake-model", "prompt": "hello", "max_tokens": 1})
            headers = {"content-type": "application/json", "x-tenant": "unknown"}
            async with session.post(
                f"http://{HOSTS[0]}:{site.port}/v1/completions", data=body, headers=headers
            ) as answer:
                await answer.read()
                assert answer.status != 429
                assert "x-ratelimit-limit" not in answer.headers
        return bool((await rows(site))["others"]["traffic"]["over_quota"] > 0)

    await eventually(served, "a request over its quota")
    assert (await rows(site))["others"]["traffic"]["refused"] == 0


def admitted_per_s(sent: list[RequestOutcome]) -> float:
    """Requests per second that were admitted, from the first to the last that was."""
    times_s = sorted(one.arrived_at_s + one.lag_s for one in sent if one.status == 200)
    return (len(times_s) - 1) / (times_s[-1] - times_s[0])


async def test_callers_of_one_of_three_envoys_get_the_whole_quota_and_so_do_they_after_a_move(site: Site) -> None:
    await site.start_engines(2)
    write(site, named=[{"name": "mobile", "requests": MOBILE_PER_S, "burst": 10}])
    await site.serve()
    for number, host in enumerate(HOSTS):
        await site.envoy(f"n{number}", "--listen-address", host)

    async def divided() -> bool:
        return {one["proxies"] for one in (await rows(site)).values()} == {len(HOSTS)}

    await eventually(divided, "quotas divided by three")
    for number, host in enumerate(HOSTS[:2]):
        callers = site.load(
            3.0 * MOBILE_PER_S, (host,), max_tokens={1: 1.0}, headers={"x-tenant": "mobile"}, seed=number
        )

        async def followed(node: str = f"n{number}") -> bool:
            parts = (await rows(site))["mobile"]["parts"]
            return bool(parts and parts.get(node, 0.0) > 0.985)

        await callers.more(1)
        await eventually(followed, f"the quota at {host}")
        begun = len(callers.outcomes)
        await callers.more(MOBILE_REQUESTS)
        sent = await callers.end()
        assert statuses(sent) == {200, 429}
        per_s = admitted_per_s(sent[begun:])
        assert 0.98 * MOBILE_PER_S <= per_s <= 1.02 * MOBILE_PER_S
        # Also while the parts moved: no push filled a bucket.
        times_s = [one.arrived_at_s + one.lag_s for one in sent]
        over_s = max(times_s) - min(times_s)
        admitted = sum(one.status == 200 for one in sent)
        assert admitted <= 1.02 * MOBILE_PER_S * over_s + 10, f"in {over_s} s"
