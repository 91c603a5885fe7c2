"""Envoy's guide for edge proxies, point by point, at a real Envoy: what a bad or careless request gets."""

import asyncio
import struct
from collections.abc import AsyncIterator

import pytest

from tests.with_envoy.translate.recording_engine import Hearing
from tests.with_envoy.translate.test_route_match_per_try_and_hedging import pool, route
from xds_server.translate import listeners

pytestmark = pytest.mark.envoy

LIMIT_S = 60.0
BODY = b'{"model":"fake-model"}'
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
SETTINGS, WINDOW_UPDATE = 4, 8
HTTP2_DEFAULT_WINDOW = 65535


@pytest.fixture
async def hearing() -> AsyncIterator[Hearing]:
    one = Hearing()
    runner = await one.listen()
    yield one
    await runner.cleanup()


async def _exchange(url: str, sent: bytes, *, until: bytes = b"\r\n\r\n") -> bytes:
    """What Envoy answers to these bytes, up to ``until`` or the end of the connection."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(sent)
        async with asyncio.timeout(LIMIT_S):
            return await reader.readuntil(until)
    except asyncio.IncompleteReadError as ended:
        return ended.partial
    except ConnectionResetError:
        return b""
    finally:
        writer.transport.abort()


def _post(path: str = "/v1/completions", *headers: bytes) -> bytes:
    lines = [
        b"POST %s HTTP/1.1" % path.encode(),
        b"host: x",
        b"content-type: application/json",
        b"content-length: %d" % len(BODY),
        *headers,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + BODY


async def test_header_with_underscore_does_not_reach_engines(rig, hearing):
    one = await rig(pool("p", hearing) + route("r", "p"))
    answer = await _exchange(one.url, _post("/v1/completions", b"x_forwarded_for: 10.0.0.1", b"session-id: kept"))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert "x_forwarded_for" not in hearing.seen[-1]
    assert hearing.seen[-1]["session-id"] == "kept"


@pytest.mark.parametrize(
    "path",
    [
        "/x/../v1/completions",
        "//v1///completions",
        "/v1%2Fcompletions",
        "/%76%31/completions",
        "/v1%5ccompletions",
    ],
)
async def test_route_and_engine_see_the_same_path(rig, hearing, path):
    one = await rig(pool("p", hearing) + route("r", "p", match="{pathPrefix: /v1/}"))
    answer = await _exchange(one.url, _post(path))
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    assert hearing.paths == ["/v1/completions"]


@pytest.mark.parametrize(
    ("sent", "status", "reason"),
    [
        (_post("/v1/%00completions"), b"400", b"bad-request"),
        (_post("/v1/completions", b"transfer-encoding: chunked"), b"400", b"bad-request"),
        (_post("/v1/completions", b"content-length: 3"), b"400", b"bad-request"),
        (_post("/v1/completions", b"x: a\0b"), b"400", b"bad-request"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400", b"bad-request"),
        (_post("/v1/completions", b"x: " + b"a" * 70_000), b"431", b"headers-too-large"),
    ],
)
async def test_malformed_request_is_refused_with_reason(rig, hearing, sent, status, reason):
    one = await rig(pool("p", hearing) + route("r", "p"))
    answer = await _exchange(one.url, sent)
    assert answer.startswith(b"HTTP/1.1 " + status), answer
    assert b"x-switchgear-reason: " + reason + b"\r\n" in answer
    assert hearing.seen == []


async def test_headers_that_do_not_arrive_are_refused(rig, hearing, monkeypatch):
    monkeypatch.setattr(listeners, "REQUEST_HEADERS_TIMEOUT_S", 0.5)
    one = await rig(pool("p", hearing) + route("r", "p"))
    answer = await _exchange(one.url, b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"x-switchgear-reason: receive-timeout\r\n" in answer


async def test_engine_sees_the_address_that_envoy_saw(rig, hearing):
    one = await rig(pool("p", hearing) + route("r", "p"))
    await _exchange(one.url, _post("/v1/completions", b"x-forwarded-for: 10.0.0.1"))
    added = hearing.seen[-1]["x-forwarded-for"].removeprefix("10.0.0.1,")
    assert added.count(".") == 3
    assert "10.0.0.1" not in (added, hearing.seen[-1]["x-envoy-external-address"])


async def test_answer_does_not_name_the_engines_server(rig, hearing):
    hearing.says = {"server": "uvicorn"}
    one = await rig(pool("p", hearing) + route("r", "p"))
    answer = await _exchange(one.url, _post())
    assert b"\r\nserver: switchgear\r\n" in answer
    assert b"uvicorn" not in answer


async def test_http2_connection_has_the_limits_of_the_guide(rig, hearing):
    one = await rig(pool("p", hearing) + route("r", "p"))
    host, _, port = one.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(HTTP2_PREFACE)
    settings: dict[int, int] = {}
    window = HTTP2_DEFAULT_WINDOW
    async with asyncio.timeout(LIMIT_S):
        while not settings or window == HTTP2_DEFAULT_WINDOW:
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3]))
            if head[3] == SETTINGS and payload:
                settings = dict(struct.iter_unpack(">HI", payload))
            elif head[3] == WINDOW_UPDATE:
                window += int.from_bytes(payload)
    writer.transport.abort()
    assert settings[3] == 100
    assert settings[4] == 256 * 1024
    assert window == 1024 * 1024


async def test_connection_above_the_limit_is_closed(rig, hearing):
    one = await rig(pool("p", hearing) + route("r", "p"), overload={"max_connections": 2})
    host, _, port = one.url.removeprefix("http://").partition(":")
    opened = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
    try:

        async def counted() -> bool:
            return bool((await one.envoy.stats("http."))["http.port-8080.downstream_cx_active"] == 2)

        await one.envoy.wait_for(counted, "holding two connections")
        assert await _exchange(one.url, _post()) == b""
    finally:
        for _, writer in opened:
            writer.transport.abort()
