"""Messages that begin and never end: bounded by their size, the streams of a connection, and the memory guard."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator

import pytest

from engine.allocator import release_memory
from tests.hostile.conftest import LIMIT_S, connected
from xds_server.auth.memory_guard import AT_ONCE, MemoryGuard, own_memory_bytes
from xds_server.auth.stream_limits import StreamLimits
from xds_server.model.snapshot import snapshot
from xds_server.publish import Publisher
from xds_server.publish.grpc_ads import MAX_REQUEST_BYTES, TICK_S, GrpcAdsServer
from xds_server.xds import StreamErrorKind

MIB = 1024 * 1024
STREAMS = 120
CONNECTIONS = 2


@contextlib.asynccontextmanager
async def plane(memory: MemoryGuard) -> AsyncIterator[tuple[str, list[StreamErrorKind]]]:
    flaws: list[StreamErrorKind] = []
    publisher = Publisher(view_of=lambda _: "v", snapshot_for=lambda _: snapshot(()))
    server = GrpcAdsServer(publisher, on_flaw=flaws.append, limits=StreamLimits(memory=memory))
    port = await server.start()
    ticking = asyncio.create_task(server.run())
    try:
        yield f"127.0.0.1:{port}", flaws
    finally:
        ticking.cancel()
        await asyncio.wait([ticking])
        await server.stop()


@contextlib.asynccontextmanager
async def half_messages(address: str, size: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A hostile process on this address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "benchmarks.soak.half_messages", address, str(CONNECTIONS), str(STREAMS), str(size)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def peak_of(process: asyncio.subprocess.Process) -> tuple[int, int, int]:
    """Highest memory of this process until the hostile one is done; what that one sent, and the streams ended."""
    assert process.stdout is not None
    reading = asyncio.ensure_future(process.stdout.readline())
    peak = 0
    give_up_at = time.monotonic() + LIMIT_S
    while not reading.done():
        peak = max(peak, own_memory_bytes())
        assert time.monotonic() < give_up_at
        await asyncio.wait([reading], timeout=TICK_S / 10)
    sent, ended = map(int, reading.result().split())
    return peak, sent, ended


async def test_message_above_the_limit_is_refused_at_its_first_bytes() -> None:
    async with plane(MemoryGuard()) as (address, _):
        before = own_memory_bytes()
        async with half_messages(address, 4 * MIB) as hostile:
            peak, _, ended = await peak_of(hostile)
    assert ended == STREAMS * CONNECTIONS
    assert peak - before < STREAMS * CONNECTIONS * MIB


async def test_half_messages_end_their_streams_before_memory_runs_out() -> None:
    base = own_memory_bytes()
    limit = 2 * base
    guard = MemoryGuard(limit_bytes=limit, release=release_memory)
    async with plane(guard) as (address, flaws), connected(address, "gw") as honest:
        await honest.subscribe()
        assert isinstance(await honest.call.read(), bytes)
        async with half_messages(address, MAX_REQUEST_BYTES) as hostile:
            peak, sent, ended = await peak_of(hostile)
        assert not honest.call.done(), "streams without a message end first"
    assert flaws.count(StreamErrorKind.MEMORY) == ended >= AT_ONCE, (flaws, peak // MIB, sent // MIB)
    # What arrives within two checks is beyond the limit.
    assert peak < limit + 2 * AT_ONCE * MAX_REQUEST_BYTES, (peak // MIB, limit // MIB, sent // MIB)


def guard_of(sizes: list[int], **settings: object) -> MemoryGuard:
    return MemoryGuard(memory_bytes=lambda: sizes[-1], limit_bytes=1000, **settings)  # type: ignore[arg-type]


def test_memory_guard_ends_unproven_streams_of_the_largest_host_first() -> None:
    sizes, ended = [100], []
    guard = guard_of(sizes)
    for host, proven, count in (("a", True, 90), ("b", False, 70), ("c", False, 3)):
        for number in range(count):
            guard.enter(host, proven=proven, end=lambda host=host, number=number: ended.append((host, number)))
    guard.check(0.0)
    assert ended == []
    sizes.append(900)
    guard.check(0.5)
    assert ended == [("b", number) for number in range(69, 69 - AT_ONCE, -1)], "the newest first"
    guard.check(0.9)
    assert len(ended) == AT_ONCE, "memory is released first"
    guard.check(1.6)
    assert sorted(ended[AT_ONCE:]) == [*(("b", number) for number in range(6)), ("c", 0), ("c", 1), ("c", 2)]
    guard.check(2.7)
    assert {host for host, _ in ended[AT_ONCE + 9 :]} == {"a"}, "proven peers last"


@pytest.mark.parametrize(
    ("sizes", "ends"), [([600, 640], False), ([400, 600], True), ([700, 840], False), ([700, 860], True)]
)
def test_memory_guard_tolerates_a_large_fleet_that_grows_slowly(sizes: list[int], ends: bool) -> None:
    seen, ended, shed = [sizes[0]], [], []
    guard = guard_of(seen, on_shed=shed.append)
    guard.enter("h", proven=False, end=lambda: ended.append(1))
    guard.check(0.0)
    seen.append(sizes[1])
    guard.check(9.0)
    assert bool(ended) is ends
    assert shed == [1] * ends


def test_memory_guard_forgets_streams_that_left() -> None:
    guard = guard_of([950])
    ticket = guard.enter("h", proven=False, end=lambda: pytest.fail("it has left"))
    guard.leave(ticket)
    guard.leave(ticket)
    guard.check(0.0)
