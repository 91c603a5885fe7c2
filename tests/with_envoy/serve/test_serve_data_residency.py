"""A region-bound route with the whole control plane: its requests stay inside despite any failure."""

from typing import Any

import pytest

from chaos.fake_engine import EngineConfig, EngineCrash, FakeEngine
from tests.with_envoy.serve.conftest import Site, document

pytestmark = pytest.mark.envoy

BOUND = {"x-bound": "1"}
RESTLESS = {
    "hedging": {"enabled": True, "delay": "50ms"},
    "retries": {"attempts": 3, "conditions": ["connect-failure", "reset", "refused-stream"]},
}


def standing_in(region: str, pool: dict[str, Any], *engines: FakeEngine) -> None:
    for endpoint in pool["spec"]["endpoints"]:
        if endpoint["name"] in {engine.config.name for engine in engines}:
            endpoint["region"] = region


async def test_bound_requests_stay_inside_while_engines_and_control_plane_die(
    site: Site,
) -> None:
    first, last = await site.start_engines(2)
    away, spare = [FakeEngine(EngineConfig(name=name)) for name in ("away", "spare")]
    for engine in (away, spare):
        await engine.start()
        site.engines.append(engine)
    pool, other = site.pool(engines=[first, last, away]), site.pool("other", engines=[spare])
    standing_in("eu", pool, first, last)
    standing_in("us", pool, away)
    standing_in("us", other, spare)
    asked = {"headers": [{"name": "x-bound", "present": True}]}
    bound = site.route("bound", match=asked, fallbacks=["other"], allowedRegions=["eu"])
    free = site.route("free", fallbacks=["other"])
    site.write("all.yaml", pool, other, bound, free, document("ResiliencePolicy", "default", RESTLESS))
    serve = await site.serve()
    await site.envoy("n1", "--region", "us")
    await site.answered(**BOUND)
    load = site.load(headers=BOUND)
    await load.more(20)
    await first.set_fault(EngineCrash())
    await site.becomes(first, "UNHEALTHY")
    await load.more(20)
    assert not [one for one in load.failed if one.refusal], "the other one inside takes what the first one had"
    await site.kill(serve)
    await last.set_fault(EngineCrash())
    await load.more(60)
    await site.answered(503, **BOUND)
    before = len(load.outcomes)
    await load.more(20)
    assert {one.status for one in load.outcomes[before:]} == {503}
    await load.end()
    # Proxies give each request an id; calls without one are probes.
    assert [call for engine in (away, spare) for call in engine.book.calls if call.request_id] == []
    assert await site.ask() == (200, "away"), "unbound requests are served there"
    assert [call for call in away.book.calls if call.request_id]
