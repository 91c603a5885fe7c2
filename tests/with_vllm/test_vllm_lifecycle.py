"""The life of two real vLLM engines behind a real Envoy, from the first token to the last.

The tests are chapters: they run in this order, on the same two engines, and each leaves both ready for the next.
"""

import asyncio
import signal
import time

import pytest

from chaos.history.request_outcomes import RequestOutcome
from chaos.load.open_loop import LoadProfile, run_load
from chaos.load.request_sender import LoadTarget
from chaos.real_vllm.vllm_replica import MODEL, START_LIMIT_S, wait_until_up
from tests.with_vllm.conftest import FIRST_TOKEN_S, LIMIT_S, SLOTS, Site, eventually
from tests.with_vllm.traffic import Stream

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.envoy,
    pytest.mark.asyncio(loop_scope="module"),
    # Engines that start on a busy machine are the longest part.
    pytest.mark.timeout(2 * START_LIMIT_S),
]

BOTH = ("a", "b")


def whole(streams: list[Stream]) -> None:
    """Fail with the incomplete streams."""
    broken = [one for one in streams if not one.whole]
    assert not broken, f"{len(broken)} of {len(streams)} streams, such as {broken[:3]}"


async def test_an_engine_is_ready_by_its_first_token(site: Site) -> None:
    began_s = time.monotonic()
    assert await site.status(f"http://127.0.0.1:{site.ports['a'].agent_http}/readyz") == 503
    refused = await site.stream(4).ended()
    assert refused.status == 503, refused
    for name in BOTH:
        await wait_until_up(site.replicas[name])
        ready = await site.watch.back(name, after_s=0.0, limit_s=LIMIT_S)
        site.note(f"start: {name} ready and in, both started at once", ready.at_s - began_s)
        before = [seen for seen in site.watch.changes[name] if seen.at_s < ready.at_s]
        assert {seen.verdict for seen in before} <= {None, "starting", "ready"}, site.watch.story(name)
        assert any(seen.verdict == "starting" for seen in before), site.watch.story(name)
        assert not any(seen.takes_traffic for seen in before), site.watch.story(name)
        assert await site.tokens(name) > 0
    assert await site.status(f"http://127.0.0.1:{site.ports['a'].agent_http}/readyz") == 200
    whole([await site.stream(16).ended()])


async def test_hang_is_detected_and_its_streams_are_retried_elsewhere(site: Site) -> None:
    for name in BOTH:
        await wait_until_up(site.replicas[name])
        await site.watch.back(name, after_s=0.0, limit_s=LIMIT_S)
    under_way = await site.begun(6, 300)
    # Six that come at once are dealt out by chance, before the Envoy has any to count.
    while not (await site.active("a") and await site.active("b")):
        under_way += await site.begun(2, 300)
    held = await site.active("a")
    hung_at_s = time.monotonic()
    site.signal_core("a", signal.SIGSTOP)
    late = [site.stream(64) for _ in range(12)]

    async def arrived() -> bool:
        return await site.active("a") > held or all(one.tokens_seen for one in late)

    # Which of them go there is the Envoy's choice; the engine that works has room again and again.
    while True:
        await eventually(arrived, "streams arrive")
        reached = await site.active("a") > held
        if reached or time.monotonic() > hung_at_s + 1:
            break
        late += [site.stream(64) for _ in range(2)]
    hung = await site.watch.verdict("a", "hung", after_s=hung_at_s, limit_s=LIMIT_S)
    out = await site.watch.out("a", after_s=hung_at_s, limit_s=LIMIT_S)
    site.note("hang under load: verdict hung", hung.at_s - hung_at_s)
    site.note("hang under load: out of the Envoy", out.at_s - hung_at_s)
    assert await site.status(f"{site.replicas['a'].url}/health") == 200, "vLLM notices nothing"
    whole([await one.ended() for one in late])
    slowest = max(one.seconds for one in late)
    site.note(
        f"hang under load: slowest of {len(late)} streams sent into it ({FIRST_TOKEN_S:g} s for a token)", slowest
    )
    # Those that the hung engine held moved with the verdict, and waited for no limit of time.
    assert slowest < FIRST_TOKEN_S, late
    # By chance all may have gone elsewhere: then none has to move.
    if reached:
        moved = await eventually(site.moved, "Envoy reports retries")
        site.note("hang under load: streams that moved", moved, unit="")
    why = ("switchgear", "why", f"{MODEL}/a", "--admin", f"127.0.0.1:{site.admin}")
    await site.succeeds(*why, exit_code=1)
    story = " ".join(site.answer().split())
    cut = ("its requests are being cut", "no proxy has requests on it")
    assert any(said in story for said in cut), story
    assert "in flight and no token for" in story, story
    after = [site.stream(32) for _ in range(8)]
    whole([await one.ended() for one in after])
    slowest = max(one.seconds for one in after)
    site.note("hang under load: slowest of 8 streams once it was out", slowest)
    assert slowest < FIRST_TOKEN_S, "no request waits for it"

    resumed_at_s = time.monotonic()
    site.signal_core("a", signal.SIGCONT)
    ready = await site.watch.verdict("a", "ready", after_s=resumed_at_s, limit_s=LIMIT_S)
    back = await site.watch.back("a", after_s=resumed_at_s, limit_s=LIMIT_S)
    site.note("hang over: verdict ready", ready.at_s - resumed_at_s)
    site.note("hang over: in again, Envoy's own ejection included", back.at_s - resumed_at_s)
    # A token that was sent cannot be sent again: of those under way the hung engine's were ended, no other.
    ended = [await one.ended() for one in under_way]
    assert any(one.whole for one in ended), ended
    assert all(one.tokens_seen for one in ended), ended


