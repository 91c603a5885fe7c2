"""Answers that a degradation level shortens: the bodies that engines get through a real Envoy."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from xds_server.decide.decisions import DegradationState

pytestmark = pytest.mark.envoy

HEADER = "x-switchgear-answer-limit"
CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
REDUCED = DegradationState(level=3, reason="", since_s=0, max_tokens=512, reduces_answers=True)
TO_THE_FALLBACK = {"switchgear.route.r.p": 0, "switchgear.route.r.small": 1}


@dataclass
class BodyRecorder:
    """An engine that keeps each body and its headers; ``statuses`` are answered first, then 200."""

    port: int = 0
    statuses: list[int] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        self.headers.append(request.headers)
        return web.json_response({}, status=self.statuses.pop(0) if self.statuses else 200)


@pytest.fixture
async def recorder() -> AsyncIterator[Callable[..., Awaitable[BodyRecorder]]]:
    runners: list[web.AppRunner] = []

    async def start(**settings: Any) -> BodyRecorder:
        one = BodyRecorder(**settings)
        app = web.Application(client_max_size=100_000_000)
        app.router.add_route("*", "/{path:.*}", one.handle)
        runners.append(web.AppRunner(app, shutdown_timeout=0.1))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", 0).start()
        one.port = runners[-1].addresses[0][1]
        return one

    yield start
    for runner in runners:
        await runner.cleanup()


def pool(name: str, model: str, *engines: BodyRecorder) -> str:
    endpoints = ", ".join(f"{{address: 127.0.0.1, port: {one.port}}}" for one in engines)
    return f"""---
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {{name: {name}}}
spec: {{model: {model}, endpoints: [{endpoints}]}}
"""


def route(more: str = "") -> str:
    return f"""---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {{name: r}}
