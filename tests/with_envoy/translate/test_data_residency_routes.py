"""Requests of a bound route reach engines of its regions and no other, whatever becomes of those engines."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.fake_engine import EngineCrash
from policies.load import load_contents
from tests.with_envoy.translate.conftest import view, write_routes
from xds_server.decide.decisions import NO_DECISIONS, EngineDecision, Health
from xds_server.model.fleet import EngineId
from xds_server.model.type_urls import ENDPOINT
from xds_server.translate.envoy_json import as_json
from xds_server.translate.view_resources import translate

pytestmark = pytest.mark.envoy

BOUND = {"x-eu": "1"}


def policy(inside: Any, outside: Any, other: Any) -> str:
    head = "apiVersion: switchgear.dev/v1alpha1\nkind:"
    return f"""---
{head} EnginePool
metadata: {{name: p}}
spec:
  model: fake-model
  endpoints:
    - {{name: in, address: 127.0.0.1, port: {inside.port}, region: eu, zone: eu-a}}
    - {{name: out, address: 127.0.0.1, port: {outside.port}, region: us, labels: {{allowed/eu: "yes"}}}}
---
{head} EnginePool
metadata: {{name: small}}
spec:
  model: fake-model
  endpoints: [{{name: other, address: 127.0.0.1, port: {other.port}, region: us, zone: us-a}}]
---
{head} ModelRoute
metadata: {{name: bound}}
spec:
  listener: {{port: 8080}}
  match: {{headers: [{{name: x-eu, present: true}}]}}
  pools: [{{pool: p}}]
  fallbacks: [small]
  allowedRegions: [eu]
---
{head} ModelRoute
metadata: {{name: free}}
spec: {{listener: {{port: 8080}}, pools: [{{pool: p}}]}}
---
{head} ResiliencePolicy
metadata: {{name: default}}
spec: {{retries: {{attempts: 3, conditions: [connect-failure, reset]}}}}
"""


async def push(there: Any, health: Health, *, cuts: bool) -> None:
    """Push this health of the inside engine; the routes stay unchanged."""
    taken = "cluster.p.update_success"
    before = (await there.envoy.stats(taken))[taken]
    said = EngineDecision(health=health, reason="", since_s=0.0)
    decided = replace(NO_DECISIONS, engines={EngineId("p", "in"): said})
    items = translate(there.policies, there.fleet, decided, view(cuts=cuts))
    there.push_endpoints({item.name: as_json(item) for item in items if item.type_url == ENDPOINT})

    async def seen() -> bool:
        return (await there.envoy.stats(taken))[taken] > before

    await there.envoy.wait_for(seen, "knowing the endpoints")


@pytest.mark.parametrize("cuts", [False, True])
async def test_data_residency_rejects_rather_than_leaves_the_region(engine, rig, cuts):
    inside, outside, other = await engine(), await engine(), await engine()
    there = await rig(policy(inside, outside, other), dynamic_endpoints=True, cuts=cuts)

    async def bound(times: int) -> set[tuple[int, str]]:
        answers = [await there.complete(headers=BOUND) for _ in range(times)]
        return {(one.status, one.headers.get("x-switchgear-reason", "")) for one in answers}

    def reached() -> tuple[int, int]:
        return outside.book.totals().arrived, other.book.totals().arrived

    assert await bound(20) == {(200, "")}
    assert (inside.book.totals().arrived, *reached()) == (20, 0, 0)
    assert {(await there.complete()).status for _ in range(40)} == {200}
    assert reached()[0] > 0, "who is bound to nothing reaches it"
    before = reached()

    await push(there, Health.UNHEALTHY, cuts=cuts)
    assert await bound(10) == {(503, "no-engine")}
    await push(there, Health.HEALTHY, cuts=cuts)
    assert await bound(1) == {(200, "")}
    # The fallback gets everything, and has no engine inside.
    await there.set_runtime({"switchgear.route.bound.p": 0, "switchgear.route.bound.small": 1})
    assert await bound(5) == {(503, "no-engine")}
    await there.set_runtime({"switchgear.route.bound.p": 1, "switchgear.route.bound.small": 0})
    # Gone without a word: each request is tried again as often as it may be, and Envoy ejects the engine.
    await inside.set_fault(EngineCrash())
    assert {status for status, _ in await bound(20)} == {503}
    assert reached() == before


async def test_a_route_that_becomes_bound_leaks_nothing_while_endpoints_and_clusters_are_those_of_before(
    engine, rig
):
    inside, outside, other = await engine(), await engine(), await engine()
    bound_policy = policy(inside, outside, other)
    free_policy = bound_policy.replace("  allowedRegions: [eu]\n", "")
    there = await rig(free_policy, dynamic_endpoints=True, dynamic_routes=True)
    assert {(await there.complete(headers=BOUND)).status for _ in range(40)} == {200}
    reached = outside.book.totals().arrived
    assert reached > 0, "no request is bound yet"

    now = load_contents({Path("policy.yaml"): bound_policy.encode()})
    items = translate(now, there.fleet, NO_DECISIONS, view())
    taken = "http.port-8080.rds.port-8080.config_reload"
    before = (await there.envoy.stats(taken))[taken]
    write_routes(there.routes_path, items)

    async def reloaded() -> bool:
        return bool((await there.envoy.stats(taken))[taken] > before)

    await there.envoy.wait_for(reloaded, "serving the routes of who is bound")
    # The cluster is the one of before, and endpoints say nothing of regions: as while they are on their way.
    assert {(await there.complete(headers=BOUND)).status for _ in range(20)} == {503}
    there.push_endpoints({item.name: as_json(item) for item in items if item.type_url == ENDPOINT})

    async def served() -> bool:
        return (await there.complete(headers=BOUND)).status == 200

    await there.envoy.wait_for(served, "knowing who is inside")
    assert {(await there.complete(headers=BOUND)).status for _ in range(20)} == {200}
    assert (outside.book.totals().arrived, other.book.totals().arrived) == (reached, 0)
