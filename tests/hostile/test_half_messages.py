"""Messages that begin and never end: bounded by size and time, by connection, host and the memory guard."""

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import AsyncIterator

import pytest

from benchmarks.soak.half_messages import SCRIPT
from engine.allocator import release_memory
from tests.hostile.conftest import LIMIT_S, connected
from xds_server.auth.memory_guard import AT_ONCE, MemoryGuard, own_memory_bytes
from xds_server.auth.reached_limits import ReachedLimits
from xds_server.auth.stream_limits import StreamLimits
from xds_server.auth.tcp_connections import TcpConnection, reset, tcp_connections
from xds_server.auth.unfinished_messages import MIN_TIMED_BYTES, UnfinishedConnection, UnfinishedMessages
from xds_server.model.snapshot import snapshot
from xds_server.publish import Publisher
from xds_server.publish.ads_service import MAX_REQUEST_BYTES, TICK_S
from xds_server.publish.grpc_ads import GrpcAdsServer
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
async def half_messages(address: str, size: int, *node: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A hostile process on this address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *(SCRIPT, address, str(CONNECTIONS), str(STREAMS), str(size), *node),
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
    unlimited = UnfinishedMessages(max_bytes_of_host=2**40, max_bytes=2**40)
    guard = MemoryGuard(limit_bytes=limit, unfinished=unlimited, release=release_memory)
    async with plane(guard) as (address, flaws), connected(address, "gw") as honest:
        await honest.subscribe()
        assert isinstance(await honest.call.read(), bytes)
        async with half_messages(address, MAX_REQUEST_BYTES) as hostile:
            peak, sent, ended = await peak_of(hostile)
        assert not honest.call.done(), "streams without a message end first"
    assert flaws.count(StreamErrorKind.MEMORY) == ended >= AT_ONCE, (flaws, peak // MIB, sent // MIB)
    # What arrives within two checks is beyond the limit.
    assert peak < limit + 2 * AT_ONCE * MAX_REQUEST_BYTES, (peak // MIB, limit // MIB, sent // MIB)


@pytest.mark.parametrize("node", [(), ("enemy",)], ids=["as first messages", "after a complete one"])
async def test_half_messages_are_bounded_without_a_memory_limit(node: tuple[str, ...]) -> None:
    unfinished = UnfinishedMessages(max_bytes_of_host=16 * MIB)
    reached = ReachedLimits()
    guard = MemoryGuard(
        limit_bytes=1024 * 1024 * MIB, unfinished=unfinished, release=release_memory, reached=reached
    )
    base = own_memory_bytes()
    async with plane(guard) as (address, flaws), connected(address, "gw") as honest:
        await honest.subscribe()
        assert isinstance(await honest.call.read(), bytes)
        async with half_messages(address, MAX_REQUEST_BYTES, *node) as hostile:
            peak, sent, ended = await peak_of(hostile)
        assert not honest.call.done(), "its connection has no unfinished messages"
    # Half of the limit may be left, and many streams may not have begun: those wait for the loop.
    assert StreamErrorKind.MEMORY in flaws, ended
    assert [(one.code, one.peers) for one in reached.current()] == [("SG284", ("127.0.0.1",))]
    assert peak - base < STREAMS * CONNECTIONS * MAX_REQUEST_BYTES / 2, ((peak - base) // MIB, sent // MIB)


KNOWN = 17 * 1024
"""Bytes of a connection with one stream besides messages."""


def ended(found: list[UnfinishedConnection]) -> list[tuple[str, int]]:
    return [(one.connection, one.unfinished_bytes) for one in found]


def test_unfinished_bytes_are_those_received_and_not_read() -> None:
    messages = UnfinishedMessages(max_bytes_of_host=1000)
    for connection, host in (("one", "a"), ("two", "a"), ("three", "b")):
        messages.open(connection, host)
    stream = TcpConnection(received=KNOWN, sent=0)
    assert messages.excess(dict.fromkeys(("one", "two", "three"), stream), 0.0) == []
    messages.read("one", 50_000)
    received = {
        name: TcpConnection(KNOWN + size, 0) for name, size in (("one", 50_476), ("two", 776), ("three", 976))
    }
    assert messages.excess(received, 0.0) == [], "each host has less than its limit"
    received["two"] = TcpConnection(KNOWN + 1_076, 0)
    assert ended(messages.excess(received, 0.0)) == [("two", 1_076)]
    assert messages.excess(received, 0.0) == [], "its streams have ended"


def test_unfinished_bytes_of_all_hosts_are_reduced_from_the_largest_connection() -> None:
    messages = UnfinishedMessages(max_bytes_of_host=10_000, max_bytes=12_000)
    received = {}
    for number, size in enumerate((5_000, 1_000, 7_000)):
        messages.open(str(number), f"host {number}")
        received[str(number)] = TcpConnection(KNOWN + size, 0)
    assert [one.connection for one in messages.excess(received, 0.0)] == ["2"]


def test_connections_whose_streams_wait_for_the_event_loop_count_by_their_address() -> None:
    messages = UnfinishedMessages(max_bytes_of_host=100_000)
    received = {f"ipv4:10.0.0.7:{port}": TcpConnection(60_000, 0) for port in (1, 2, 3)}
    found = messages.excess(received, 0.0)
    assert len(found) == 2
    assert {one.host for one in found} == {"10.0.0.7"}


def test_begun_message_has_a_time_limit() -> None:
    messages = UnfinishedMessages(message_s=30.0)
    for name in ("late", "short", "busy"):
        messages.open(name, "host")
    received = {
        "late": TcpConnection(KNOWN + 2 * MIN_TIMED_BYTES, 0),
        "short": TcpConnection(KNOWN + MIN_TIMED_BYTES // 2, 0),
        "busy": TcpConnection(KNOWN + 2 * MIN_TIMED_BYTES, 0),
    }
    for now_s in (0.0, 10.0, 20.0, 30.0):
        assert messages.excess(received, now_s) == []
        messages.read("busy", MIN_TIMED_BYTES)
        received["busy"] = TcpConnection(received["busy"].received + 66_600, 0)
    (late,) = messages.excess(received, 40.0)
    assert (late.connection, late.flaw) == ("late", StreamErrorKind.SILENT)


def test_no_time_limit_runs_while_the_server_stands_still() -> None:
    messages = UnfinishedMessages(message_s=30.0)
    messages.open("peer", "host")
    received = {"peer": TcpConnection(KNOWN + 2 * MIN_TIMED_BYTES, 0)}
    assert messages.excess(received, 0.0) == []
    assert messages.excess(received, 40.0, is_reading=False) == []
    assert messages.excess(received, 50.0) == []
    assert messages.excess(received, 79.0) == []
    assert len(messages.excess(received, 81.0)) == 1


def test_months_of_honest_traffic_leave_nothing_unfinished() -> None:
    messages = UnfinishedMessages(max_bytes_of_host=10_000)
    messages.open("peer", "host")
    assert messages.excess({"peer": TcpConnection(900, 0)}, 0.0) == []
    day_s, message = 86_400.0, 20_000
    received = 900
    for day in range(1, 90):
        for _ in range(1_000):
            messages.read("peer", message)
        # Prefix, two frames and two TLS records each; a ping with its TLS record each 15 s.
        received += 1_000 * (message + 5 + 2 * 9 + 2 * 22) + int(day_s / 15) * (17 + 22)
        assert messages.excess({"peer": TcpConnection(received, 0)}, day * day_s) == []


def test_closed_connections_are_forgotten() -> None:
    messages = UnfinishedMessages(max_bytes_of_host=1000)
    messages.open("peer", "host")
    messages.read("peer", 1_000_000)
    messages.close("peer")
    assert messages.excess({}, 0.0) == []
    assert messages.hosts() == {}
    messages.open("peer", "host")
    assert ended(messages.excess({"peer": TcpConnection(1_000_000, 0)}, 1.0)) == [("peer", 1_000_000 - KNOWN)]


@pytest.mark.parametrize(
    ("family", "listen", "call", "prefix"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1", "ipv4:127.0.0.1:"),
        (socket.AF_INET6, "::1", "::1", "ipv6:[::1]:"),
        (socket.AF_INET6, "::", "127.0.0.1", "ipv4:127.0.0.1:"),
    ],
)
def test_connections_are_read_and_reset_by_peer(
    family: socket.AddressFamily, listen: str, call: str, prefix: str
) -> None:
    with socket.create_server((listen, 0), family=family, dualstack_ipv6=listen == "::") as server:
        port = server.getsockname()[1]
        with socket.create_connection((call, port)) as client:
            accepted, _ = server.accept()
            with accepted:
                client.sendall(b"x" * 5_000)
                accepted.recv(1)
                name = f"{prefix}{client.getsockname()[1]}"
                ((found, connection),) = tcp_connections(port).items()
                assert (found, connection.received) == (name, 5_000)
                assert accepted.fileno() == connection.descriptor, "borrowed, not closed"
                assert not reset(connection.descriptor, port, f"{name}1"), "another connection"
                accepted.sendall(b"still open")
                assert client.recv(100) == b"still open"
                assert reset(connection.descriptor, port, name)
                with pytest.raises(ConnectionResetError):
                    client.recv(100)
                assert tcp_connections(port) == {}


def guard_of(sizes: list[int], **settings: object) -> MemoryGuard:
    return MemoryGuard(memory_bytes=lambda: sizes[-1], limit_bytes=1000, **settings)  # type: ignore[arg-type]


def test_memory_guard_ends_unproven_streams_of_the_largest_host_first() -> None:
    sizes: list[int] = [100]
    shed: list[tuple[str, int]] = []
    guard = guard_of(sizes)
    for host, proven, count in (("a", True, 90), ("b", False, 70), ("c", False, 3)):
        for number in range(count):
            guard.enter(host, proven=proven, end=lambda _, host=host, number=number: shed.append((host, number)))
    guard.check(0.0)
    assert shed == []
    sizes.append(900)
    guard.check(0.5)
    assert shed == [("b", number) for number in range(69, 69 - AT_ONCE, -1)], "the newest first"
    guard.check(0.9)
    assert len(shed) == AT_ONCE, "memory is released first"
    guard.check(1.6)
    assert sorted(shed[AT_ONCE:]) == [*(("b", number) for number in range(6)), ("c", 0), ("c", 1), ("c", 2)]
    guard.check(2.7)
    assert {host for host, _ in shed[AT_ONCE + 9 :]} == {"a"}, "proven peers last"


@pytest.mark.parametrize(
    ("sizes", "ends"), [([600, 640], False), ([400, 600], True), ([700, 840], False), ([700, 860], True)]
)
def test_memory_guard_tolerates_a_large_fleet_that_grows_slowly(sizes: list[int], ends: bool) -> None:
    seen, ended, shed = [sizes[0]], [], []
    guard = guard_of(seen, on_shed=shed.append)
    guard.enter("h", proven=False, end=lambda _: ended.append(1))
    guard.check(0.0)
    seen.append(sizes[1])
    guard.check(9.0)
    assert bool(ended) is ends
    assert shed == [1] * ends


def test_free_memory_returns_to_the_system_when_memory_has_grown() -> None:
    sizes, released = [100 * MIB], []
    guard = MemoryGuard(
        memory_bytes=lambda: sizes[-1], limit_bytes=2**40, release=lambda: released.append(sizes[-1])
    )
    guard.check(0.0)
    released.clear()
    for now_s in range(1, 100):
        guard.check(float(now_s))
    assert released == [], "memory that does not grow is left alone"
    sizes.append(115 * MIB)
    guard.check(100.0)
    assert released == []
    sizes.append(116 * MIB)
    guard.check(101.0)
    assert released == [116 * MIB]
    sizes.append(200 * MIB)
    guard.check(102.0)
    assert released == [116 * MIB], "not again at once"
    guard.check(111.0)
    assert released == [116 * MIB, 200 * MIB]
    sizes += [50 * MIB]
    guard.check(130.0)
    sizes += [66 * MIB]
    guard.check(131.0)
    assert released[2:] == [66 * MIB], "counted from the least since"


def test_memory_guard_forgets_streams_that_left() -> None:
    guard = guard_of([950])
    ticket = guard.enter("h", proven=False, end=lambda _: pytest.fail("it has left"))
    guard.leave(ticket)
    guard.check(0.0)
