"""Static answers at a degradation level, from a real Envoy."""

import asyncio
import io
from typing import Any

import pytest

from chaos.fake_engine import EnginePacing
from tests.eventually import eventually
from xds_server.decide.decisions import DegradationState

pytestmark = pytest.mark.envoy

LIMIT_S = 60.0
BODY = 'Busy – back "soon": 100 % of %REQ(host)%.\n' + "x" * 4000
"""With quotes and operators of Envoy's formats, which must stay as they are."""


def policy(engine: Any, answer: str) -> str:
    return f"""---
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {{name: p}}
spec: {{model: fake-model, endpoints: [{{address: 127.0.0.1, port: {engine.port}}}]}}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {{name: r}}
spec:
  listener: {{port: 8080, address: 127.0.0.1}}
  pools: [{{pool: p}}]
  staticAnswer: {answer}
"""


def level(number: int) -> DegradationState:
    return DegradationState(level=number, reason="", since_s=0)


async def test_static_answer_reaches_callers_as_written_and_spares_open_streams(rig, engine):
    sound = await engine(max_model_len=10_000_000)
    answer = f"{{fromLevel: 3, status: 200, contentType: 'text/plain; charset=utf-8', body: {BODY!r}}}"
    one = await rig(policy(sound, answer.replace("\\n", "\n\n  ")), dynamic_routes=True)
    assert (await one.complete()).status == 200
    await sound.set_fault(EnginePacing(factor=100.0))  # so that the stream outlasts what follows
    stream = asyncio.create_task(one.complete(stream=True, max_tokens=100))
    await eventually(lambda: sound.calls_in_flight, "the stream is open", LIMIT_S)

    await one.decide(degradation=level(3))
    for body in ({}, {"stream": True}, {"prompt": "word " * 600_000}):
        got = await one.complete(**body)
        assert (got.status, got.headers["content-type"]) == (200, "text/plain; charset=utf-8")
        assert got.headers["x-switchgear-reason"] == "static-answer"
        assert "retry-after" not in got.headers
        assert await got.text() == BODY
    async with one.client.post(f"{one.url}/v1/files", data=io.BytesIO(b"\x00" * 2_000_000)) as got:
        assert (got.status, await got.text()) == (200, BODY)
    async with one.client.head(f"{one.url}/v1/models") as head:
        assert (head.status, head.headers["x-switchgear-reason"]) == (200, "static-answer")
    assert sound.book.totals().arrived == 2

    await one.decide(degradation=level(2))
    assert not stream.done()
    await sound.set_fault(None)
    assert (await stream).status == 200
    got = await one.complete()
    assert (got.status, "x-switchgear-reason" in got.headers) == (200, False)


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503, 504])
async def test_statuses_of_other_refusals_keep_the_static_body(rig, engine, status):
    sound = await engine()
    answer = f"{{fromLevel: 1, status: {status}, retryAfter: 1500ms, body: '{{\"a\": 1}}'}}"
    one = await rig(policy(sound, answer), pools={"p": {"degradation": level(1)}})
    got = await one.complete()
    assert (got.status, got.headers["content-type"], await got.text()) == (status, "application/json", '{"a": 1}')
    assert (got.headers["x-switchgear-reason"], got.headers["retry-after"]) == ("static-answer", "2")
    async with one.client.get(f"{one.url}/v1/models") as other:
        assert other.status == status
    assert not sound.book.totals().arrived


async def test_shadow_mode_gives_no_static_answer(rig, engine):
    sound = await engine()
    shadowed = DegradationState(level=4, reason="", since_s=0, shadow=level(4))
    one = await rig(policy(sound, "{fromLevel: 1, body: '{}'}"), pools={"p": {"degradation": shadowed}})
    assert (await one.complete()).status == 200
    assert sound.book.totals().arrived == 1
