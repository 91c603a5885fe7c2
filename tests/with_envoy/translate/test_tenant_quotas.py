"""Quotas of tenants at a real Envoy: whose bucket a request takes from, and what refusals cost."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.eventually import eventually
from tests.with_envoy.json_web_tokens import AUDIENCE, ISSUER, TokenIssuer
from tests.with_envoy.translate.test_listener_options import LIMIT_S, _route, hearing
from tests.with_envoy.translate.test_route_match_per_try_and_hedging import pool
from xds_server.decide.decisions import RetryDecision

__all__ = ["hearing"]
pytestmark = pytest.mark.envoy

IDP = TokenIssuer()
CLAIM = (
    f"jwt: {{providers: [{{name: idp, issuer: '{ISSUER}', audiences: [{AUDIENCE}], "
    f"localJwks: {{inline: '{IDP.key_set()}'}}, claimToHeaders: [{{claim: team, header: x-tenant}}]}}]}}"
)
SLOW = "requests: 4, per: hour, burst: 2"
"""Two requests at once, and no further one while a test runs."""


def tenants(*, trusted: str = ", trustHeader: true", mode: str = "enforce", others: str = SLOW) -> str:
    named = f"named: [{{name: a, {SLOW}}}, {{name: b, {SLOW}}}]"
    return f"tenants: {{header: x-tenant{trusted}, mode: {mode}, {named}, others: {{{others}}}}}"


async def statuses(one: Any, count: int, headers: dict[str, str] | None = None) -> list[int]:
    return [(await one.complete(headers=headers)).status for _ in range(count)]


async def test_each_tenant_has_a_bucket_and_unknown_callers_share_one(rig, hearing):
    one = await rig(pool("p", hearing) + _route(tenants()))
    assert await statuses(one, 3, {"x-tenant": "a"}) == [200, 200, 429]
    assert await statuses(one, 3, {"x-tenant": "b"}) == [200, 200, 429]
    assert await statuses(one, 1, {"x-tenant": "c"}) == [200]
    assert await statuses(one, 1) == [200]
    for headers in ({"x-tenant": "d"}, {"x-tenant": "a,b"}, None):
        assert await statuses(one, 1, headers) == [429]
    assert len(hearing.seen) == 6


async def test_refusal_tells_when_to_come_again_and_what_is_left(rig, hearing):
    one = await rig(pool("p", hearing) + _route(tenants()))
    left = []
    for _ in range(2):
        answer = await one.complete(headers={"x-tenant": "a"})
        left.append((answer.headers["x-ratelimit-limit"], answer.headers["x-ratelimit-remaining"]))
        assert "retry-after" not in answer.headers
    assert left == [("2", "1"), ("2", "0")]
    async with one.client.post(
        f"{one.url}/v1/completions", json={"model": "m"}, headers={"x-tenant": "a"}
    ) as answer:
        assert answer.status == 429
        assert answer.headers["x-switchgear-reason"] == "quota-exceeded"
        assert 800 < int(answer.headers["retry-after"]) <= 900
        assert (await answer.json())["error"]["message"] == "the quota of this tenant is used up; try again later"


async def test_claim_names_the_tenant_and_callers_cannot_forge_it(rig, hearing):
    one = await rig(pool("p", hearing) + _route(f"{CLAIM}, {tenants(trusted='')}"))
    assert await statuses(one, 3, {**IDP.header(team="a"), "x-tenant": "b"}) == [200, 200, 429]
    assert await statuses(one, 2, IDP.header(team="b")) == [200, 200]
    # A request without a valid token takes nothing of any quota.
    assert await statuses(one, 3, {"x-tenant": "c"}) == [401, 401, 401]
    assert await statuses(one, 2, IDP.header(team="c")) == [200, 200]


async def test_shadow_serves_above_the_quota_and_marks_the_request(rig, hearing):
    one = await rig(pool("p", hearing) + _route(tenants(mode="shadow")))
    assert await statuses(one, 3, {"x-tenant": "a", "x-switchgear-over-quota": "true"}) == [200, 200, 200]
    assert [headers.get("x-switchgear-over-quota") for headers in hearing.seen] == [None, None, "true"]


async def test_refused_request_is_read_no_body_and_takes_no_slot(rig, hearing):
    one = await rig(pool("p", hearing) + _route(tenants()), ceilings={"p": (0, 0)})
    assert await statuses(one, 2) == [503, 503]

    async def endless() -> AsyncIterator[bytes]:
        yield b'{"model": "m", "prompt": "'
        await eventually(lambda: False, "the answer", LIMIT_S)

    async with one.client.post(f"{one.url}/v1/completions", data=endless()) as answer:
        assert answer.status == 429


async def test_changed_routes_fill_the_buckets_again(rig, hearing):
    """Envoy's behaviour that `burst` bounds, and that docs/tenants.md names."""
    one = await rig(pool("p", hearing) + _route(tenants()), dynamic_routes=True)
    assert await statuses(one, 3, {"x-tenant": "a"}) == [200, 200, 429]
    await one.decide(retries=RetryDecision(statuses=(502,), reason="", since_s=0.0))
    assert await statuses(one, 3, {"x-tenant": "a"}) == [200, 200, 429]


async def test_sum_of_a_flood_is_the_quota(rig, hearing):
    one = await rig(pool("p", hearing) + _route(tenants(others="requests: 50, burst: 1")))
    clock = asyncio.get_running_loop().time
    began_s, found = clock(), []
    while clock() - began_s < 4.0:
        found.append((await one.complete()).status)
    assert found.count(200) <= 50 * (clock() - began_s) + 2
