"""Other regions get no request while the local one has an engine, and all at once when it has none."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from chaos.fake_engine import EngineCrash, EnginePacing
from engine.report import EngineReport, Verdict
from tests.eventually import eventually
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.fleet import with_report
from xds_server.model.type_urls import ENDPOINT
from xds_server.model.view import View
from xds_server.translate.envoy_json import as_json
from xds_server.translate.view_resources import translate

pytestmark = pytest.mark.envoy

IN_EU = View(region="eu", zone="eu-a")
BOUND = {"x-us": "1"}


def policy(own: Iterable[Any], other: Iterable[Any]) -> str:
    head = "apiVersion: switchgear.dev/v1alpha1\nkind:"
    endpoints = "".join(
        f"\n    - {{name: {region}{number}, address: 127.0.0.1, port: {one.port}, region: {region}, "
        f"zone: {region}-a, revision: '2.{number}'}}"
        for region, engines in (("eu", own), ("us", other))
        for number, one in enumerate(engines)
    )
    return f"""---
{head} EnginePool
metadata: {{name: p}}
spec:
  model: fake-model
  endpoints:{endpoints}
---
{head} ModelRoute
metadata: {{name: r}}
spec: {{listener: {{port: 8080}}, pools: [{{pool: p}}]}}
---
{head} ModelRoute
metadata: {{name: bound}}
spec:
  listener: {{port: 8080}}
  match: {{headers: [{{name: x-us, present: true}}]}}
  pools: [{{pool: p}}]
  allowedRegions: [us]
"""


async def push(there: Any, *out: str) -> None:
    """Has Envoy know what is decided for callers in the EU with these engines hung."""
    fleet = there.fleet
    for name in out:
        for sequence in range(2):
            said = EngineReport(
                pool="p", engine=name, verdict=Verdict.HUNG, evidence="", observed_at_s=9.0, sequence=sequence + 1
            )
            fleet = with_report(fleet, said, 9.0)
    proxies = ConnectedProxies(by_role={"gateway": 1}, calling_zones=frozenset(("eu-a",)))
    decisions, _ = decide(there.policies, fleet, NO_MEMORY, proxies=proxies, now_s=10.0)
    items = translate(there.policies, fleet, decisions, IN_EU)
    taken = "cluster.p.update_success"
    before = (await there.envoy.stats(taken))[taken]
    there.push_endpoints({item.name: as_json(item) for item in items if item.type_url == ENDPOINT})

    async def seen() -> bool:
        return (await there.envoy.stats(taken))[taken] > before

    await there.envoy.wait_for(seen, "knowing the endpoints")


def arrived(engines: Iterable[Any]) -> int:
    return sum(one.book.totals().arrived for one in engines)


async def statuses(there: Any, times: int, **headers: str) -> list[int]:
    return [(await there.complete(headers=headers)).status for _ in range(times)]


async def test_region_failover_by_priority_only_when_the_own_region_is_down(engine, rig):
    own, other = [await engine() for _ in range(3)], [await engine() for _ in range(3)]
    there = await rig(policy(own, other), dynamic_endpoints=True)
    await push(there)
    assert set(await statuses(there, 60)) == {200}
    assert (arrived(own), arrived(other)) == (60, 0)

    # What an engine holds when it goes out is finished, and counted.
    for one in own:
        await one.set_fault(EnginePacing(factor=1000.0))
    long = asyncio.create_task(there.complete(max_tokens=1000))
    await eventually(lambda: any(one.calls_in_flight for one in own), "it is under way", 60.0)
    busy = next(number for number, one in enumerate(own) if one.calls_in_flight)
    await push(there, f"eu{busy}")
    rest = [one for number, one in enumerate(own) if number != busy]
    before = arrived(rest)
    assert set(await statuses(there, 30)) == {200}
    assert (arrived(rest) - before, arrived(other)) == (30, 0), "two thirds are in: nothing leaves the region"
    clusters = {one["name"]: one for one in (await there.envoy.json("/clusters?format=json"))["cluster_statuses"]}
    hosts = clusters["p"]["host_statuses"]
    active = {
        stat["name"]: int(stat.get("value", 0))
        for host in hosts
        if host["address"]["socket_address"]["port_value"] == own[busy].port
        for stat in host["stats"]
    }["rq_active"]
    assert active == 1
    await own[busy].set_fault(None)
    assert (await long).status == 200

    # A bound route of callers elsewhere finds its region in whatever tier it stands.
    assert set(await statuses(there, 10, **BOUND)) == {200}
    assert arrived(other) == 10

    # The region fails, and no control plane updates Envoy.
    await push(there)
    for one in own:
        await one.set_fault(EngineCrash())

    async def all_answered() -> bool:
        return set(await statuses(there, 20)) == {200}

    await there.envoy.wait_for(all_answered, "serving from the other region")
    assert arrived(other) > 10
