"""A port under a connection flood: which connections it closes or keeps, and that it never spins."""

import asyncio
import contextlib
import errno
import gc
import socket
import ssl
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from engine import limited_listener
from engine.address import ListenAddress
from engine.limited_listener import LimitedListener, mark_authenticated
from engine.tls.certificate_files import RotatingKeyPair
from engine.tls.contexts import server_context
from engine.tls.paths import TlsFiles
from tests.engine.tls.certificate_fixtures import client_context
from tests.eventually import eventually
from tests.reference_cycles import left
from xds_server.auth.lab_ca import LAB_CERTIFICATES, make_certificates

LIMIT_S = 30.0


class Caller:
    """A client that says lines and hears them again."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def echo(self, line: bytes) -> bytes:
        self.writer.write(line + b"\n")
        return (await asyncio.wait_for(self.reader.readline(), LIMIT_S)).strip()

    async def is_closed(self) -> bool:
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(self.reader.read(), LIMIT_S) == b""
        return True


class Echo(asyncio.Protocol):
    """Says again what it hears; who says ``friend`` is let in."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if data == b"friend\n":
            mark_authenticated(self.transport)
        self.transport.write(data)


class Port:
    """An open port, who is connected to it, and how many were turned away."""

    def __init__(self) -> None:
        self.number = 0
        self.turned_away = 0
        self.callers: list[Caller] = []

    async def connect(self, at: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Caller:
        """A connection from this address."""
        name = None if tls is None else "localhost"
        both = await asyncio.open_connection(
            "127.0.0.1", self.number, local_addr=(at, 0), ssl=tls, server_hostname=name
        )
        self.callers.append(Caller(*both))
        return self.callers[-1]


@contextlib.asynccontextmanager
async def opened(most: int, most_of_host: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[Port]:
    port = Port()

    def count(host: str) -> None:
        assert host
        port.turned_away += 1

    made = LimitedListener(Echo, what="calls", most=most, most_of_host=most_of_host, turned_away=count, tls=tls)
    port.number = await made.open(ListenAddress("127.0.0.1", 0))
    try:
        yield port
    finally:
        made.close()
        for caller in port.callers:
            caller.writer.close()


async def test_closed_connections_leave_no_reference_cycles() -> None:
    """They would stay until all garbage is collected: a host that connects all the time fills memory with them."""
    loop = asyncio.get_running_loop()
    async with opened(most=100, most_of_host=100) as port:
        with left() as found:
            for _ in range(20):
                with socket.socket() as client:
                    client.setblocking(False)
                    await loop.sock_connect(client, ("127.0.0.1", port.number))
                    await loop.sock_sendall(client, b"hello")
                    assert await loop.sock_recv(client, 5) == b"hello"
            await eventually(lambda: not _connected(port.number), "all connections are closed", LIMIT_S)
    assert {kind: count for kind, count in found.items() if kind.startswith("asyncio.selector_events.")} == {}


def _connected(port: int) -> list[socket.socket]:
    """Open sockets of this process that were accepted at this port."""
    sockets = [one for one in gc.get_objects() if type(one) is socket.socket and one.fileno() >= 0]
    return [
        one
        for one in sockets
        if one.getsockname()[1:2] == (port,) and not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    ]


async def test_connection_limit_closes_flooding_and_idle_connections_first() -> None:
    async with opened(most=100, most_of_host=4) as port:
        friend = await port.connect()
        assert await friend.echo(b"friend") == b"friend"
        spoke = await port.connect()
        assert await spoke.echo(b"hello") == b"hello"
        elsewhere = await port.connect("127.0.0.2")
        silent = [await port.connect() for _ in range(5)]
        assert [await one.is_closed() for one in silent[:3]] == [True] * 3
        assert port.turned_away == 3
        late = await port.connect()
        assert await late.echo(b"late") == b"late", "who comes in the middle of it is answered"
        assert await spoke.echo(b"still") == b"still", "silent ones go first"
        for one in (friend, elsewhere):
            assert await one.echo(b"here") == b"here"


async def test_connection_limit_closes_the_oldest_half_request_before_a_fresh_silent_connection() -> None:
    async with opened(most=100, most_of_host=4) as port:
        halves = [await port.connect() for _ in range(4)]
        assert [await one.echo(b"half") for one in halves] == [b"half"] * 4
        fresh = await port.connect()
        another = await port.connect()
        assert [await one.is_closed() for one in halves[:2]] == [True] * 2
        assert await another.echo(b"another") == b"another"
        assert await fresh.echo(b"hello") == b"hello"


async def test_connection_limit_keeps_a_request_that_the_event_loop_has_not_read_yet() -> None:
    """A flood and a request arrive while the loop is busy: it accepts all of them before it reads any."""
    async with opened(most=100, most_of_host=4) as port:
        with contextlib.ExitStack() as stack:
            made = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port.number), LIMIT_S))
                for _ in range(7)
            ]
            made[0].sendall(b"request\n")
            assert await asyncio.to_thread(made[0].recv, 100) == b"request\n"
            assert port.turned_away == 3


