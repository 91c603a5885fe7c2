"""Fair shares behind two Envoys: one tenant asks for more than the engine can answer, another loses nothing."""

from collections import Counter
from typing import Any

import pytest

from tests.with_envoy.serve.conftest import PATIENT, STEADY, Load, Site, document, eventually

pytestmark = pytest.mark.envoy

HOSTS = ("127.0.0.2", "127.0.0.3")
SLOTS, SERVICE_S = 8, 0.4
CAPACITY_PER_S = SLOTS / SERVICE_S
CALM_PER_S, NOISY_PER_S = 0.25 * CAPACITY_PER_S, 4 * CAPACITY_PER_S
JUDGED_REQUESTS = 15
"""Of the calm tenant, after the limit is in force."""


def load(site: Site, tenant: str, rate_per_s: float, seed: int) -> Load:
    headers = {"x-tenant": tenant}
    return site.load(rate_per_s, HOSTS, max_tokens={1: 1.0}, headers=headers, seed=seed)


async def row(site: Site, tenant: str) -> dict[str, Any]:
    rows = (await site.get("/v1/tenants"))["tenants"]
    return next(one for one in rows if one["tenant"] == tenant)


async def limited_percent(site: Site, tenant: str) -> float:
    return float((await row(site, tenant))["shares"][0]["refused_percent"])


async def test_tenant_above_its_share_is_shed_and_the_other_is_untouched(site: Site) -> None:
    await site.start_engines(1, prefill_s=SERVICE_S, token_s=0.001, slots=SLOTS)
    tenants = {
        "header": "x-tenant",
        "trustHeader": True,
        "fairShares": True,
        "named": [{"name": "noisy"}, {"name": "calm"}],
        "others": {},
    }
    site.write(
        "all.yaml",
        site.pool(probe=PATIENT, slotsPerEngine=SLOTS, serviceTime=f"{SERVICE_S}s", longestServiceTime="1s"),
        site.route(listener={"port": site.port, "tenants": tenants}),
        # With few places at each Envoy, chance alone refuses requests.
        document("ResiliencePolicy", "default", {**STEADY, "limits": {"maxWait": "1s"}}),
    )
    await site.serve()
    for number, host in enumerate(HOSTS):
        await site.envoy(f"n{number}", "--listen-address", host)
    calm = load(site, "calm", CALM_PER_S, 1)
    await calm.more(5)
    assert await limited_percent(site, "noisy") == 0
    noisy = load(site, "noisy", NOISY_PER_S, 2)

    async def limited() -> bool:
        return await limited_percent(site, "noisy") > 50

    await eventually(limited, "a limit for the noisy tenant")
    await calm.more(int(3 * CALM_PER_S))  # rates of 2 s contain only the present demand
    assert await limited_percent(site, "calm") == 0
    begun = len(calm.outcomes), len(noisy.outcomes)
    await calm.more(JUDGED_REQUESTS)
    code, out, error = await site.switchgear("why", f"tenant:{site.port}/noisy", "--admin", f"http://{site.admin}")
    assert code == 1, error
    assert "The pool has no room for all requests" in " ".join(out.split())
    assert await site.metric("switchgear_tenant_share_ratio", of='tenant="noisy"') < 0.5

    async def whole() -> bool:
        return await site.metric("switchgear_tenant_share_ratio", of='tenant="calm"') == 1

    # Its demand of two seconds varies, and may exceed its share for a moment.
    await eventually(whole, "no limit for the calm tenant")
    sent = (await noisy.end())[begun[1] :]
    assert Counter(one.status for one in (await calm.end())[begun[0] :]).keys() == {200}
    found = Counter(one.refusal for one in sent)
    assert found["above-fair-share"] > 0.5 * len(sent), found
