"""``switchgear degrade``: a level set by hand, with a real Envoy and control plane."""

import aiohttp
import pytest

from tests.with_envoy.serve.conftest import Site, eventually

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
