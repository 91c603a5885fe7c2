"""Which name a request has, as seen by a real Envoy: its own, for caller, engine and refusals alike."""

import json
import re
from collections.abc import AsyncIterator, Mapping

import pytest

from tests.with_envoy.translate.recording_engine import Hearing
from tests.with_envoy.translate.test_route_match_per_try_and_hedging import pool, route

pytestmark = pytest.mark.envoy

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TRACE: Mapping[str, str] = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "vendor=t61rcWkgMzE",
    "baggage": "tenant=blue",
}


@pytest.fixture
async def echo() -> AsyncIterator[Hearing]:
    # A name of the engine's own making must not take the place of Envoy's.
    one = Hearing(says={"x-request-id": "of-the-engine"})
    runner = await one.listen()
    yield one
    await runner.cleanup()


async def test_a_request_has_one_name_for_caller_and_engine_and_the_caller_cannot_choose_it(rig, echo):
    one = await rig(pool("p", echo) + route("r", "p"))
    for asked in ({}, {"x-request-id": "mine"}, {"x-request-id": "a" * 5000}):
        answer = await one.complete(headers=asked)
        assert answer.status == 200
        name = answer.headers["x-request-id"]
        assert UUID.fullmatch(name), name
        assert echo.seen[-1]["x-request-id"] == name


async def test_the_callers_own_trace_reaches_the_engine_untouched(rig, echo):
    one = await rig(pool("p", echo) + route("r", "p"))
    await one.complete(headers=TRACE)
    assert {name: echo.seen[-1][name] for name in TRACE} == TRACE


async def test_no_caller_counts_as_internal(rig, echo):
    """Straight from a private address, too: that is where callers in a cluster are."""
    one = await rig(pool("p", echo) + route("r", "p"))
    asked = {
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-envoy-max-retries": "9",
        "x-envoy-retry-on": "5xx",
        "x-envoy-internal": "true",
    }
    assert (await one.complete(headers=asked)).status == 200
    seen = echo.seen[-1]
    assert "x-envoy-internal" not in seen
    assert seen.get("x-envoy-expected-rq-timeout-ms") != "1"


async def test_refusals_have_a_name_too(rig, echo):
    nobody = Hearing(port=9)  # the discard port: closed
    ways = {"open": ("p", echo), "gone": ("gone", nobody)}
    one = await rig(
        "".join(
            pool(name, engine) + route(way, name, match=f"{{headers: [{{name: x-way, exact: {way}}}]}}")
            for way, (name, engine) in ways.items()
        )
    )
    no_route = await one.complete()
    unreachable = await one.complete(headers={"x-way": "gone"})
    assert [no_route.status, unreachable.status] == [404, 503]
    for answer in (no_route, unreachable):
        assert UUID.fullmatch(answer.headers["x-request-id"])
        assert json.loads(await answer.text())["error"]["type"] == "switchgear"
    assert not echo.seen
