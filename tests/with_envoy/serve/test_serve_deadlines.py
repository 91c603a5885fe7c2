"""Deadlines behind a real Envoy and control plane: what is learned of answers decides which are refused."""

import aiohttp
import pytest

from tests.with_envoy.serve.conftest import PATIENT, STEADY, Site, document, eventually

pytestmark = pytest.mark.envoy

HEADER = "x-request-timeout-ms"
ANSWER_S = 0.5
"""At least; a busy machine takes longer."""


def write(site: Site, mode: str) -> None:
    site.write(
        "all.yaml",
        site.pool(probe=PATIENT),
        site.route(listener={"port": site.port, "deadline": {"header": HEADER, "mode": mode}}),
        document("ResiliencePolicy", "default", STEADY),
    )


async def result(site: Site, deadline_ms: int) -> tuple[int, str]:
    """Status and reason of a request with this deadline."""
    body = {"model": "fake-model", "prompt": "hello", "max_tokens": 1}
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"http://127.0.0.1:{site.port}/v1/completions", json=body, headers={HEADER: str(deadline_ms)}
        ) as answer,
    ):
        await answer.read()
        return answer.status, answer.headers.get("x-switchgear-reason", "")


async def test_deadline_below_every_answer_is_refused_once_answers_are_known(site: Site) -> None:
    engines = await site.start_engines(1, prefill_s=ANSWER_S, slots=8)
    write(site, "shadow")
    await site.serve()
    await site.envoy("n")
    await site.answered()
    # The control: nothing is refused, the engine works, and the caller waits for nothing.
    before = engines[0].book.totals().aborted
    assert await result(site, 200) == (504, "timeout")
    await eventually(lambda: engines[0].book.totals().aborted == before + 1, "the request given up at the engine")

    write(site, "enforce")
    load = site.load(8.0, streaming_share=0.0)

    async def refused() -> bool:
        return await result(site, 200) == (503, "deadline-too-short")

    await load.more(30)
    await eventually(refused, "a refused deadline")
    assert (await result(site, 30_000))[0] == 200
    assert not load.failed, "requests without a deadline are served"

    async def counted() -> bool:
        name = "switchgear_deadline_requests_total"
        return bool(
            await site.metric(name, of='outcome="refused"') and await site.metric(name, of='outcome="expired"')
        )

    await eventually(counted, "both outcomes")
    _, out, _ = await site.switchgear("why", "chat", "--admin", f"http://{site.admin}")
    assert "Refused deadlines: below 0." in " ".join(out.split())
    assert "the shortest answer took 0." in " ".join(out.split())
