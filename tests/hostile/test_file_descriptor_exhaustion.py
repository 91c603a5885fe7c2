"""Connections without end: who is connected stays served, others are answered, and no engine goes out for it."""

import asyncio
import contextlib
import socket
import time
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.hostile.conftest import LIMIT_S, Neighbour, connected, started

DESCRIPTORS = 96

IDLE_S = 50.0
"""Less than the time after which a connection without streams is closed."""


async def test_out_of_file_descriptors_connected_proxies_stay_served(tmp_path: Path) -> None:
    limited = ("sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh")
    with started(tmp_path, *limited) as server:
        async with connected(server.xds, "neighbour") as peer:
            behaving = asyncio.create_task(peer.behave())
            await eventually(lambda: peer.acks, "the first ACK", LIMIT_S)
            neighbour = Neighbour(server=server, peer=peer)
            address = (server.xds.rpartition(":")[0], int(server.xds.rpartition(":")[2]))
            admin = (server.admin.rpartition(":")[0], int(server.admin.rpartition(":")[2]))
            with contextlib.ExitStack() as held:
                for number in range(2 * DESCRIPTORS):
                    with contextlib.suppress(OSError):
                        held.enter_context(socket.create_connection(admin if number % 2 else address, LIMIT_S))
                await eventually(lambda: "open files" in server.log(), "words about descriptors", LIMIT_S)
                assert not behaving.done()
            await neighbour.is_served()
            behaving.cancel()
            await asyncio.wait([behaving])


async def test_idle_connections_are_limited_to_reserve_file_descriptors(tmp_path: Path) -> None:
    limited = ("sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh")
    with started(tmp_path, *limited) as server, contextlib.ExitStack() as held:
        host, _, port = server.xds.rpartition(":")
        for _ in range(2 * DESCRIPTORS):
            with contextlib.suppress(OSError):
                held.enter_context(socket.create_connection((host, int(port)), LIMIT_S))
        assert await server.metric("process_open_fds") < DESCRIPTORS
        assert "open files" not in server.log()


@pytest.mark.parametrize("transport", ["grpc", "h2"])
async def test_one_host_does_not_take_all_connections(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWITCHGEAR_TRANSPORT", transport)
    limited = ("sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh")
    with started(tmp_path, *limited) as server, contextlib.ExitStack() as held:
        host, _, port = server.xds.rpartition(":")
        for _ in range(DESCRIPTORS):
            with contextlib.suppress(OSError):
                hostile = socket.create_connection((host, int(port)), LIMIT_S, ("127.0.0.2", 0))
                # Past the handshake, so that only its idleness would end it.
                held.enter_context(hostile).sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
        began_s = time.monotonic()

        async def is_served() -> bool:
            async with connected(server.xds, "late") as late:
                behaving = asyncio.create_task(late.behave())
                await asyncio.wait([behaving], timeout=1.0)  # it ends when the connection is refused
                behaving.cancel()
                await asyncio.wait([behaving])
                return late.acks > 0

        await eventually(is_served, "a proxy of another host is served", LIMIT_S)
        assert time.monotonic() - began_s < IDLE_S, "before idle connections end"
        assert "127.0.0.2" in server.log()