async def test_connection_limit_closes_the_newest_if_all_are_active() -> None:
    async with opened(most=100, most_of_host=2) as port:
        friends = [await port.connect() for _ in range(2)]
        assert [await one.echo(b"friend") for one in friends] == [b"friend"] * 2
        with capture_logs() as logs:
            for _ in range(3):
                with contextlib.suppress(ConnectionError):  # at once, or a moment later
                    assert await (await port.connect()).is_closed()
            await eventually(lambda: port.turned_away == 3, "all three turned away", LIMIT_S)
        assert [line["event"] for line in logs] == ["peers.host_full"], "once"
        friends[0].writer.close()

        async def room() -> bool:
            with contextlib.suppress(ConnectionError):
                return await (await port.connect()).echo(b"now") == b"now"
            return False

        await eventually(room, "a place of who left", LIMIT_S)


async def test_connection_limit_closes_a_connection_of_the_largest_host() -> None:
    async with opened(most=6, most_of_host=5) as port:
        few = await port.connect("127.0.0.2")
        assert await few.echo(b"hello") == b"hello"
        many = [await port.connect("127.0.0.3") for _ in range(5)]
        for number in range(4, 7):
            assert await (await port.connect(f"127.0.0.{number}")).echo(b"new") == b"new"
        assert [await one.is_closed() for one in many[:3]] == [True] * 3
        assert await few.echo(b"still") == b"still"


async def test_connection_limit_counts_tls_from_accept_and_closes_half_handshakes(tmp_path: Path) -> None:
    make_certificates(tmp_path, LAB_CERTIFICATES, lasts=timedelta(hours=1))
    files = {
        name: TlsFiles(
            certificate=tmp_path / f"{name}.crt", key=tmp_path / f"{name}.key", authorities=tmp_path / "ca.crt"
        )
        for name in ("server", "operator")
    }
    client = client_context(files["operator"])
    async with opened(100, 3, server_context(RotatingKeyPair(files["server"]))) as port:
        friend = await port.connect(tls=client)
        assert await friend.echo(b"friend") == b"friend"
        halves = []
        for _ in range(4):
            halves.append(await port.connect())
            halves[-1].writer.write(b"\x16\x03\x01\x02")
        # Which two depends on whose bytes were read by then: silent connections are closed first.
        await eventually(lambda: port.turned_away == 2, "two gave way", LIMIT_S)
        late = await port.connect(tls=client)
        assert await late.echo(b"late") == b"late"
        assert await friend.echo(b"here") == b"here"
        assert port.turned_away == 3


async def test_out_of_file_descriptors_accept_backs_off_and_logs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tries, has_some = 0, False
    accept = socket.socket.accept

    def accepted(listening: socket.socket) -> object:
        nonlocal tries
        tries += 1
        if not has_some:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", accepted)
    monkeypatch.setattr(limited_listener, "_WAIT_S", 3600.0)
    async with opened(most=100, most_of_host=100) as port:
        await port.connect()
        await eventually(lambda: tries == 1, "a try", LIMIT_S)
        for _ in range(100):
            await asyncio.sleep(0)
        assert tries == 1, "it looks away in between"
    monkeypatch.setattr(limited_listener, "_WAIT_S", 0.01)
    async with opened(most=100, most_of_host=100) as port:
        with capture_logs() as logs:
            caller = await port.connect()
            await eventually(lambda: tries > 3, "further tries", LIMIT_S)
        assert [line["event"] for line in logs] == ["port.waits"]
        has_some = True
        assert await caller.echo(b"again") == b"again"
