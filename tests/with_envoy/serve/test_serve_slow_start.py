"""Slow start as a real Envoy shares requests: by endpoint and locality weights, since it has none of its own."""

import asyncio
from collections import Counter

import pytest

from tests.with_envoy.serve.conftest import PATIENT, STEADY, Site, document, eventually

pytestmark = pytest.mark.envoy

POLICY = {"pools": ["chat"], "slowStart": {"window": "200s", "minWeightPercent": 10}, **STEADY}
REQUESTS = 160
"""Sent in a few seconds: the ramp then has grown from 10 to less than 20 %, also by good answers."""


def pool_in(site: Site, zones: str, count: int | None = None) -> dict[str, object]:
    """The pool with these zones, one digit per engine, limited to the first ``count`` engines."""
    endpoints = [
        {"address": "127.0.0.1", "port": one.port, "name": one.config.name, "zone": f"z{zone}"}
        for one, zone in list(zip(site.engines, zones, strict=True))[:count]
    ]
    return site.pool(endpoints=endpoints, probe=PATIENT)


async def shares(site: Site) -> Counter[str]:
    """Requests by engine, of the next ``REQUESTS``; four at a time."""
    found = Counter[str]()
    for _ in range(REQUESTS // 4):
        for status, engine in await asyncio.gather(*(site.ask() for _ in range(4))):
            assert status == 200
            found[engine] += 1
    return found


async def started(site: Site, zones: str, count: int | None = None) -> None:
    await site.start_engines(len(zones))
    documents = site.route(), document("ResiliencePolicy", "warm", POLICY)
    site.write("chat.yaml", pool_in(site, zones, count), *documents)
    await site.serve()
    await site.envoy()
    await site.answered()


async def answers_again(site: Site, engine: str) -> None:
    async def so() -> bool:
        return (await site.ask())[1] == engine

    await eventually(so, f"{engine} gets a request")


async def returns(site: Site, engine: str) -> None:
    """Eject the engine, restore it, and return when it gets its first request."""
    for order in ("eject", "restore"):
        code, _, error = await site.switchgear(
            *(order, f"chat/{engine}", "--for", "10m", "--reason", "test", "--admin", f"http://{site.admin}"),
            *(("--force",) if order == "eject" else ()),
        )
        assert code == 0, error
        await site.becomes(site.engines[0], "UNHEALTHY" if order == "eject" else "HEALTHY")
    await answers_again(site, engine)


@pytest.mark.parametrize(
    ("zones", "usual", "most"),
    [
        pytest.param("111", 1 / 3, 0.1, id="in a zone of three"),
        pytest.param("123", 1.0, 0.25, id="alone in its zone"),
    ],
)
async def test_returned_engine_gets_its_part_of_its_share(
    site: Site, zones: str, usual: float, most: float
) -> None:
    await started(site, zones)

    async def usually() -> bool:
        # On a busy machine the first round trips may leave the zone while engines are still being found.
        return (await shares(site))["e0"] / REQUESTS == pytest.approx(usual, abs=0.12)

    await eventually(usually, "the usual share")
    await returns(site, "e0")
    found = await shares(site)
    assert 0 < found["e0"] / REQUESTS <= most, found
    code, out, _ = await site.switchgear("why", "chat/e0", "--admin", f"http://{site.admin}")
    assert "slow start: " in out, (code, out)
    assert " % of its share, full in " in out


async def test_joining_engine_gets_its_part_of_its_share(site: Site) -> None:
    await started(site, "111", 2)
    documents = site.route(), document("ResiliencePolicy", "warm", POLICY)
    site.write("chat.yaml", pool_in(site, "111"), *documents)
    await answers_again(site, "e2")
    found = await shares(site)
    assert 0 < found["e2"] / REQUESTS <= 0.1, found


async def test_pool_that_returns_as_a_whole_serves_at_once(site: Site) -> None:
    await started(site, "11")
    for engine in site.engines:
        code, _, error = await site.switchgear(
            *("eject", f"chat/{engine.config.name}", "--for", "10m", "--reason", "test", "--force"),
            *("--admin", f"http://{site.admin}"),
        )
        assert code == 0, error
    await site.answered(503)
    for engine in site.engines:
        code, _, error = await site.switchgear(
            "restore", f"chat/{engine.config.name}", "--admin", f"http://{site.admin}"
        )
        assert code == 0, error
    for engine in site.engines:
        await site.becomes(engine, "HEALTHY")
    await site.answered()
    found = await shares(site)
    assert min(found["e0"], found["e1"]) >= 0.2 * REQUESTS, found
