"""64 bodies of 16 MB at once, at a real Envoy with a memory limit: refusals with a reason, memory below it."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.with_envoy.translate.test_route_match_per_try_and_hedging import pool, route

pytestmark = pytest.mark.envoy

BODIES = 64
BODY_BYTES = 16_000_000
FLOODS = 2
NEIGHBOURS = 24
"""Some hundred requests of theirs in both floods, so that a ratio among them is not chance."""
MEMORY_BYTES = 1024**3
"""The memory limit of gateways in the chart."""

LIMIT_S = 120.0
PIECE = b"x" * 65536
OK = ("200", "")
REFUSED = ("503", "proxy-overload")
Answer = tuple[str, str]


class Discarding:
    """An engine that reads any body without keeping it, and answers after ``wait_s``."""

    def __init__(self) -> None:
        self.port = 0
        self.wait_s = 0.5
        self.open: set[asyncio.StreamWriter] = set()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                left = int(lengths[0].partition(b":")[2])
                while left:
                    left -= len(await reader.readexactly(min(left, 1 << 18)))
                await asyncio.sleep(self.wait_s)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open.remove(writer)
            writer.transport.abort()


@pytest.fixture
async def discarding() -> AsyncIterator[Discarding]:
    one = Discarding()
    server = await asyncio.start_server(one.answer, "127.0.0.1", 0, limit=1 << 20)
    one.port = server.sockets[0].getsockname()[1]
    yield one
    server.close()
    for writer in tuple(one.open):
        writer.transport.abort()
    await eventually(lambda: not one.open, "closed", LIMIT_S)


async def _send(url: str, size: int) -> Answer:
    """Status and reason of the answer to a completion request of this size."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))

    async def upload() -> None:
        start = b'{"model":"fake-model","prompt":"'
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        writer.write(head + b"content-length: %d\r\n\r\n" % size + start)
        left = size - len(start) - 2
        while left:
            piece = PIECE[:left]
            writer.write(piece)
            left -= len(piece)
            await writer.drain()
        writer.write(b'"}')

    uploading = asyncio.create_task(upload())
    try:
        async with asyncio.timeout(LIMIT_S):
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    finally:
        uploading.cancel()
        # Envoy closes the connection of a refused body.
        await asyncio.gather(uploading, return_exceptions=True)
        writer.transport.abort()
    headers = dict(line.split(": ", 1) for line in lines[1:] if line)
    return lines[0].split()[1], headers.get("x-switchgear-reason", "")


def _peak_bytes(pid: int) -> int:
    """The largest resident memory that this process has had."""
    with Path(f"/proc/{pid}/status").open(encoding="ascii") as status:
        (line,) = [line for line in status if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("cuts", [True, False])
async def test_flood_of_large_bodies_stays_below_memory_limit(rig, discarding, cuts):
    one = await rig(pool("p", discarding) + route("r", "p"), cuts=cuts, overload={"memory_bytes": MEMORY_BYTES})
    small: list[Answer] = []

    async def neighbour() -> None:
        while True:
            answer = await _send(one.url, 300)
            small.append(answer)
            if answer == REFUSED:
                # As long as an answer takes, or who is refused counts more often than who is served.
                await asyncio.sleep(discarding.wait_s)

    neighbours = [asyncio.create_task(neighbour()) for _ in range(NEIGHBOURS)]
    large: Counter[Answer] = Counter()
    for _ in range(FLOODS):
        flood = Counter(await asyncio.gather(*(_send(one.url, BODY_BYTES) for _ in range(BODIES))))
        assert flood[OK] >= 8, "the memory holds as many"
        large += flood
    for task in neighbours:
        task.cancel()
    await asyncio.gather(*neighbours, return_exceptions=True)
    assert large.keys() == {OK, REFUSED}
    assert _peak_bytes(one.envoy.process.pid) < MEMORY_BYTES
    counted = Counter(small)
    assert counted.keys() <= {OK, REFUSED}
    assert counted[OK] > 4 * counted[REFUSED], "neighbours are refused last"

    since = time.monotonic()
    assert {await _send(one.url, size) for size in (300, BODY_BYTES, 300, BODY_BYTES)} == {OK}
    assert time.monotonic() - since < LIMIT_S


@pytest.mark.parametrize(("size", "answer"), [(16 * 1024**2, OK), (17 * 1024**2, ("413", "body-too-large"))])
async def test_body_above_the_limit_is_refused_with_reason(rig, discarding, size, answer):
    one = await rig(pool("p", discarding) + route("r", "p"))
    assert await _send(one.url, size) == answer
