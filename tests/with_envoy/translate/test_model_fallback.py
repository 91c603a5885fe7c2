"""Fallback to another model: requested by its own name, disclosed to the caller, only where allowed."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from chaos.fake_engine import EngineShed
from xds_server.decide.decisions import DegradationState

pytestmark = pytest.mark.envoy

TO_THE_FALLBACK = {"switchgear.route.r.p": 0, "switchgear.route.r.small": 1}


@dataclass
class Recorder:
    """An engine that answers anything and keeps what it was sent."""

    port: int = 0
    bodies: list[bytes] = field(default_factory=list)
    headers: list[Any] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        self.headers.append(request.headers)
        return web.json_response({})


@pytest.fixture
async def recorder() -> AsyncIterator[Callable[[], Awaitable[Recorder]]]:
    runners: list[web.AppRunner] = []

    async def start() -> Recorder:
        one = Recorder()
        app = web.Application(client_max_size=100_000_000)
        app.router.add_route("*", "/{path:.*}", one.handle)
        runners.append(web.AppRunner(app, shutdown_timeout=0.1))
        await runners[-1].setup()
        site = web.TCPSite(runners[-1], "127.0.0.1", 0)
        await site.start()
        one.port = runners[-1].addresses[0][1]
        return one

    yield start
    for runner in runners:
        await runner.cleanup()


def policy(main: Any, small: Any, route: str = "", *, model: str = "small", match: str = "{}") -> str:
    return f"""---
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {{name: p}}
spec: {{model: big, endpoints: [{{address: 127.0.0.1, port: {main.port}}}]}}
---
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {{name: small}}
spec: {{model: {json.dumps(model)}, endpoints: [{{address: 127.0.0.1, port: {small.port}}}]}}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {{name: r}}
spec:
  {{listener: {{port: 8080, address: 127.0.0.1}}, match: {match}, pools: [{{pool: p}}], fallbacks: [small]{route}}}