spec: {{listener: {{port: 8080, address: 127.0.0.1}}, pools: [{{pool: p}}]{more}}}
"""


async def post(rig: Any, path: str, body: Any, **headers: str) -> tuple[int, str | None]:
    """Status of the answer, and the limit that it names."""
    headers = {"content-type": "application/json", **headers}
    async with rig.client.post(rig.url + path, data=body, headers=headers) as answer:
        await answer.read()
        return answer.status, answer.headers.get(HEADER)


@pytest.mark.parametrize(
    ("path", "sent", "got"),
    [
        (CHAT, {"messages": [], "max_tokens": 4000}, {"messages": [], "max_tokens": 512}),
        (CHAT, {"max_completion_tokens": 4000}, {"max_completion_tokens": 512}),
        (CHAT, {"messages": []}, {"messages": [], "max_tokens": 512}),
        (CHAT, {"max_tokens": None, "stream": True}, {"max_tokens": 512, "stream": True}),
        (TEXT, {"max_tokens": 4000, "min_tokens": 600}, {"max_tokens": 512, "min_tokens": 512}),
        (RESPONSES, {"input": "x", "max_output_tokens": 4000}, {"input": "x", "max_output_tokens": 512}),
        (RESPONSES, {"input": "x"}, {"input": "x", "max_output_tokens": 512}),
        (MESSAGES, {"max_tokens": 4000}, {"max_tokens": 512}),
    ],
)
async def test_long_answers_are_shortened_and_callers_see_it(rig, recorder, path, sent, got):
    engine = await recorder()
    one = await rig(pool("p", "m", engine) + route(), pools={"p": {"degradation": REDUCED}})
    assert await post(one, path, json.dumps(sent)) == (200, "512")
    assert json.loads(engine.bodies[0]) == got
    assert engine.headers[0]["content-length"] == str(len(engine.bodies[0]))


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        (CHAT, b'{"max_tokens":512,"p":"\\"max_tokens\\":900","x":[{"max_tokens":900}]}'),
        (TEXT, b'{"prompt":"x"}'),
        (MESSAGES, b'{"messages":[]}'),
        (CHAT, b"not JSON"),
        ("/v1/embeddings", b'{"input": "x"}'),
        (CHAT, b""),
    ],
)
async def test_other_bodies_reach_the_engine_as_sent(rig, recorder, path, sent):
    engine = await recorder()
    one = await rig(pool("p", "m", engine) + route(), pools={"p": {"degradation": REDUCED}})
    assert await post(one, path, sent) == (200, None)
    assert engine.bodies == [sent]


async def test_body_that_cannot_be_limited_is_refused(rig, recorder):
    engine = await recorder()
    one = await rig(pool("p", "m", engine) + route(), pools={"p": {"degradation": REDUCED}})
    async with one.client.post(
        one.url + MESSAGES,
        data=b'{"max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": 2000}}',
        headers={"content-type": "application/json"},
    ) as answer:
        error = (await answer.json())["error"]
        assert (answer.status, answer.headers["x-switchgear-reason"]) == (503, "too-long-now")
        assert (answer.headers["retry-after"], HEADER in answer.headers) == ("5", False)
    assert error["message"] == "answers are limited to 512 tokens while the model is overloaded"
    assert not engine.bodies


async def test_chunked_and_large_bodies_are_limited(rig, recorder):
    engine = await recorder()
    one = await rig(pool("p", "m", engine) + route(), pools={"p": {"degradation": REDUCED}})

    async def chunks() -> AsyncIterator[bytes]:
        for part in (b'{"prom', b'pt":"', b'\\"max_tokens\\":9 ' * 600_000, b'","max_', b'tokens":90', b"00}"):
            yield part

    assert await post(one, CHAT, chunks()) == (200, "512")
    assert engine.headers[0]["content-length"] == str(len(engine.bodies[0]))
    asked = json.loads(engine.bodies[0])
    assert (asked["max_tokens"], len(asked["prompt"])) == (512, 9_000_000)


async def test_a_retry_gets_the_shortened_body(rig, recorder):
    failing, sound = await recorder(statuses=[503] * 40), await recorder()
    one = await rig(
        pool("p", "m", failing, sound) + route(),
        pools={"p": {"degradation": REDUCED}},
        ceilings={"p": (100, 100)},
    )
    tries = 0
    while not failing.bodies and tries < 40:
        assert await post(one, TEXT, b'{"max_tokens": 4000}') == (200, "512")
        tries += 1
    assert set(failing.bodies + sound.bodies) == {b'{"max_tokens": 512}'}


async def test_a_fallback_with_another_model_gets_its_name_and_the_limit(rig, recorder):
    main, small = await recorder(), await recorder()
    one = await rig(
        pool("p", "big", main) + pool("small", "little", small) + route(", fallbacks: [small]"),
        pools={"p": {"degradation": REDUCED}},
    )
    await one.set_runtime(TO_THE_FALLBACK)
    assert await post(one, CHAT, b'{"model":"big","max_tokens":4000}') == (200, "512")
    assert small.bodies == [b'{"model":"little","max_tokens":512}']


async def test_answers_are_shortened_where_callers_state_the_fields_in_headers(rig, recorder):
    engine = await recorder()
    stated = route().replace("address: 127.0.0.1}, pools", "address: 127.0.0.1, requestFields: headers}, pools")
    one = await rig(pool("p", "m", engine) + stated, pools={"p": {"degradation": REDUCED}})
    headers = {"x-switchgear-max-tokens": "4000"}
    assert await post(one, CHAT, b'{"max_tokens": 4000}', **headers) == (200, "512")
    assert await post(one, CHAT, b'{"max_tokens": 5}', **headers) == (200, None)
    assert engine.bodies == [b'{"max_tokens": 512}', b'{"max_tokens": 5}']


async def test_a_refusal_names_no_limit(rig, recorder):
    engine = await recorder()
    one = await rig(
        pool("p", "m", engine) + route(), pools={"p": {"degradation": REDUCED}}, ceilings={"p": (0, 0)}
    )
    assert await post(one, CHAT, b'{"max_tokens": 4000}') == (503, None)


async def test_bodies_stay_once_the_level_is_left(rig, recorder):
    engine = await recorder()
    one = await rig(pool("p", "m", engine) + route(), dynamic_routes=True)
    sent = b'{"max_tokens": 4000}'
    assert await post(one, CHAT, sent) == (200, None)
    await one.decide(degradation=REDUCED)
    answers = await asyncio.gather(*(post(one, CHAT, sent) for _ in range(20)))
    assert set(answers) == {(200, "512")}
    await one.decide(degradation=DegradationState(level=2, reason="", since_s=0))
    assert await post(one, CHAT, sent) == (200, None)
    assert (engine.bodies[0], engine.bodies[-1], len(engine.bodies)) == (sent, sent, 22)
