"""A listener whose callers state model, stream and token limit in headers, at a real Envoy."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.eventually import eventually
from tests.with_envoy.translate.recording_engine import Hearing
from tests.with_envoy.translate.test_model_fallback import TO_THE_FALLBACK, recorder
from tests.with_envoy.translate.test_model_fallback import policy as policy_with_fallback
from tests.with_envoy.translate.test_route_match_per_try_and_hedging import LIMIT_S, pool, route, route_counts
from xds_server.decide.decisions import DegradationState
from xds_server.translate.request_fields import FIELDS_FILTER

__all__ = ["recorder"]
pytestmark = pytest.mark.envoy

HEADERS = {"model": "x-switchgear-model", "stream": "x-switchgear-stream", "max_tokens": "x-switchgear-max-tokens"}
MODEL, STREAM, MAX_TOKENS = HEADERS.values()
REQUESTS: tuple[dict[str, Any], ...] = (
    {"model": "big"},
    {"model": "big", "stream": True},
    {"model": "big", "stream": False, "max_tokens": 4},
    {"model": "small"},
    {"model": "small", "stream": True},
    {"model": "small", "stream": False},
    {"model": "small", "stream": True, "max_tokens": 512},
    {"model": "small", "max_tokens": 513},
    {"model": "unknown"},
    {"model": "unknown", "stream": True},
    {"model": "Big"},
    {"model": "a name with / and: signs+"},
    {},
)


@pytest.fixture
async def hearing() -> AsyncIterator[Hearing]:
    one = Hearing()
    runner = await one.listen()
    yield one
    await runner.cleanup()


def by_headers(policy: str) -> str:
    assert "port: 8080" in policy
    return policy.replace("port: 8080", "port: 8080, requestFields: headers")


def stated(fields: dict[str, Any]) -> dict[str, str]:
    return {
        HEADERS[name]: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()
    }


async def answer(
    one: Any, headers: dict[str, str] | list[tuple[str, str]], body: Any = b"{}"
) -> tuple[int, str, str]:
    """Status, reason and message; the body is not that of a completion unless given."""
    sent = [("content-type", "application/json"), *(headers.items() if isinstance(headers, dict) else headers)]
    data = io.BytesIO(body) if isinstance(body, bytes) else body
    async with one.client.post(f"{one.url}/v1/completions", data=data, headers=sent) as found:
        told = await found.read()
        reason = found.headers.get("x-switchgear-reason", "")
        return found.status, reason, json.loads(told)["error"]["message"] if reason else ""


def three_routes(heard: Any) -> str:
    return (
        pool("p", heard)
        + route("big", "p", match="{model: big}")
        + route("small", "p", match="{model: small}")
        + route("streams", "p", match="{model: small, stream: true}")
        + route("rest", "p")
    )


async def test_both_sources_route_the_same_requests_alike(rig, hearing):
    shed = {"p": {"degradation": DegradationState(level=3, reason="", since_s=0, max_tokens=512)}}
    policy = three_routes(hearing)
    read = await rig(policy, pools=shed)
    told = await rig(by_headers(policy), pools=shed)
    for fields in REQUESTS:
        before = await route_counts(read), await route_counts(told)
        body = json.dumps(fields).encode()
        answers = [await answer(read, {}, body), await answer(told, stated(fields))]
        assert answers[0] == answers[1], fields
        after = await route_counts(read), await route_counts(told)
        moved = [
            {name for name, count in now.items() if count != then.get(name)}
            for then, now in zip(before, after, strict=True)
        ]
        assert moved[0] == moved[1], fields
        assert (answers[0][1] == "too-long-now") is (fields.get("max_tokens") == 513)


async def test_listener_has_no_filter_that_reads_bodies(rig, hearing):
    one = await rig(by_headers(three_routes(hearing)))
    async with one.client.get(f"http://127.0.0.1:{one.envoy.admin_port}/config_dump") as found:
        dump = await found.text()
    assert '"port-8080-headers"' in dump
    assert FIELDS_FILTER not in dump
    assert '"dynamic_metadata":' not in dump


async def test_request_reaches_the_engine_before_its_body_ends(rig, hearing):
    one = await rig(by_headers(three_routes(hearing)))

    async def slow() -> AsyncIterator[bytes]:
        yield b'{"model": "big"'
        await eventually(lambda: hearing.seen, "the request at the engine", LIMIT_S)
        yield b"}"

    assert (await answer(one, stated({"model": "big"}), slow()))[0] == 200
    assert hearing.seen[0][MODEL] == "big", "the engine may read the headers too"
    counted = await route_counts(one)
    assert counted == {"big.non-streaming": 1}


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ([], MODEL),
        ([(MODEL, "")], MODEL),
        ([(MODEL, "big"), (STREAM, "yes")], STREAM),
        ([(MODEL, "big"), (STREAM, "1")], STREAM),
        ([(MODEL, "big"), (STREAM, "true,false")], STREAM),
        ([(MODEL, "big"), (STREAM, "no"), (STREAM, "false")], STREAM),
        ([(MODEL, "big"), (MAX_TOKENS, "many")], MAX_TOKENS),
        ([(MODEL, "big"), (MAX_TOKENS, "-1")], MAX_TOKENS),
        ([(MODEL, "big"), (MAX_TOKENS, "1.5")], MAX_TOKENS),
        ([(MODEL, "big"), (MAX_TOKENS, "1e3")], MAX_TOKENS),
        ([(MODEL, "big"), (MAX_TOKENS, "9" * 10)], MAX_TOKENS),
        ([(MODEL, "big"), (MAX_TOKENS, "9" * 400)], MAX_TOKENS),
        ([(MODEL, "big"), (MAX_TOKENS, "5,6")], MAX_TOKENS),
        ([(MODEL, "big"), (MAX_TOKENS, "many"), (MAX_TOKENS, "6")], MAX_TOKENS),
    ],
)
@pytest.mark.parametrize("shed", [False, True])
async def test_missing_or_malformed_header_is_refused_by_name(rig, hearing, headers, named, shed):
    level = DegradationState(level=3, reason="", since_s=0, max_tokens=512)
    policy = pool("p", hearing) + route("big", "p", match="{model: big}") + route("r", "p", match="{model: r}")
    one = await rig(by_headers(policy), pools={"p": {"degradation": level}} if shed else None)
    status, reason, message = await answer(one, headers)
    missing = not any(value for name, value in headers if name == named)
    assert (status, reason) == (400, "missing-header" if missing else "invalid-header")
    assert named in message
    assert not hearing.seen
    # A body above 1 MiB that is still arriving changes nothing.
    assert (await answer(one, headers, b" " * 3_000_000))[1:] == (reason, message)


@pytest.mark.parametrize(
    ("headers", "route_name"),
    [
        ({MODEL: "big", STREAM: ""}, "big.non-streaming"),
        ({MODEL: "big", STREAM: "False"}, "big.non-streaming"),
        ({MODEL: "big", STREAM: "TRUE"}, "big.streaming"),
        ({MODEL: "big", MAX_TOKENS: ""}, "big.non-streaming"),
        ({MODEL: "big", MAX_TOKENS: "0"}, "big.non-streaming"),
        ({MODEL: "big", MAX_TOKENS: "9" * 9}, "big.non-streaming"),
        ({MODEL: "x" * 4_000}, "rest.non-streaming"),
        ({MODEL: "big,small"}, "rest.non-streaming"),
        ({}, "rest.non-streaming"),
    ],
)
async def test_unusual_but_clear_headers_are_served(rig, hearing, headers, route_name):
    one = await rig(by_headers(three_routes(hearing)))
    assert (await answer(one, headers))[0] == 200
    assert await route_counts(one) == {route_name: 1}


async def test_first_of_repeated_headers_counts(rig, hearing):
    shed = {"p": {"degradation": DegradationState(level=3, reason="", since_s=0, max_tokens=512)}}
    one = await rig(by_headers(three_routes(hearing)), pools=shed)
    repeated = [(MODEL, "big"), (MODEL, "small"), (STREAM, "false"), (STREAM, "true"), (MAX_TOKENS, "5")]
    assert (await answer(one, [*repeated, (MAX_TOKENS, "600")]))[0] == 200
    assert await route_counts(one) == {"big.non-streaming": 1}
    assert hearing.seen[0][MODEL] == "big", "the only one that engines get"
    other = [(MODEL, "small"), (MODEL, "big"), (STREAM, "true"), (STREAM, "false"), (MAX_TOKENS, "600")]
    assert (await answer(one, [*other, (MAX_TOKENS, "5")]))[:2] == (503, "too-long-now")
    assert (await answer(one, other[:-1]))[0] == 200
    assert (await route_counts(one))["streams.streaming"] == 1


async def test_only_paths_that_need_the_model_ask_for_it(rig, hearing):
    policy = pool("p", hearing) + route("big", "p", match="{model: big, pathPrefix: /v1}")
    one = await rig(by_headers(policy))
    assert (await answer(one, {}))[:2] == (400, "missing-header")
    assert (await answer(one, {MODEL: "unknown"}))[:2] == (404, "no-route")
    async with one.client.post(f"{one.url}/elsewhere") as found:
        assert (found.status, found.headers["x-switchgear-reason"]) == (404, "no-route")


async def test_header_counts_where_the_body_differs(rig, hearing):
    one = await rig(by_headers(three_routes(hearing)))
    body = json.dumps({"model": "small", "stream": True}).encode()
    assert (await answer(one, {MODEL: "big"}, body))[0] == 200
    assert await route_counts(one) == {"big.non-streaming": 1}


async def test_body_source_ignores_the_headers(rig, hearing):
    one = await rig(three_routes(hearing))
    body = json.dumps({"model": "small", "stream": True}).encode()
    assert (await answer(one, {MODEL: "big", STREAM: "maybe", MAX_TOKENS: "many"}, body))[0] == 200
    assert await route_counts(one) == {"streams.streaming": 1}


async def test_body_above_the_limit_is_sent_on(rig, engine):
    heard = await engine(max_model_len=10_000_000)
    policy = pool("p", heard) + route("r", "p", match="{model: fake-model}", spec="maxBodyBytes: 2000000")
    one = await rig(by_headers(policy))
    found = await one.complete(prompt="x" * 2_100_000, headers={MODEL: "fake-model"})
    assert found.status == 200


async def test_fallback_of_another_model_gets_its_own_name(rig, recorder):
    main, small = await recorder(), await recorder()
    one = await rig(by_headers(policy_with_fallback(main, small, match="{model: big}")))
    await one.set_runtime(TO_THE_FALLBACK)
    sent = b'{"prompt":"\\"model\\":\\"big\\"","model":"big"}'
    assert (await answer(one, {MODEL: "big"}, sent))[0] == 200
    assert small.bodies == [sent.replace(b'"model":"big"}', b'"model":"small"}')]
    assert (await answer(one, {MODEL: "big"}, b'{"prompt":"x"}'))[0] == 200
    assert small.bodies[1] == b'{"prompt":"x"}'
    wide = json.dumps({"model": "big"}).encode("utf-16")
    assert (await answer(one, {MODEL: "big"}, wide))[:2] == (400, "body-encoding")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
async def test_body_that_is_not_utf_8_is_refused(rig, hearing, encoding):
    one = await rig(three_routes(hearing))
    body = json.dumps({"model": "big", "stream": True}).encode(encoding)
    status, reason, message = await answer(one, {}, body)
    assert (status, reason) == (400, "body-encoding")
    assert "UTF-8" in message
    assert not hearing.seen


async def test_operator_log_has_the_stated_model(rig, hearing):
    policy = by_headers(three_routes(hearing)).replace("port: 8080", "port: 8080, accessLog: stdout")
    one = await rig(policy)
    await answer(one, {MODEL: "small"})

    def written() -> Any:
        lines = [line for line in one.envoy.log_path.read_text().splitlines() if line.startswith("{")]
        return json.loads(lines[0]) if lines else None

    line = await eventually(written, "a line of the log", LIMIT_S)
    assert (line["model"], line["route"]) == ("small", "small/non-streaming")


async def test_streams_are_served_while_other_requests_wait(rig, engine):
    heard = await engine(model="fake-model")
    one = await rig(by_headers(pool("p", heard) + route("r", "p", match="{model: fake-model}")))
    asked = [
        one.complete(stream=each, headers=stated({"model": "fake-model", "stream": each}))
        for each in (True, False)
    ]
    answers = await asyncio.gather(*asked)
    assert [each.status for each in answers] == [200, 200]
    assert [each.content_type for each in answers] == ["text/event-stream", "application/json"]
    assert await route_counts(one) == {"r.streaming": 1, "r.non-streaming": 1}
