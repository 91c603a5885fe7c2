"""Quotas of tenants at a real Envoy: whose bucket a request takes from, and what refusals cost."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from policies.route import MAX_TOKENS_HEADER
from policies.tenants import QuotaPeriod
from tests.eventually import eventually
from tests.with_envoy.json_web_tokens import AUDIENCE, ISSUER, TokenIssuer
from tests.with_envoy.translate.test_listener_options import LIMIT_S, _route, hearing
from tests.with_envoy.translate.test_route_match_per_try_and_hedging import pool
from xds_server.decide.decisions import RetryDecision, UsedUpQuota

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


def tokens(limits: str, *, more: str = "") -> str:
    named = f"named: [{{name: a, requests: 1000, per: hour, burst: 1000, {limits}}}, {{name: b, requests: 1000}}]"
    return f"tenants: {{header: x-tenant, trustHeader: true, {named}, others: {{requests: 1000, {limits}}}{more}}}"


FEW = "tokens: 1000, tokensBurst: 1000"
"""A thousand tokens at once, and no thousand more while a test runs."""


async def ask(one: Any, body: dict[str, Any], tenant: str = "a", **headers: str) -> Any:
    async with one.client.post(
        f"{one.url}/v1/completions", json={"model": "m", **body}, headers={"x-tenant": tenant, **headers}
    ) as answer:
        await answer.read()
        return answer


@pytest.mark.parametrize(
    ("body", "admitted"),
    [
        ({"max_tokens": 300}, 3),
        ({"max_tokens": 1, "max_completion_tokens": 300}, 3),
        ({"max_output_tokens": 150, "n": 2}, 3),
        ({"max_tokens": 10, "prompt": "x" * 1200}, 3),
        ({"max_tokens": " 3_00 "}, 3),
        ({"max_tokens": "150", "n": "2"}, 3),
        # Callers that state no limit, or none that an engine could take.
        ({}, 3),
        ({"max_tokens": -1_000_000}, 3),
        ({"max_tokens": 1e300}, 1),
        ({"max_tokens": 300, "n": -3}, 3),
        ({"tokens": 1, "max_tokens": 300}, 3),
    ],
)
async def test_tokens_that_a_request_asks_for_come_from_its_tenant(rig, hearing, body, admitted):
    one = await rig(pool("p", hearing) + _route(tokens(FEW, more=", answerTokens: 300")))
    for tenant in ("a", "unknown"):
        found = [(await ask(one, body, tenant)).status for _ in range(admitted + 1)]
        assert found == [*[200] * admitted, 429]
    assert [(await ask(one, body, "b")).status for _ in range(admitted + 1)] == [200] * (admitted + 1)


async def test_refusal_by_tokens_has_its_reason_and_small_requests_still_pass(rig, hearing):
    one = await rig(pool("p", hearing) + _route(tokens(FEW)))
    assert (await ask(one, {"max_tokens": 900})).status == 200
    refused = await ask(one, {"max_tokens": 500})
    assert refused.status == 429
    assert refused.headers["x-switchgear-reason"] == "quota-exceeded"
    assert refused.headers["retry-after"] == "1"
    assert (await ask(one, {"max_tokens": 20})).status == 200


@pytest.mark.parametrize(
    ("headers", "admitted"), [({MAX_TOKENS_HEADER: "300"}, 3), ({}, 3), ({MAX_TOKENS_HEADER: "999999999"}, 1)]
)
async def test_tokens_stated_in_headers_are_counted(rig, hearing, headers, admitted):
    listener = f"requestFields: headers, {tokens(FEW, more=', answerTokens: 300')}"
    one = await rig(pool("p", hearing) + _route(listener))
    found = [(await ask(one, {}, **headers)).status for _ in range(admitted + 1)]
    assert found == [*[200] * admitted, 429]


async def test_request_without_a_body_takes_one_token(rig, hearing):
    one = await rig(pool("p", hearing) + _route(tokens("tokens: 60, tokensBurst: 3", more=", answerTokens: 300")))
    found = []
    for _ in range(4):
        async with one.client.get(f"{one.url}/v1/models", headers={"x-tenant": "a"}) as answer:
            found.append(answer.status)
    assert found == [405, 405, 405, 429], "the engine knows no GET"


def used_up(**left_s: float) -> dict[int, dict[str, UsedUpQuota]]:
    """Used up quotas by tenant, and how long their periods last."""
    return {
        8080: {
            name: UsedUpQuota(period=QuotaPeriod.DAY, limit=7000 + number, until_unix_s=int(time.time() + seconds))
            for number, (name, seconds) in enumerate(left_s.items())
        }
    }


MANY = "named: [{name: a, requests: 90}, {name: b, requests: 90}, {name: c, requests: 90}], others: {requests: 90}"


@pytest.mark.parametrize("fields", ["", ", answerTokens: 9"])
async def test_used_up_period_refuses_its_tenants_and_tells_when_it_ends(rig, hearing, fields):
    quotas = MANY.replace("name: c,", "name: c, tokens: 900000,") if fields else MANY
    one = await rig(
        pool("p", hearing) + _route(f"tenants: {{header: x-tenant, trustHeader: true, {quotas}{fields}}}"),
        used_up=used_up(a=3600, b=7200, others=9000),
    )
    for tenant, limit, left_s in (("a", 7000, 3600), ("b", 7001, 7200), ("d", 7002, 9000), ("a,b", 7002, 9000)):
        refused = await ask(one, {}, tenant)
        assert (refused.status, refused.headers["x-switchgear-reason"]) == (429, "quota-exceeded")
        assert left_s - 30 < int(refused.headers["retry-after"]) <= left_s
        assert left_s - 30 < int(refused.headers["x-ratelimit-reset"]) <= left_s
        assert refused.headers.getall("x-ratelimit-limit") == [str(limit)]
        assert refused.headers.getall("x-ratelimit-remaining") == ["0"]
    assert await statuses(one, 1) == [429]
    served = await ask(one, {}, "c")
    assert served.status == 200
    assert served.headers["x-ratelimit-limit"] == "90"
    assert "retry-after" not in served.headers
    assert len(hearing.seen) == 1


async def test_period_ends_without_the_control_plane(rig, hearing):
    one = await rig(
        pool("p", hearing) + _route(f"tenants: {{header: x-tenant, trustHeader: true, {MANY}}}"),
        used_up=used_up(a=5, others=3600),
    )
    assert await statuses(one, 1, {"x-tenant": "a"}) == [429]

    async def passes() -> bool:
        return await statuses(one, 1, {"x-tenant": "a"}) == [200]

    await eventually(passes, "the end of the period", LIMIT_S)
    assert await statuses(one, 1, {"x-tenant": "d"}) == [429]
    assert await statuses(one, 20, {"x-tenant": "a"}) == [200] * 20


async def test_used_up_period_in_shadow_marks_the_request(rig, hearing):
    shadow = f"tenants: {{header: x-tenant, trustHeader: true, mode: shadow, {MANY}}}"
    one = await rig(pool("p", hearing) + _route(shadow), used_up=used_up(a=3600))
    assert await statuses(one, 1, {"x-tenant": "a"}) == [200]
    assert await statuses(one, 1, {"x-tenant": "b"}) == [200]
    assert [headers.get("x-switchgear-over-quota") for headers in hearing.seen] == ["true", None]
