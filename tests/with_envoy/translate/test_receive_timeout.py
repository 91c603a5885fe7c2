"""Requests that do not arrive, at a real Envoy: refused after the limit, and healthy long answers are not."""

import asyncio
import json
import time

import pytest

from tests.with_envoy.translate.test_route_match_per_try_and_hedging import pool, route

pytestmark = pytest.mark.envoy

LIMIT_S = 120.0


async def _answer_to(url: str, sent: bytes) -> bytes:
    """What comes back, up to the end of the connection, for bytes that nothing follows."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(sent)
        await writer.drain()
        async with asyncio.timeout(LIMIT_S):
            return await reader.read()
    finally:
        writer.close()


def _with_limit(limit: str) -> str:
    return route("r", "p").replace("port: 8080", f"port: 8080, receiveTimeout: {limit}")


HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b'content-length: 14000000\r\n\r\n{"model":"fake-model","prompt":"' + b"x" * 300_000,
        HEAD + b'transfer-encoding: chunked\r\n\r\n14\r\n{"model":"fake-model"\r\n',
        HEAD + b"content-length: 5\r\n\r\n",
    ],
)
async def test_stalled_body_is_refused_after_the_limit(rig, engine, sent):
    one = await rig(pool("p", await engine()) + _with_limit("1s"))
    answers = await asyncio.gather(*(_answer_to(one.url, sent) for _ in range(3)))
    for answer in answers:
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert b"x-switchgear-reason: receive-timeout" in head
        assert json.loads(body)["error"]["code"] == 408


@pytest.mark.slow
async def test_stalled_bodies_of_14_mib_end_by_default(rig, engine):
    one = await rig(pool("p", await engine()) + route("r", "p"))
    sent = HEAD + b'content-length: 14680064\r\n\r\n{"model":"fake-model","prompt":"' + b"x" * 300_000
    began_s = time.monotonic()
    answers = await asyncio.gather(*(_answer_to(one.url, sent) for _ in range(10)))
    assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in answers)
    assert time.monotonic() - began_s < 80


@pytest.mark.parametrize("stream", [False, True])
async def test_limit_of_the_body_does_not_end_long_answers(rig, engine, stream):
    one = await rig(pool("p", await engine(prefill_s=2.5)) + _with_limit("1s"))
    assert (await one.complete(stream=stream)).status == 200
