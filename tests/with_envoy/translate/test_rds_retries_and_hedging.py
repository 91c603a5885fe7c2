"""Routes that follow decisions while requests are in flight, and requests that must not run twice."""

import asyncio
import io
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from chaos.fake_engine import EngineCrash, EngineErrorAfterWork, EngineHang, EnginePacing, EngineShed
from tests.eventually import eventually
from xds_server.decide.decisions import DegradationState, HedgeDecision, RetryDecision

pytestmark = pytest.mark.envoy

LIMIT_S = 60.0
ONCE = {"x-switchgear-side-effects": "true"}
KEYED = {**ONCE, "idempotency-key": "k-1"}
ROOM = {"p": (100, 100)}


def policy(*engines: Any, resilience: str = "{}", pool: str = "", route: str = "") -> str:
    endpoints = ", ".join(f"{{address: 127.0.0.1, port: {one.port}}}" for one in engines)
    return f"""---
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {{name: p}}
spec: {{model: fake-model, endpoints: [{endpoints}]{pool}}}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {{name: r}}
spec: {{listener: {{port: 8080, address: 127.0.0.1}}, pools: [{{pool: p}}]{route}}}
---
apiVersion: switchgear.dev/v1alpha1
kind: ResiliencePolicy
metadata: {{name: default}}
spec: {resilience}
"""


@dataclass
class Resetter:
    """Reads a whole request, then resets the connection: the work may have been done."""

    port: int = 0
    requests: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
        )
        await reader.readexactly(length)
        self.requests += 1
        writer.transport.abort()


@pytest.fixture
async def resetter() -> AsyncIterator[Callable[[], Awaitable[Resetter]]]:
    servers: list[asyncio.Server] = []

    async def start() -> Resetter:
        one = Resetter()
        servers.append(await asyncio.start_server(one.serve, "127.0.0.1", 0))
        one.port = servers[-1].sockets[0].getsockname()[1]
        return one

    yield start
    for server in servers:
        server.close()


NO_EJECTION = "breaker: {consecutiveErrors: 0, consecutiveLocalErrors: 0, errorRatePercent: 0}"


@pytest.mark.parametrize("stream", [True, False])
async def test_non_idempotent_request_is_never_retried_after_a_reset(rig, engine, resetter, stream):
    resets, sound = await resetter(), await engine()
    one = await rig(policy(resets, sound, resilience=f"{{{NO_EJECTION}}}"), ceilings=ROOM)
    seen = Counter([(await one.complete(headers=ONCE, stream=stream)).status for _ in range(40)])
    assert seen[503] == resets.requests > 0  # each returned to its caller, none retried
    assert seen[200] == sound.book.totals().finished == 40 - resets.requests
    for headers in ({}, KEYED):
        before = resets.requests
        again = [(await one.complete(headers=headers, stream=stream)).status for _ in range(30)]
        assert again == [200] * 30
        assert resets.requests > before


async def test_non_idempotent_request_is_not_retried_after_a_response(rig, engine):
    shedding, sound = await engine(), await engine()
    await shedding.set_fault(EngineShed(retry_after_s=None))
    one = await rig(policy(shedding, sound, resilience=f"{{{NO_EJECTION}}}"), ceilings=ROOM)
    seen = Counter([(await one.complete(headers=ONCE)).status for _ in range(40)])
    assert seen[503] == shedding.book.totals().shed > 0


@pytest.mark.parametrize("headers", [{}, ONCE])
async def test_connect_failure_is_retried_even_for_non_idempotent_requests(rig, engine, headers):
    gone, sound = await engine(), await engine()
    one = await rig(policy(gone, sound, resilience=f"{{{NO_EJECTION}}}"), ceilings=ROOM)
    await gone.set_fault(EngineCrash())
    assert [(await one.complete(headers=headers)).status for _ in range(30)] == [200] * 30
    assert (await one.envoy.stats("cluster.p.upstream_rq_retry"))["cluster.p.upstream_rq_retry"] > 0