"""


async def post(rig: Any, body: Any, content_type: str = "application/json", **headers: str) -> Any:
    async with rig.client.post(
        f"{rig.url}/v1/chat/completions", data=body, headers={"content-type": content_type, **headers}
    ) as answer:
        await answer.read()
        return answer


NASTY = {
    "plain": (b'{"model":"big","prompt":"x"}', b'{"model":"small","prompt":"x"}'),
    "last, with white space": (
        b'{ "prompt" : "x",\n"model"\t: \r\n "big" }\n',
        b'{ "prompt" : "x",\n"model"\t: \r\n "small" }\n',
    ),
    "nested keys stay": (
        b'{"messages":[{"role":"user","model":"big","content":[{"model":"big"}]}],"a":{"model":"big"},"model":"big"}',
        b'{"messages":[{"role":"user","model":"big","content":[{"model":"big"}]}],"a":{"model":"big"},"model":"small"}',
    ),
    "text that looks like it": (
        b'{"prompt":"\\"model\\":\\"big\\"","x":"{\\"model\\": \\"big\\"}","y":"}]","model":"big"}',
        b'{"prompt":"\\"model\\":\\"big\\"","x":"{\\"model\\": \\"big\\"}","y":"}]","model":"small"}',
    ),
    "backslashes before quotes": (
        b'{"a":"\\\\","b":"\\\\\\"","model":"big","c":"\\\\\\\\"}',
        b'{"a":"\\\\","b":"\\\\\\"","model":"small","c":"\\\\\\\\"}',
    ),
    "a value that says model": (
        b'{"a":"model","b":["model"],"model":"big"}',
        b'{"a":"model","b":["model"],"model":"small"}',
    ),
    "an escaped key": (b'{"m\\u006fdel":"big"}', b'{"m\\u006fdel":"small"}'),
    "an escaped value": (b'{"model":"b\\u0069g\\"","z":1}', b'{"model":"small","z":1}'),
    "unicode": (
        '{"prompt":"Größe 模型 🎛 \\ud83c\\udf9b","model":"bïg"}'.encode(),
        '{"prompt":"Größe 模型 🎛 \\ud83c\\udf9b","model":"small"}'.encode(),
    ),
    "numbers keep their digits": (
        b'{"seed":123456789012345678901234567890,"t":1.0,"e":1E-7,"model":"big"}',
        b'{"seed":123456789012345678901234567890,"t":1.0,"e":1E-7,"model":"small"}',
    ),
    "given twice": (b'{"model":"big","n":1,"model":"big"}', b'{"model":"small","n":1,"model":"small"}'),
    # No engine reads these; each gets the name that it would look for.
    "not JSON after the model": (b'{"model":"big", oops', b'{"model":"small", oops'),
    "cut short": (b'{"model":"big","prompt":"x', b'{"model":"small","prompt":"x'),
    "a longer key": (
        b'{"models":"big","model_":"big","model":"big"}',
        b'{"models":"big","model_":"big","model":"small"}',
    ),
}

UNTOUCHED = {
    "a list": b'[{"model":"big"},"model",{"model":"big"}]',
    "no model": b'{"prompt":"the model"}',
    "not a string": b'{"model":null,"prompt":"x"}',
    "only nested": b'{"a":{"model":"big"}}',
    "empty": b"",
}


@pytest.mark.parametrize("case", NASTY)
async def test_only_the_name_of_the_model_changes(rig, recorder, case):
    main, small = await recorder(), await recorder()
    one = await rig(policy(main, small))
    await one.set_runtime(TO_THE_FALLBACK)
    sent, expected = NASTY[case]
    assert (await post(one, sent)).status == 200
    assert small.bodies == [expected]
    assert small.headers[0]["content-length"] == str(len(expected))


@pytest.mark.parametrize("case", UNTOUCHED)
async def test_body_without_a_model_passes_unchanged(rig, recorder, case):
    main, small = await recorder(), await recorder()
    one = await rig(policy(main, small))
    await one.set_runtime(TO_THE_FALLBACK)
    assert (await post(one, UNTOUCHED[case])).status == 200
    assert small.bodies == [UNTOUCHED[case]]


async def test_chunked_and_large_bodies_and_other_types(rig, recorder):
    main, small = await recorder(), await recorder()
    one = await rig(policy(main, small, model='q"\\uote'))
    await one.set_runtime(TO_THE_FALLBACK)

    async def chunks() -> AsyncIterator[bytes]:
        for part in (b'{"prom', b'pt":"', b'word \\"\\n ' * 1_200_000, b'","mo', b'del":"b', b'ig"}'):
            yield part

    answer = await post(one, chunks())
    assert (answer.status, answer.headers["x-switchgear-served-model"]) == (200, "q%22%5Cuote")
    assert int(small.headers[0]["content-length"]) == len(small.bodies[0])
    asked = json.loads(small.bodies[0])
    assert (asked["model"], len(asked["prompt"])) == ('q"\\uote', 9_600_000)
    text = b'{"model":"big"}'
    assert (await post(one, text, content_type="text/plain")).status == 200
    assert small.bodies[1] == text


async def test_requests_of_the_pool_itself_are_as_they_were_sent_and_nothing_is_disclosed(rig, recorder):
    main, small = await recorder(), await recorder()
    one = await rig(policy(main, small))
    answer = await post(one, b'{"model":"big"}')
    assert main.bodies == [b'{"model":"big"}']
    assert not {"x-switchgear-served-model", "x-switchgear-fallback"} & answer.headers.keys()


async def test_answer_of_another_model_is_disclosed(rig, engine):
    main, small = await engine(model="big"), await engine(model="small")
    one = await rig(policy(main, small, match="{model: big}"))
    await one.set_runtime(TO_THE_FALLBACK)
    for stream in (False, True):
        answer = await one.complete(model="big", stream=stream)
        assert answer.status == 200
        assert answer.headers["x-switchgear-served-model"] == "small"
        assert answer.headers["x-switchgear-fallback"] == "small"
    assert small.book.totals().finished == 2


async def test_a_retry_inside_the_fallback_is_disclosed_too(rig, engine):
    main, small = await engine(model="big"), await engine(model="small")
    await small.set_fault(EngineShed(retry_after_s=None, share=0.5))
    one = await rig(policy(main, small), ceilings={"p": (10, 10), "small": (10, 10)})
    await one.set_runtime(TO_THE_FALLBACK)
    answers = [await one.complete(model="big") for _ in range(40)]
    assert {answer.headers.get("x-switchgear-fallback") for answer in answers} == {"small"}
    assert small.book.totals().shed


async def test_fallback_with_the_same_model_is_not_disclosed(rig, recorder):
    main, other = await recorder(), await recorder()
    one = await rig(policy(main, other, model="big"))
    await one.set_runtime(TO_THE_FALLBACK)
    answer = await post(one, b'{"model":"lora-of-big"}')
    assert other.bodies == [b'{"model":"lora-of-big"}']
    assert "x-switchgear-fallback" not in answer.headers


async def test_overflow_share_of_a_full_pool_goes_to_the_fallback(rig, engine):
    main, small = await engine(model="big"), await engine(model="small")
    full = DegradationState(level=2, reason="", since_s=0, fallback_percent=30)
    one = await rig(policy(main, small), pools={"p": {"degradation": full}})
    disclosed = ["x-switchgear-fallback" in (await one.complete(model="big")).headers for _ in range(400)]
    assert small.book.totals().finished == sum(disclosed)
    assert 74 <= sum(disclosed) <= 166  # 30 % of 400, five standard deviations
    assert main.book.totals().finished == 400 - sum(disclosed)


async def test_a_caller_who_did_not_opt_in_never_gets_another_model(rig, engine):
    main, small = await engine(model="big"), await engine(model="small")
    full = DegradationState(level=2, reason="", since_s=0, fallback_percent=100)
    one = await rig(policy(main, small, ", modelChange: opt-in"), pools={"p": {"degradation": full}})
    willing = await one.complete(model="big", headers={"x-switchgear-allow-model-change": "True"})
    assert (willing.status, willing.headers["x-switchgear-fallback"]) == (200, "small")
    for headers in ({}, {"x-switchgear-allow-model-change": "no"}):
        plain = await one.complete(model="big", headers=headers)
        assert (plain.status, plain.headers.get("x-switchgear-fallback")) == (200, None)
    assert (main.book.totals().finished, small.book.totals().finished) == (2, 1)


async def test_rejection_by_the_fallback_is_not_passed_to_the_caller(rig, engine):
    main, small = await engine(model="big"), await engine(model="small")
    one = await rig(policy(main, small), ceilings={"p": (10, 10), "small": (0, 0)})
    await one.set_runtime(TO_THE_FALLBACK)
    refused = await one.complete(model="big")
    assert (refused.status, refused.headers["x-switchgear-reason"]) == (503, "overload")
    assert "x-switchgear-served-model" not in refused.headers
