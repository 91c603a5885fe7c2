"""HTTP/2 floods at a real Envoy with our listener: neighbours are served, memory stays, the flooder is cut off.

A flooder sends frames that cost it little and Envoy much, without end. Sources: CVE-2023-44487 (rapid reset),
CVE-2019-9512 (ping), CVE-2019-9515 (settings), CVE-2019-9518 (empty frames), CVE-2024-30255 (continuation).
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import eventually
from tests.with_envoy.translate.recording_engine import Hearing
from tests.with_envoy.translate.test_route_match_per_try_and_hedging import pool, route

pytestmark = pytest.mark.envoy

LIMIT_S = 60.0
FLOODERS = 4
MOST_BYTES = 32_000_000
"""What a flooder sends at most; more than a hundred times what it takes to be cut off."""

MOST_MEMORY_BYTES = 64 * 1024**2
"""How much the resident memory of Envoy may grow."""

NEIGHBOUR_ANSWERS = 20
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4
CANCEL = (8).to_bytes(4)


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """A header field without indexing. Source: RFC 7541, 6.2.2."""
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS)
REQUEST = b"\x83\x86" + _literal(b":path", b"/v1/completions") + _literal(b":authority", b"x")
"""A POST. Source: RFC 7541, Appendix A: 3 is the method, 6 the scheme http."""


def _streams(flags: int, then: Callable[[int], bytes] = lambda _: b"") -> Iterator[bytes]:
    for stream in itertools.count(1, 2):
        yield frame(HEADERS, END_HEADERS | flags, stream, REQUEST) + then(stream)


def _after(first: bytes, again: bytes) -> Iterator[bytes]:
    yield first
    yield from itertools.repeat(again)


ONE_REQUEST = frame(HEADERS, END_HEADERS, 1, REQUEST)


@dataclass(frozen=True, kw_only=True)
class Flood:
    """Frames without end; ``reads``: whether the flooder reads what Envoy answers."""

    frames: Callable[[], Iterator[bytes]]
    reads: bool = True


FLOODS = {
    "rapid-reset": Flood(frames=lambda: _streams(END_STREAM, lambda stream: frame(RST_STREAM, 0, stream, CANCEL))),
    "rapid-reset-before-the-body": Flood(
        frames=lambda: _streams(0, lambda stream: frame(RST_STREAM, 0, stream, CANCEL))
    ),
    "many-streams": Flood(frames=lambda: _streams(0)),
    "many-streams-unread": Flood(frames=lambda: _streams(0), reads=False),
    "ping": Flood(frames=lambda: itertools.repeat(frame(PING, 0, 0, bytes(8))), reads=False),
    "settings": Flood(frames=lambda: itertools.repeat(frame(SETTINGS)), reads=False),
    "empty-data": Flood(frames=lambda: _after(ONE_REQUEST, frame(DATA, 0, 1))),
    "window-update": Flood(frames=lambda: _after(ONE_REQUEST, frame(WINDOW_UPDATE, 0, 0, (1).to_bytes(4)))),
    "priority": Flood(frames=lambda: _after(ONE_REQUEST, frame(PRIORITY, 0, 1, bytes(5)))),
    "continuation": Flood(
        frames=lambda: _after(frame(HEADERS, 0, 1, REQUEST), frame(CONTINUATION, 0, 1, _literal(b"a", b"b")))
    ),
}


async def _flood(url: str, flood: Flood) -> int:
    """Bytes that Envoy let one connection send before it closed it."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**16 if flood.reads else 2**10)
    frames, sent = flood.frames(), len(PREFACE)

    async def read() -> None:
        while flood.reads and await reader.read(2**16):
            pass

    reading = asyncio.create_task(read())
    try:
        writer.write(PREFACE)
        async with asyncio.timeout(LIMIT_S):
            while sent < MOST_BYTES:
                burst = b"".join(itertools.islice(frames, 100))
                writer.write(burst)
                await writer.drain()
                sent += len(burst)
                await asyncio.sleep(0)  # the neighbours' turn
    except (ConnectionError, TimeoutError):
        pass
    finally:
        writer.transport.abort()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    return sent


def _resident_bytes(pid: int) -> int:
    with Path(f"/proc/{pid}/status").open(encoding="ascii") as status:
        (line,) = [line for line in status if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


@pytest.fixture
async def hearing() -> AsyncIterator[Hearing]:
    one = Hearing()
    runner = await one.listen()
    yield one
    await runner.cleanup()


@pytest.mark.parametrize("name", FLOODS)
async def test_flooder_is_cut_off_and_neighbours_are_served(rig: Any, hearing: Hearing, name: str) -> None:
    one = await rig(pool("p", hearing, spec="slotsPerEngine: 1000") + route("r", "p"))
    assert (await one.complete()).status == 200
    before = _resident_bytes(one.envoy.process.pid)
    answers: list[int] = []

    async def neighbour() -> None:
        while True:
            answers.append((await one.complete()).status)

    neighbours = [asyncio.create_task(neighbour()) for _ in range(2)]
    sent = await asyncio.gather(*(_flood(one.url, FLOODS[name]) for _ in range(FLOODERS)))
    during = len(answers)
    await eventually(lambda: len(answers) >= during + NEIGHBOUR_ANSWERS, "neighbours are served", LIMIT_S)
    for task in neighbours:
        task.cancel()
    await asyncio.gather(*neighbours, return_exceptions=True)
    assert max(sent) < MOST_BYTES, "each flooder is cut off"
    assert set(answers) == {200}
    assert _resident_bytes(one.envoy.process.pid) < before + MOST_MEMORY_BYTES

    async def none_left() -> bool:
        stats = await one.envoy.stats("")
        return bool(stats["http2.streams_active"] == 0 == stats["cluster.p.upstream_rq_active"])

    await one.envoy.wait_for(none_left, "without streams of flooders")