OTHER_APIS = {
    "/v1/responses": {"model": MODEL, "input": "one two", "max_output_tokens": 8, "stream": True},
    "/v1/messages": {
        "model": MODEL,
        "messages": [{"role": "user", "content": "one two"}],
        "max_tokens": 8,
        "stream": True,
    },
}
LAST_EVENTS = {"/v1/responses": b"event: response.completed", "/v1/messages": b"event: message_stop"}


@pytest.mark.parametrize("path", list(OTHER_APIS))
async def test_hung_engine_sends_no_headers_for_other_apis(site: Site, path: str) -> None:
    engine = site.replicas["a"].url

    async def post(url: str) -> bytes:
        async with site.session.post(f"{url}{path}", json=OTHER_APIS[path]) as response:
            assert response.status == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            return await response.read()

    async def held() -> bool:
        return await site.in_flight("a") > 0

    async def free() -> bool:
        return await site.in_flight("a") == 0

    assert LAST_EVENTS[path] in await post(engine)
    began_s = time.monotonic()
    site.signal_core("a", signal.SIGSTOP)
    try:
        direct = asyncio.create_task(post(engine))
        await eventually(held, "the request is in the engine")
        answers = await asyncio.gather(*(post(site.url) for _ in range(6)))
        assert all(LAST_EVENTS[path] in one for one in answers)
        site.note(f"hang: 6 streams of {path} through Envoy, all whole", time.monotonic() - began_s)
        assert not direct.done(), "headers without a token"
        direct.cancel()
        await asyncio.wait([direct])
        await eventually(free, "the client's departure frees the engine")
    finally:
        resumed_s = time.monotonic()
        site.signal_core("a", signal.SIGCONT)
    await site.watch.back("a", after_s=resumed_s, limit_s=LIMIT_S)


async def test_hang_while_idle_is_detected_by_the_agent_canary(site: Site) -> None:
    hung_at_s = time.monotonic()
    site.signal_core("b", signal.SIGSTOP)
    hung = await site.watch.verdict("b", "hung", after_s=hung_at_s, limit_s=LIMIT_S)
    await site.watch.out("b", after_s=hung_at_s, limit_s=LIMIT_S)
    site.note("hang while idle: verdict hung", hung.at_s - hung_at_s)
    resumed_at_s = time.monotonic()
    site.signal_core("b", signal.SIGCONT)
    back = await site.watch.back("b", after_s=resumed_at_s, limit_s=LIMIT_S)
    site.note("hang while idle, over: back in the Envoy", back.at_s - resumed_at_s)


async def test_saturated_engine_is_busy_and_not_ejected(site: Site) -> None:
    began_s = time.monotonic()
    done: list[Stream] = []
    enough = asyncio.Event()

    async def client() -> None:
        while not enough.is_set():
            done.append(await site.stream(24).ended())

    async with asyncio.TaskGroup() as clients:
        for _ in range(64):
            clients.create_task(client())
        for name in BOTH:
            busy = await site.watch.verdict(name, "busy", after_s=began_s, limit_s=LIMIT_S)
            site.note(f"64 at once on {2 * SLOTS} slots: {name} busy", busy.at_s - began_s)
        # Long enough for several queues to pass, and for a wrong verdict to be given.
        full = len(done) + 256
        await eventually(lambda: len(done) >= full, "256 more answers")
        enough.set()
    site.note(f"64 at once: slowest first token of {len(done)} streams", max(one.first_token_s for one in done))
    whole(done)
    for name in BOTH:
        seen = site.watch.since(name, began_s)
        assert all(one.works for one in seen), site.watch.story(name)


