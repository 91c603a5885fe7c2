"""Static answers with a real Envoy and control plane: at an ordered level, and while the pool is lost."""

import aiohttp
import pytest

from chaos.fake_engine import EngineCrash
from tests.with_envoy.serve.conftest import Site, eventually

pytestmark = pytest.mark.envoy

BODY = '{"choices": [], "note": "We are busy. See status.example.com."}'
STATIC = (200, "static-answer", BODY)


async def asked(site: Site) -> tuple[int, str | None, str]:
    """Status, reason and body of the answer to one request."""
    async with (
        aiohttp.ClientSession() as client,
        client.post(
            f"http://127.0.0.1:{site.port}/v1/completions",
            json={"model": "fake-model", "prompt": "a", "max_tokens": 1},
        ) as answer,
    ):
        return answer.status, answer.headers.get("x-switchgear-reason"), await answer.text()


async def test_static_answer_is_applies_at_a_level_and_while_the_pool_is_lost(site: Site) -> None:
    engines = await site.start_engines(2)
    site.write("chat.yaml", site.pool(), site.route(staticAnswer={"fromLevel": 3, "status": 200, "body": BODY}))
    await site.serve()
    await site.envoy()
    await site.answered()
    admin = ("--admin", f"http://{site.admin}")

    async def static() -> bool:
        return await asked(site) == STATIC

    async def serves() -> bool:
        return (await asked(site))[:2] == (200, None)

    async def why() -> str:
        return " ".join((await site.switchgear("why", "chat", *admin))[1].split())

    order = ("degrade", "chat", "--level", "3", "--for", "30m", "--reason", "new weights")
    assert (await site.switchgear(*order, *admin))[0] == 0
    await eventually(static, "callers get the static answer")
    assert "Route chat gives its static answer (200) from level 3 on." in await why()
    refused = "switchgear_requests_refused_total"
    before = await site.metric(refused)

    async def counted() -> bool:
        await asked(site)
        return await site.metric(refused) > before

    await eventually(counted, "an answer with status 200 counts as a request that no engine served")
    assert (await site.switchgear("restore", "chat", *admin))[0] == 0
    await eventually(serves, "the pool serves again")

    for engine in engines:
        await engine.set_fault(EngineCrash())
    await eventually(static, "callers get the static answer of a lost pool")
    assert "Route chat gives its static answer (200) to requests that no other pool may serve." in await why()
    for engine in engines:
        await engine.heal()
    await eventually(serves, "the pool serves again")
