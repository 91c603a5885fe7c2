"""Deadlines of callers at a real Envoy: who is cut when, who is refused at once, and what another try needs."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from chaos.fake_engine import EngineHang
from tests.eventually import eventually
from tests.with_envoy.translate.recording_engine import Hearing
from tests.with_envoy.translate.test_route_match_per_try_and_hedging import LIMIT_S, pool, resilience, route
from xds_server.decide.decisions import DeadlineDecision, DeadlineSteps
from xds_server.translate.deadlines import deadline_key

pytestmark = pytest.mark.envoy

TOTAL = "{timeouts: {adaptive: false, streaming: {total: 20s, betweenTokens: 0s}, nonStreaming: {total: 20s}}}"
HEADER = "x-request-timeout-ms"
FORMS = {
    "ms": (f"header: {HEADER}", {HEADER: "700"}),
    "s": ("header: x-timeout, form: s", {"x-timeout": "1"}),
    "grpc": ("header: grpc-timeout", {"grpc-timeout": "700m"}),
    "grpc elsewhere": ("header: x-timeout, form: grpc", {"x-timeout": "700000u", "grpc-timeout": "9S"}),
    "repeated": (f"header: {HEADER}", [(HEADER, "700"), (HEADER, "9000")]),
    "above the maximum": (f"header: {HEADER}, max: 700ms", {HEADER: "15000"}),
}


@pytest.fixture
async def hearing() -> AsyncIterator[Hearing]:
    one = Hearing()
    runner = await one.listen()
    yield one
    await runner.cleanup()


def by_deadline(deadline: str = f"header: {HEADER}", more: str = "") -> str:
    return route("r", "p").replace("port: 8080", f"port: 8080, deadline: {{{deadline}}}{more}")


def decided(answer: DeadlineSteps | None, stream: DeadlineSteps | None = None) -> dict[str, Any]:
    return {"pools": {"p": {"deadline": DeadlineDecision(answer=answer, stream=stream, reason="")}}}


async def asked(one: Any, headers: Any = None, **body: Any) -> tuple[int, str, float]:
    """Status, reason and seconds of an answer."""
    began_s = time.monotonic()
    sent = [
        ("content-type", "application/json"),
        *(dict(headers or {}).items() if isinstance(headers, dict) else headers or ()),
    ]
    async with one.client.post(
        f"{one.url}/v1/completions", json={"model": "fake-model", "prompt": "x", **body}, headers=sent
    ) as answer:
        await answer.read()
        return answer.status, answer.headers.get("x-switchgear-reason", ""), time.monotonic() - began_s


@pytest.mark.parametrize("fields", ["body", "headers"])
@pytest.mark.parametrize("form", FORMS)
async def test_deadline_ends_a_request_and_ejects_no_engine(rig, engine, form, fields):
    only = await engine()
    await only.set_fault(EngineHang())
    deadline, headers = FORMS[form]
    one = await rig(
        pool("p", only) + by_deadline(deadline, f", requestFields: {fields}") + resilience("default", TOTAL)
    )
    for _ in range(3):
        status, reason, took_s = await asked(one, headers)
        assert (status, reason) == (504, "timeout")
        assert 0.6 < took_s < 9
    assert only.book.totals().arrived == 3
    assert not (await one.envoy.stats("outlier_detection.ejections_total")).get(
        "cluster.p.outlier_detection.ejections_total", 0
    )


@pytest.mark.parametrize("value", ["", "soon", "-5", "1.5", "700x", "999999999999"])
async def test_invalid_value_leaves_the_limits_of_the_route(rig, hearing, value):
    hearing.wait_s = 1.0
    one = await rig(pool("p", hearing) + by_deadline() + resilience("default", TOTAL), **decided(STEPS))
    await one.set_runtime({deadline_key("r", "non-streaming", 4): 100})
    assert (await asked(one, {HEADER: value}))[0] == 200


async def test_deadline_cuts_a_stream(rig, engine):
    only = await engine(token_s=0.1)
    one = await rig(pool("p", only) + by_deadline() + resilience("default", TOTAL))
    began_s = time.monotonic()
    with pytest.raises(aiohttp.ClientPayloadError):
        await asked(one, {HEADER: "1000"}, stream=True, max_tokens=200)
    assert 0.9 < time.monotonic() - began_s < 9
    assert (await asked(one, stream=True, max_tokens=12))[0] == 200


STEPS = DeadlineSteps(base_s=1.0, in_force=1)


@pytest.mark.parametrize("fields", ["body", "headers"])
async def test_request_that_cannot_end_in_time_is_refused_at_once(rig, hearing, fields):
    one = await rig(
        pool("p", hearing) + by_deadline(more=f", requestFields: {fields}"),
        **decided(STEPS, DeadlineSteps(base_s=0.1)),
    )
    # Without those that are served on trial.
    await one.set_runtime({deadline_key("r", "non-streaming", 1): 100})
    assert (await asked(one, {HEADER: "999"}))[:2] == (503, "deadline-too-short")
    assert (await asked(one, {HEADER: "0"}))[:2] == (503, "deadline-too-short")
    assert not hearing.seen
    assert (await asked(one, {HEADER: "9000"}))[0] == 200
    assert (await asked(one))[0] == 200
    # No step of streams is in force.
    stated = {"x-switchgear-stream": "true"}
    assert (await asked(one, {HEADER: "900", **stated}, stream=True))[0] == 200
    # Live: another step, without new routes.
    await one.set_runtime({deadline_key("r", "non-streaming", 3): 100})
    assert (await asked(one, {HEADER: "3999"}))[:2] == (503, "deadline-too-short")
    assert (await asked(one, {HEADER: "9000"}))[0] == 200


async def test_grpc_form_is_refused_by_the_same_time(rig, hearing):
    one = await rig(pool("p", hearing) + by_deadline("header: grpc-timeout"), **decided(STEPS))
    await one.set_runtime({deadline_key("r", "non-streaming", 1): 100})
    for value in ("999m", "0S", "99999999n", "999999u"):
        assert (await asked(one, {"grpc-timeout": value}))[:2] == (503, "deadline-too-short"), value
    for value in ("9000m", "9S", "1M", "1H", "9000000u"):
        assert (await asked(one, {"grpc-timeout": value}))[0] == 200, value


async def test_some_requests_are_served_on_trial(rig, hearing):
    one = await rig(pool("p", hearing) + by_deadline(), **decided(STEPS))
    found = [(await asked(one, {HEADER: "990"}))[0] for _ in range(200)]
    # 5 % of 200: fewer than 1 or more than 40 happen less than once in 10 000 runs.
    assert found.count(503) + found.count(200) == 200
    assert 1 <= found.count(200) <= 40


async def test_shadow_refuses_nothing_and_the_deadline_counts(rig, hearing):
    one = await rig(pool("p", hearing) + by_deadline(f"header: {HEADER}, mode: shadow"), **decided(STEPS))
    assert {(await asked(one, {HEADER: "900"}))[0] for _ in range(20)} == {200}
    hearing.open = asyncio.Event()
    status, _, took_s = await asked(one, {HEADER: "900"})
    hearing.open.set()
    assert status == 504
    assert took_s < 9


async def test_hedge_starts_only_if_it_can_end_in_time(rig, engine):
    engines = [await engine() for _ in range(2)]
    for each in engines:
        await each.set_fault(EngineHang())
    one = await rig(
        pool("p", *engines)
        + by_deadline()
        + resilience("default", "{hedging: {enabled: true, delay: 300ms}, timeouts: {adaptive: false}}"),
        ceilings={"p": (100, 100)},
        **decided(DeadlineSteps(base_s=1.0)),
    )

    def arrived() -> int:
        return sum(each.book.totals().arrived for each in engines)

    # 0.3 s before the hedge and 1 s for the shortest answer.
    assert (await asked(one, {HEADER: "1200"}))[0] == 504
    assert arrived() == 1
    assert (await asked(one, {HEADER: "1400"}))[0] == 504
    await eventually(lambda: arrived() == 3, "the first try and its hedge", LIMIT_S)