async def test_a_client_that_leaves_frees_its_slots(site: Site) -> None:
    before = sum([await site.tokens(name) for name in BOTH])
    streams = await site.begun(12, 900)
    left_at_s = time.monotonic()
    for one in streams:
        await one.leave()

    async def free() -> bool:
        return sum([await site.in_flight(name) for name in BOTH]) == 0

    await eventually(free, "nothing is in flight")
    site.note("12 clients leave: all slots free", time.monotonic() - left_at_s)
    written = sum([await site.tokens(name) for name in BOTH]) - before
    assert written < 12 * 900 / 2, "abandoned streams are not generated to the end"
    again = [site.stream(16) for _ in range(2 * SLOTS)]
    whole([await one.ended() for one in again])


async def test_a_rolling_restart_cuts_no_stream(site: Site) -> None:
    outcomes: list[RequestOutcome] = []
    stop = asyncio.Event()
    profile = LoadProfile(
        targets=(LoadTarget(url=site.url),),
        rate_per_s=3.0,
        streaming_share=0.5,
        max_tokens={32: 1.0},
        deadline_s=LIMIT_S,
        model=MODEL,
    )
    load = asyncio.create_task(run_load(profile, outcomes.append, stop=stop))
    long = await site.begun(8, 600)
    agent = f"http://127.0.0.1:{site.ports['a'].agent_http}"
    drain = ("switchgear-agent", "drain", "--deadline", "60s", "--agent")
    began_s = time.monotonic()
    drained = asyncio.create_task(site.succeeds(*drain, agent))
    out = await site.watch.out("a", after_s=began_s, limit_s=LIMIT_S)
    site.note("drain: out of the Envoy, from the start of the command", out.at_s - began_s)
    assert (out.verdict, out.envoy) == ("draining", "DRAINING"), site.watch.story("a")
    await drained
    site.note("drain: empty, and the command is over", time.monotonic() - began_s)
    site.note("drain: vLLM ends after SIGTERM", await site.end_replica("a"))
    started_s = time.monotonic()
    await site.start_replica("a")
    await site.succeeds("switchgear-agent", "undrain", "--agent", agent)
    await wait_until_up(site.replicas["a"])
    back = await site.watch.back("a", after_s=started_s, limit_s=LIMIT_S)
    site.note("restart: ready and in again", back.at_s - started_s)

    # The other one need not end for it: an order that is taken back.
    long += await site.begun(8, 600)
    agent = f"http://127.0.0.1:{site.ports['b'].agent_http}"
    began_s = time.monotonic()
    await site.succeeds(*drain, agent)
    site.note("drain of the other: empty", time.monotonic() - began_s)
    undrained_s = time.monotonic()
    await site.succeeds("switchgear-agent", "undrain", "--agent", agent)
    back = await site.watch.back("b", after_s=undrained_s, limit_s=LIMIT_S)
    site.note("undrain: back in the Envoy", back.at_s - undrained_s)
    stop.set()
    await load
    whole([await one.ended() for one in long])
    failed = [one for one in outcomes if not one.ok]
    assert not failed, f"{len(failed)} of {len(outcomes)}: {failed[:5]}"


async def test_an_engine_without_its_core_is_dead(site: Site) -> None:
    under_way = await site.begun(6, 900)
    killed_at_s = time.monotonic()
    site.signal_core("b", signal.SIGKILL)
    dead = await site.watch.verdict("b", "dead", after_s=killed_at_s, limit_s=LIMIT_S)
    out = await site.watch.out("b", after_s=killed_at_s, limit_s=LIMIT_S)
    site.note("kill of the engine core: verdict dead", dead.at_s - killed_at_s)
    site.note("kill of the engine core: out of the Envoy", out.at_s - killed_at_s)
    after = [site.stream(32) for _ in range(8)]
    whole([await one.ended() for one in after])
    # Tokens that were already sent cannot be sent again by another engine: those streams are lost, the others not.
    ended = [await one.ended() for one in under_way]
    assert any(one.whole for one in ended), ended
    # vLLM's API server exits with its core. The supervisor restarts it; no probe is needed.
    async with asyncio.timeout(LIMIT_S):
        await site.replicas["b"].child.wait()
    site.note("kill of the engine core: vLLM has ended by itself", time.monotonic() - killed_at_s)
    for name in BOTH:
        assert await site.status(f"http://127.0.0.1:{site.ports[name].agent_http}/livez") == 200