async def test_idempotency_key_allows_retries(rig, engine, resetter):
    resets, sound = await resetter(), await engine()
    text = policy(resets, sound, resilience=f"{{{NO_EJECTION}}}", route=", sideEffects: true")
    one = await rig(text, ceilings=ROOM)
    seen = Counter([(await one.complete()).status for _ in range(40)])
    assert seen[503] == resets.requests > 0
    keyed = [(await one.complete(headers={"idempotency-key": "k"})).status for _ in range(20)]
    assert keyed == [200] * 20


async def test_non_idempotent_request_is_not_hedged(rig, engine):
    engines = [await engine(prefill_s=0.5) for _ in range(2)]
    hedging = "{hedging: {enabled: true, delay: 50ms, maxPercent: 100}, retries: {attempts: 1}}"
    one = await rig(policy(*engines, resilience=hedging), ceilings=ROOM)

    def arrived() -> int:
        return sum(each.book.totals().arrived for each in engines)

    assert (await one.complete(headers=ONCE)).status == 200
    assert arrived() == 1
    for each in engines:
        await each.set_fault(EngineHang())
    hedged = asyncio.create_task(one.complete(headers=KEYED))
    await eventually(lambda: arrived() == 3, "both tries of it run", LIMIT_S)
    for each in engines:
        await each.heal()
    assert (await hedged).status == 200
    assert arrived() == 3


def hedge(on: bool) -> HedgeDecision:
    return HedgeDecision(on=on, delay_s=0.1, answer_delay_s=0.1, reason="", since_s=0)


async def test_hedging_toggles_by_rds_without_disturbing_streams(rig, engine):
    engines = [await engine(first_token_gate=True, token_s=0.02) for _ in range(2)]
    text = policy(
        *engines,
        pool=", firstTokenGate: true",
        resilience="{hedging: {enabled: true, maxPercent: 100}, retries: {attempts: 0}}",
    )
    one = await rig(text, ceilings=ROOM, pools={"p": {"hedge": hedge(False)}}, dynamic_routes=True)
    warmed = (await one.envoy.stats("cluster_manager.cluster_modified"))["cluster_manager.cluster_modified"]
    for each in engines:  # so that the stream outlasts what follows, however long that takes
        await each.set_fault(EnginePacing(factor=100.0))
    stream = asyncio.create_task(one.complete(stream=True, max_tokens=100))
    await eventually(lambda: any(each.calls_in_flight for each in engines), "the stream is open", LIMIT_S)
    held = next(each for each in engines if each.calls_in_flight)
    free = next(each for each in engines if each is not held)

    await one.decide(hedge=hedge(True))
    await free.set_fault(EngineHang())
    retries = "cluster.p.upstream_rq_retry"
    hedged = rounds = 0
    while not hedged:
        assert rounds < 30, "no request was sent to the hung engine"
        rounds += 1
        rescued = await asyncio.gather(*(one.complete(stream=True) for _ in range(6)))
        assert Counter(answer.status for answer in rescued) == {200: 6}
        hedged = (await one.envoy.stats(retries))[retries]

    await one.decide(hedge=hedge(False))
    await free.set_fault(None)
    assert (await one.complete(stream=True)).status == 200
    assert (await one.envoy.stats(retries))[retries] == hedged
    assert not stream.done()
    await held.set_fault(None)
    answer = await stream
    assert answer.status == 200
    assert " t100" in await answer.text()
    assert (await one.envoy.stats("cluster_manager.cluster_modified"))[
        "cluster_manager.cluster_modified"
    ] == warmed


def ladder(level: int, **action: Any) -> DegradationState:
    return DegradationState(level=level, reason="", since_s=0, **action)


