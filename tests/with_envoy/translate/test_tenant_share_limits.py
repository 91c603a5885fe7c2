"""Refusals of tenants above their fair share at a real Envoy: whose requests, and how many."""

from typing import Any

import pytest

from tests.with_envoy.translate.test_listener_options import _route, hearing
from tests.with_envoy.translate.test_route_match_per_try_and_hedging import pool
from xds_server.decide.decisions import FairShares, TenantShare

__all__ = ["hearing"]
pytestmark = pytest.mark.envoy

TENANTS = (
    "tenants: {header: x-tenant, trustHeader: true, fairShares: true, "
    "named: [{name: a}, {name: b/c.d@e}, {name: q, requests: 2, per: hour}], others: {}}"
)
SAMPLE = 200


def shares(**refused: float) -> FairShares:
    """Decision that refuses these percentages."""
    return FairShares(
        on=True,
        capacity_per_s=1.0,
        demand_per_s=2.0,
        since_s=0.0,
        tenants={
            (8080, name): TenantShare(
                share_per_s=0.1,
                demand_per_s=1.0,
                allowed_per_s=1 - percent / 100,
                admitted=1 - percent / 100,
                enforced=True,
                since_s=0.0,
            )
            for name, percent in refused.items()
        },
    )


async def statuses(one: Any, count: int, headers: dict[str, str] | None = None) -> list[int]:
    return [(await one.complete(headers=headers)).status for _ in range(count)]


async def test_limited_tenant_is_refused_and_others_are_untouched(rig, hearing):
    decided = {"p": {"fair_shares": shares(**{"b/c.d@e": 100.0})}}
    one = await rig(pool("p", hearing) + _route(TENANTS), pools=decided)
    async with one.client.post(
        f"{one.url}/v1/completions", json={"model": "fake-model"}, headers={"x-tenant": "b/c.d@e"}
    ) as answer:
        assert answer.status == 429
        assert answer.headers["x-switchgear-reason"] == "above-fair-share"
        assert answer.headers["retry-after"] == "1"
        assert "above its share" in (await answer.json())["error"]["message"]
    for headers in ({"x-tenant": "a"}, {"x-tenant": "others"}, {"x-tenant": "b/c.d@e,a"}, None):
        assert await statuses(one, 5, headers) == [200] * 5
    # Callers cannot take another name, nor one's key.
    forged = {"x-tenant": "b/c.d@e", "x-envoy-downstream-service-cluster": "p/8080/a"}
    assert await statuses(one, 3, forged) == [429] * 3
    assert all("x-envoy-downstream-service-cluster" not in headers for headers in hearing.seen)


async def test_part_of_the_requests_of_unknown_callers_is_refused(rig, hearing):
    one = await rig(pool("p", hearing) + _route(TENANTS), pools={"p": {"fair_shares": shares(others=25.5)}})
    found = await statuses(one, SAMPLE, {"x-tenant": "x"})
    assert set(found) == {200, 429}
    assert 0.1 <= found.count(429) / SAMPLE <= 0.45
    assert 429 in await statuses(one, 40)
    assert await statuses(one, 40, {"x-tenant": "a"}) == [200] * 40


async def test_tenant_without_a_quota_takes_from_none_and_one_with_it_keeps_it(rig, hearing):
    one = await rig(pool("p", hearing) + _route(TENANTS))
    assert await statuses(one, 3, {"x-tenant": "q"}) == [200, 429, 429]
    assert await statuses(one, 10, {"x-tenant": "a"}) == [200] * 10
    assert await statuses(one, 10) == [200] * 10
