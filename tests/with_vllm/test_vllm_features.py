"""vLLM features that change what an engine's answers mean, on two real engines behind a real Envoy.

The tests are chapters: they run in this order on the same two engines.
"""

import signal
import time

import pytest

from chaos.real_vllm.vllm_replica import MODEL, START_LIMIT_S, wait_until_up
from tests.with_vllm.conftest import LIMIT_S, Site, SiteSettings, eventually
from tests.with_vllm.traffic import Stream

RESTART_AFTER_S = 3.0
KEY = "correct-key"
FEATURES = SiteSettings(
    environment={"VLLM_SERVER_DEV_MODE": "1"},
    agent_flags=("--timeout", "5s", "--restart-after-hung", f"{RESTART_AFTER_S:g}s"),
    api_key="wrong-key",
)
BOTH = ("a", "b")

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.envoy,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(2 * START_LIMIT_S),
    pytest.mark.parametrize("site", [FEATURES], ids=[""], indirect=True, scope="module"),
]


async def served(streams: list[Stream]) -> None:
    ended = [await one.ended() for one in streams]
    broken = [one for one in ended if not one.whole]
    assert not broken, f"{len(broken)} of {len(ended)} streams, such as {broken[:3]}"


async def test_pause_ejects_without_cutting_or_restarting(site: Site) -> None:
    for name in BOTH:
        await wait_until_up(site.replicas[name])
        await site.watch.back(name, after_s=0.0, limit_s=LIMIT_S)
    agent = f"http://127.0.0.1:{site.ports['a'].agent_http}"
    under_way = await site.begun(8, 600)
    while not await site.in_flight("a"):
        under_way += await site.begun(2, 600)
    paused_at_s = time.monotonic()
    async with site.session.post(f"{site.replicas['a'].url}/pause?mode=keep") as answer:
        assert answer.status == 200
    paused = await site.watch.verdict("a", "paused", after_s=paused_at_s, limit_s=LIMIT_S)
    out = await site.watch.out("a", after_s=paused_at_s, limit_s=LIMIT_S)
    site.note("pause under load: verdict paused", paused.at_s - paused_at_s)
    site.note("pause under load: out of the Envoy", out.at_s - paused_at_s)
    assert "by order" in paused.evidence

    async def outlasts_the_restart_limit() -> bool:
        assert await site.status(f"{agent}/livez") == 200, "a pause requests no restart"
        assert await site.status(f"{agent}/readyz") == 503, site.watch.story("a")
        return time.monotonic() > paused.at_s + 3 * RESTART_AFTER_S

    await eventually(outlasts_the_restart_limit, "the pause lasts")
    await served([site.stream(32) for _ in range(8)])
    resumed_at_s = time.monotonic()
    async with site.session.post(f"{site.replicas['a'].url}/resume") as answer:
        assert answer.status == 200
    back = await site.watch.back("a", after_s=resumed_at_s, limit_s=LIMIT_S)
    site.note("pause over: back in the Envoy", back.at_s - resumed_at_s)
    await served(under_way)


async def test_engine_restarted_with_an_api_key_is_misconfigured(site: Site) -> None:
    # After a pause vLLM 0.32 may ignore SIGTERM: "Waiting for background tasks to complete".
    await site.end_replica("a", signal.SIGKILL)
    await site.start_replica("a", "--api-key", KEY)
    started_at_s = time.monotonic()
    await wait_until_up(site.replicas["a"])
    up_at_s = time.monotonic()
    refused = await site.watch.verdict("a", "misconfigured", after_s=started_at_s, limit_s=LIMIT_S)
    site.note("restarted with --api-key: verdict misconfigured, from /health 200", refused.at_s - up_at_s)
    assert "401" in refused.evidence
    await served([site.stream(16) for _ in range(16)])
    assert not any(seen.takes_traffic for seen in site.watch.since("a", up_at_s)), site.watch.story("a")
    assert await site.status(f"http://127.0.0.1:{site.ports['a'].agent_http}/livez") == 200
    why = ("switchgear", "why", f"{MODEL}/a", "--admin", f"127.0.0.1:{site.admin}")
    await site.succeeds(*why, exit_code=1)
    assert "set the probe's API key" in " ".join(site.answer().split())

    written_at_s = time.monotonic()
    site.key_file.write_text(KEY)
    back = await site.watch.back("a", after_s=written_at_s, limit_s=LIMIT_S)
    site.note("the agent gets the key: back in the Envoy", back.at_s - written_at_s)
    before = await site.tokens("a")
    body = {"model": MODEL, "prompt": "one two", "max_tokens": 4}
    for _ in range(16):
        headers = {"Authorization": f"Bearer {KEY}"}
        async with site.session.post(f"{site.url}/v1/completions", json=body, headers=headers) as answer:
            assert answer.status == 200
    assert await site.tokens("a") > before