async def test_maintenance_response_is_served_until_the_decision_ends(rig, engine):
    sound = await engine(max_model_len=10_000_000)
    one = await rig(policy(sound), dynamic_routes=True)
    assert (await one.complete()).status == 200
    await one.decide(degradation=ladder(4, maintenance='back at "noon" – 12:00'))
    for body in ({}, {"stream": True}, {"prompt": "word " * 600_000}, {"max_tokens": 10**7}):
        answer = await one.complete(**body)
        assert answer.status == 503
        assert (answer.headers["x-switchgear-reason"], answer.headers["retry-after"]) == ("maintenance", "30")
        assert answer.headers["content-type"].startswith("application/json")
        assert (await answer.json())["error"] == {
            "code": 503,
            "message": 'back at "noon" – 12:00',
            "type": "switchgear",
        }
    async with one.client.get(f"{one.url}/v1/models") as models:
        assert models.status == 503
    assert sound.book.totals().arrived == 1
    await one.decide(degradation=ladder(3))
    assert (await one.complete()).status == 200


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
async def test_load_shedding_rejects_long_answers_first(rig, engine, field):
    sound = await engine(max_model_len=10_000_000)
    one = await rig(policy(sound), pools={"p": {"degradation": ladder(3, max_tokens=64)}})

    async def ask(value: Any, prompt: str = "x", **more: Any) -> tuple[int, str | None, str | None]:
        body = json.dumps({"model": "fake-model", "prompt": prompt, field: value, **more})
        async with one.client.post(
            f"{one.url}/v1/completions",
            data=io.BytesIO(body.encode()),
            headers={"content-type": "application/json"},
        ) as answer:
            await answer.read()
            return answer.status, answer.headers.get("x-switchgear-reason"), answer.headers.get("retry-after")

    for stream in (False, True):
        assert await ask(64, stream=stream) == (200, None, None)
        for value in (65, 65.0, 10**9):
            assert await ask(value, stream=stream) == (503, "too-long-now", "5")
    assert await ask(100_000, "word " * 600_000) == (503, "too-long-now", "5")
    assert sound.book.totals().arrived == 2


async def test_batch_is_shed_at_zero_max_requests_with_retry_after(rig, engine):
    sound = await engine()
    one = await rig(policy(sound, route=", priority: batch"), ceilings={"p": (5, 0)})
    refused = await one.complete()
    assert (refused.status, refused.headers["x-switchgear-reason"]) == (503, "overload")
    assert refused.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("stream", "limit"),
    [
        (True, "streaming: {betweenTokens: 300ms}"),
        (True, "streaming: {total: 300ms}"),
        (False, "nonStreaming: {total: 300ms}"),
        (False, "nonStreaming: {perTry: 300ms}"),
    ],
)
async def test_every_exceeded_timeout_answers_504(rig, engine, stream, limit):
    hung = await engine(first_token_gate=True)
    await hung.set_fault(EngineHang())
    limits = f"{{timeouts: {{{limit}}}, retries: {{attempts: 0}}}}"
    one = await rig(policy(hung, pool=", firstTokenGate: true", resilience=limits))
    answer = await one.complete(stream=stream)
    assert (answer.status, answer.headers["x-switchgear-reason"]) == (504, "timeout")


async def test_http_500_is_retried(rig, engine):
    broken, *sound = [await engine() for _ in range(3)]
    await broken.set_fault(EngineErrorAfterWork())
    one = await rig(policy(broken, *sound, resilience=f"{{{NO_EJECTION}}}"), ceilings=ROOM)
    # That the broken one of three is never asked first has one in 10^10.
    assert [(await one.complete()).status for _ in range(60)] == [200] * 60
    assert broken.book.totals().arrived > 0
    once = Counter([(await one.complete(headers=ONCE)).status for _ in range(60)])
    assert once[500] > 0  # it has been worked on, so it is never repeated


async def test_poison_requests_are_not_retried_once_detected(rig, engine):
    engines = [await engine() for _ in range(4)]
    for each in engines:
        await each.set_fault(EngineErrorAfterWork())
    one = await rig(policy(*engines, resilience=f"{{{NO_EJECTION}}}"), ceilings=ROOM, dynamic_routes=True)

    def arrived() -> int:
        return sum(each.book.totals().arrived for each in engines)

    assert (await one.complete()).status == 500
    assert arrived() == 4
    await one.decide(retries=RetryDecision(statuses=(503,), reason="", since_s=0.0))
    assert (await one.complete()).status == 500
    assert arrived() == 5
