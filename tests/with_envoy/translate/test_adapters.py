"""Requests for an adapter reach engines that have it, and no other, at a real Envoy."""

from collections.abc import Mapping
from typing import Any

import pytest

from engine.report import EngineReport, Verdict
from tests.with_envoy.translate.conftest import Rig, view
from xds_server.decide.decisions import NO_DECISIONS
from xds_server.model.fleet import Fleet, with_report
from xds_server.model.type_urls import ENDPOINT
from xds_server.translate.envoy_json import as_json
from xds_server.translate.view_resources import translate

pytestmark = pytest.mark.envoy

V1 = "apiVersion: switchgear.dev/v1alpha1\nkind:"


def policy(engines: list[Any], affinity: str = "") -> str:
    listed = ", ".join(
        f"{{name: e{number}, address: 127.0.0.1, port: {one.port}, zone: {'a' if number < 2 else 'b'}}}"
        for number, one in enumerate(engines)
    )
    return f"""---
{V1} EnginePool
metadata: {{name: p}}
spec: {{model: fake-model, endpoints: [{listed}]}}
---
{V1} ModelRoute
metadata: {{name: base}}
spec: {{listener: {{port: 8080}}, pools: [{{pool: p}}]{affinity}}}
---
{V1} ModelRoute
metadata: {{name: sql}}
spec: {{listener: {{port: 8080}}, match: {{model: sql}}, adapter: true, pools: [{{pool: p}}]{affinity}}}
"""


def having(fleet: Fleet, adapters: Mapping[str, tuple[str, ...]]) -> Fleet:
    for engine, names in adapters.items():
        report = EngineReport(
            pool="p",
            engine=engine,
            verdict=Verdict.READY,
            evidence="",
            observed_at_s=0.0,
            sequence=1,
            adapters=names,
        )
        fleet = with_report(fleet, report, 0.0)
    return fleet


async def push(one: Rig, adapters: Mapping[str, tuple[str, ...]], *, cuts: bool) -> None:
    """Push the endpoints alone: clusters and routes stay."""
    items = translate(one.policies, having(one.fleet, adapters), NO_DECISIONS, view(cuts=cuts))
    taken = "cluster.p.update_success"
    before = (await one.envoy.stats(taken))[taken]
    one.push_endpoints({item.name: as_json(item) for item in items if item.type_url == ENDPOINT})

    async def seen() -> bool:
        return bool((await one.envoy.stats(taken))[taken] > before)

    await one.envoy.wait_for(seen, "knowing the adapters")


@pytest.mark.parametrize("affinity", ["", ", affinity: {header: x-session}"])
@pytest.mark.parametrize("cuts", [False, True])
async def test_requests_for_an_adapter_follow_it(engine, rig, cuts, affinity):
    engines = [await engine() for _ in range(4)]
    one = await rig(policy(engines, affinity), dynamic_endpoints=True, cuts=cuts)
    names = {f"e{number}": ("sql",) if number in (0, 2) else () for number in range(4)}
    for number in (0, 2):
        engines[number].adapters = ("sql",)
    await push(one, names, cuts=cuts)

    async def served(model: str, count: int = 40) -> set[str]:
        answers = [await one.complete(model=model, headers={"x-session": str(at)}) for at in range(count)]
        assert {answer.status for answer in answers} == {200}
        return {answer.headers["x-fake-engine"] for answer in answers}

    assert await served("sql") == {"engine-0", "engine-2"}, "in both zones"
    assert await served("fake-model", 60) == {f"engine-{number}" for number in range(4)}
    # Only one engine of zone b has it now.
    engines[0].adapters = ()
    await push(one, {**names, "e0": ()}, cuts=cuts)
    assert await served("sql") == {"engine-2"}
    assert await served("fake-model", 60) == {f"engine-{number}" for number in range(4)}, "engine-0 stays"
    await push(one, dict.fromkeys(names, ()), cuts=cuts)
    assert (await one.complete(model="sql")).status == 503
    assert await served("fake-model", 60) == {f"engine-{number}" for number in range(4)}


async def test_retry_of_a_request_for_an_adapter_stays_with_those_that_have_it(engine, rig):
    engines = [await engine() for _ in range(3)]
    for number in (0, 1):
        engines[number].adapters = ("sql",)
    one = await rig(policy(engines), dynamic_endpoints=True)
    await push(one, {"e0": ("sql",), "e1": ("sql",), "e2": ()}, cuts=False)
    await engines[0].stop()
    answers = [await one.complete(model="sql") for _ in range(20)]
    assert {(answer.status, answer.headers["x-fake-engine"]) for answer in answers} == {(200, "engine-1")}
    assert not engines[2].book.totals().arrived


CANARY = 25.0


async def test_canary_gets_its_share_of_the_requests_and_another_model(engine, rig):
    engines = [await engine() for _ in range(3)]
    for number, names in enumerate((("sql", "sql-v2"), ("sql",), ())):
        engines[number].adapters = names
    text = policy(engines).replace(
        "adapter: true,", f"adapter: true, adapterCanary: {{name: sql-v2, percent: {CANARY}}},"
    )
    one = await rig(text, dynamic_endpoints=True)
    await push(one, {f"e{number}": each.adapters for number, each in enumerate(engines)}, cuts=False)
    answers = [await one.complete(model="sql") for _ in range(400)]
    assert {answer.status for answer in answers} == {200}
    tried = [answer for answer in answers if answer.headers.get("x-switchgear-served-model") == "sql-v2"]
    # Four standard deviations of 400 draws.
    assert 65 <= len(tried) <= 135
    assert {answer.headers["x-fake-engine"] for answer in tried} == {"engine-0"}, "the one that has it"
    others = [answer for answer in answers if "x-switchgear-served-model" not in answer.headers]
    assert {answer.headers["x-fake-engine"] for answer in others} == {"engine-0", "engine-1"}
    plain = [await one.complete(model="fake-model") for _ in range(40)]
    assert {answer.status for answer in plain} == {200}
    assert all("x-switchgear-served-model" not in answer.headers for answer in plain)


async def test_canary_request_names_the_canary_to_the_engine(engine, rig):
    only = await engine()
    only.adapters = ("sql-v2",)
    text = policy([only]).replace("adapter: true,", "adapter: true, adapterCanary: {name: sql-v2, percent: 100},")
    one = await rig(text, dynamic_endpoints=True)
    await push(one, {"e0": ("sql-v2",)}, cuts=False)
    answers = [await one.complete(model="sql") for _ in range(10)]
    assert {answer.status for answer in answers} == {200}, "an engine answers 404 for sql"
