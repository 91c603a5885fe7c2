"""What one connection may do: as many streams as HTTP/2 announces, answers to pings, headers of a limited size."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from tests.hostile.conftest import DELTA, Server

LIMIT_S = 60.0
VANISHED_S = 45.0
"""Twice what docs/limits.md says: a busy machine is late."""

STREAMS = 128
LINE_BYTES = 8_190


class Client:
    """An HTTP/2 client that sends what it likes, on a socket that it may stop reading."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._h2.initiate_connection()
        self.send()

    def send(self) -> None:
        self._writer.write(self._h2.data_to_send())

    async def events(self) -> list[h2.events.Event]:
        """What the server sent, answered; empty once it closed the connection."""
        data = await asyncio.wait_for(self._reader.read(65_536), LIMIT_S)
        found = self._h2.receive_data(data) if data else []
        self.send()
        return found

    def open(self) -> int:
        """Another stream, which never sends a message."""
        number = self._h2.get_next_available_stream_id()
        head = [
            *((":method", "POST"), (":scheme", "http"), (":path", DELTA), (":authority", "switchgear")),
            *(("content-type", "application/grpc"), ("te", "trailers")),
        ]
        # h2 itself keeps to what the server announced.
        self._h2.remote_settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = 2**31 - 1
        self._h2.remote_settings.acknowledge()
        self._h2.send_headers(number, head)
        self.send()
        return number


@contextlib.asynccontextmanager
async def connection(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def test_connection_has_a_limited_number_of_streams(server: Server) -> None:
    async with connection(server.xds) as (reader, writer):
        one = Client(reader, writer)
        settings: dict[int, int] = {}
        while h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS not in settings:
            for event in await one.events():
                if isinstance(event, h2.events.RemoteSettingsChanged):
                    settings |= {code: change.new_value for code, change in event.changed_settings.items()}
        assert settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] == STREAMS
        opened = [one.open() for _ in range(STREAMS + 1)]
        refused: list[int] = []
        while not refused:
            events = await one.events()
            assert events, "the connection stays"
            refused += [event.stream_id for event in events if isinstance(event, h2.events.StreamReset)]
        assert refused == opened[-1:]


async def test_peer_that_vanished_is_closed(server: Server) -> None:
    """It has a stream, acknowledges no ping, and keeps its connection open."""
    async with connection(server.xds) as (reader, writer):
        one = Client(reader, writer)
        one.open()
        while not any(isinstance(event, h2.events.ResponseReceived) for event in await one.events()):
            pass
        async with asyncio.timeout(VANISHED_S):
            with contextlib.suppress(ConnectionResetError):
                while await reader.read(65_536):
                    pass


@pytest.mark.parametrize(
    ("line", "headers"),
    [
        (b"GET /" + b"a" * LINE_BYTES + b" HTTP/1.1\r\n", b""),
        (b"GET /readyz HTTP/1.1\r\n", b"x: " + b"a" * (LINE_BYTES + 1) + b"\r\n"),
        (b"GET /readyz HTTP/1.1\r\n", b"".join(b"x%d: a\r\n" % number for number in range(200))),
    ],
    ids=["line", "header", "headers"],
)
async def test_admin_port_refuses_large_heads(server: Server, line: bytes, headers: bytes) -> None:
    async with connection(server.admin) as (reader, writer):
        writer.write(line + b"host: switchgear\r\n" + headers + b"\r\n")
        answer = await asyncio.wait_for(reader.readline(), LIMIT_S)
        assert answer.split()[1] == b"400", answer
