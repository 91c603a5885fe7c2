"""Degradation levels by order and by signs besides pressure, with a real Envoy and control plane."""

import aiohttp
import pytest

from chaos.fake_engine import EngineErrorAfterWork
from tests.with_envoy.serve.conftest import Site, document, eventually

pytestmark = pytest.mark.envoy


async def asked(site: Site) -> tuple[int, str | None]:
    """Status and reason of the answer to one request."""
    async with (
        aiohttp.ClientSession() as client,
        client.post(
            f"http://127.0.0.1:{site.port}/v1/completions",
            json={"model": "fake-model", "prompt": "a", "max_tokens": 1},
        ) as answer,
    ):
        return answer.status, answer.headers.get("x-switchgear-reason")


async def test_ordered_maintenance_reaches_callers_survives_a_kill_and_ends(site: Site) -> None:
    await site.start_engines(2)
    site.write("chat.yaml", site.pool(), site.route())
    server = await site.serve()
    await site.envoy()
    await site.answered()
    order = (
        "degrade",
        "chat",
        "--level",
        "4",
        "--for",
        "30m",
        "--reason",
        "new weights",
        "--admin",
        f"http://{site.admin}",
    )
    assert (await site.switchgear(*order))[0] == 0

    async def maintenance() -> bool:
        return await asked(site) == (503, "maintenance")

    async def serves() -> bool:
        return await asked(site) == (200, None)

    await eventually(maintenance, "callers get the maintenance answer")
    await site.kill(server)
    await site.serve()
    assert await maintenance()
    assert (await site.switchgear("restore", "chat", "--admin", f"http://{site.admin}"))[0] == 0
    await eventually(serves, "the pool serves again")


async def test_share_of_failed_calls_enters_a_level_and_leaves_it(site: Site) -> None:
    await site.start_engines(2)
    ladder = {
        "enterAfter": "200ms",
        "leaveAfter": "1s",
        "maintenance": {"enabled": True, "aboveFailedPercent": 50, "message": "Back soon."},
    }
    # Without ejection, so that the failing engines keep getting calls.
    policy = document(
        "ResiliencePolicy", "careful", {"pools": ["chat"], "breaker": {"mode": "shadow"}, "degradation": ladder}
    )
    site.write("chat.yaml", site.pool(), site.route(), policy)
    await site.serve()
    await site.envoy()
    await site.answered()
    for engine in site.engines:
        await engine.set_fault(EngineErrorAfterWork())
    reasons = set()

    async def maintenance() -> bool:
        status, reason = await asked(site)
        reasons.add((status, reason))
        return reason == "maintenance"

    async def serves() -> bool:
        return await asked(site) == (200, None)

    await eventually(maintenance, "callers get the maintenance answer")
    assert (500, None) in reasons
    why = (await site.switchgear("why", "chat", "--admin", f"http://{site.admin}"))[1]
    assert "% of calls fail (limit 50 %)" in " ".join(why.split())
    for engine in site.engines:
        await engine.heal()
    await eventually(serves, "the pool serves again")
