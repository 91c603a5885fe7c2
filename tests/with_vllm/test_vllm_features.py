"""vLLM features that change what an engine's answers mean, on two real engines behind a real Envoy.

The tests are chapters: they run in this order on the same two engines.
"""

import signal
import time
from typing import Any

import pytest

from chaos.real_vllm.vllm_replica import MODEL, START_LIMIT_S, wait_until_up
from tests.with_vllm.conftest import CROWDED, LIMIT_S, Site, SiteSettings, eventually
from tests.with_vllm.traffic import Stream

RESTART_AFTER_S = 3.0
KEY = "correct-key"
MOST_TOKENS = 20
FEATURES = SiteSettings(
    resilience={**CROWDED, "degradation": {"shed": {"maxTokens": MOST_TOKENS, "longAnswers": "reduce"}}},
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


@pytest.mark.parametrize(
    ("path", "body", "tokens"),
    [
        ("/v1/chat/completions", {"max_tokens": 200, "min_tokens": 30}, MOST_TOKENS),
        ("/v1/chat/completions", {"max_completion_tokens": 200, "ignore_eos": True}, MOST_TOKENS),
        ("/v1/chat/completions", {"ignore_eos": True}, MOST_TOKENS),
        ("/v1/chat/completions", {"max_tokens": 5, "ignore_eos": True}, 5),
        ("/v1/completions", {"prompt": "one", "max_tokens": 200, "ignore_eos": True}, MOST_TOKENS),
        ("/v1/completions", {"prompt": "one", "max_tokens": None, "ignore_eos": True}, 16),
        ("/v1/completions", {"prompt": "one", "ignore_eos": True}, 16),
        ("/v1/responses", {"input": "one", "max_output_tokens": 200}, MOST_TOKENS),
        ("/v1/responses", {"input": "one"}, MOST_TOKENS),
        ("/v1/messages", {"max_tokens": 200}, MOST_TOKENS),
    ],
)
async def test_level_3_shortens_answers(site: Site, path: str, body: dict[str, Any], tokens: int) -> None:
    messages = {} if "prompt" in body or "input" in body else {"messages": [{"role": "user", "content": "one"}]}

    async def asked() -> tuple[int, str | None]:
        whole = {"model": MODEL, "temperature": 0, **messages, **body}
        async with site.session.post(site.url + path, json=whole) as answer:
            found = await answer.json()
            assert answer.status == 200, found
            usage = found["usage"]
            made = usage.get("completion_tokens", usage.get("output_tokens"))
            return made, answer.headers.get("x-switchgear-answer-limit")

    admin = ("--admin", f"127.0.0.1:{site.admin}")
    order = ("switchgear", "degrade", MODEL, "--level", "3", "--for", "10m", "--reason", "test", *admin)
    await site.succeeds(*order)
    long = {"model": MODEL, "prompt": "one", "max_tokens": 200}

    async def shortens() -> bool:
        async with site.session.post(f"{site.url}/v1/completions", json=long) as answer:
            return answer.headers.get("x-switchgear-answer-limit") == str(MOST_TOKENS)

    await eventually(shortens, "an engine serves at level 3")
    made, told = await asked()
    await site.succeeds("switchgear", "restore", MODEL, *admin)
    assert made <= tokens
    if "ignore_eos" in body:
        assert made == tokens
    short = body.get("max_tokens") == 5 or (path == "/v1/completions" and "max_tokens" not in body)
    assert told == (None if short else str(tokens))


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
