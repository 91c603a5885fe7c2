"""mTLS of our own transport: who gets in, in which pieces, and how others are refused."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from engine.tls.certificate_files import RotatingKeyPair
from engine.tls.contexts import server_context
from engine.tls.paths import TlsFiles
from tests.engine.tls.certificate_fixtures import certificate
from tests.eventually import eventually
from tests.xds_server.transport.test_h2_server import LIMIT_S, METHOD, Echo, Peer
from xds_server.auth.connection_limit import ConnectionLimiter
from xds_server.auth.stream_limits import StreamLimits
from xds_server.transport import H2Server, RpcPeer, RpcService
from xds_server.transport.h2 import frames
from xds_server.transport.h2.grpc_messages import prefixed
from xds_server.transport.tls_session import TlsSession


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    certificate(tmp_path, "server", "localhost")
    certificate(tmp_path, "proxy", "proxy.example", path="proxy")
    other = tmp_path / "other"
    other.mkdir()
    certificate(other, "stranger")
    return tmp_path


def client_context(certs: Path, name: str = "proxy", *, protocol: str = "h2") -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(certs / "ca.crt"))
    made.check_hostname = False
    if name:
        folder = certs if (certs / f"{name}.crt").exists() else certs / "other"
        made.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    if protocol:
        made.set_alpn_protocols([protocol])
    return made


def context_of(certs: Path) -> ssl.SSLContext:
    files = TlsFiles(certificate=certs / "server.crt", key=certs / "server.key", authorities=certs / "ca.crt")
    return server_context(RotatingKeyPair(files), only_proved=True, protocols=("h2",))


@asynccontextmanager
async def serving(certs: Path) -> AsyncIterator[tuple[int, H2Server, list[RpcPeer]]]:
    peers: list[RpcPeer] = []

    def connect(peer: RpcPeer, wake, end) -> Echo:  # type: ignore[no-untyped-def]
        peers.append(peer)
        return Echo(wake, end)

    service = RpcService(
        method=METHOD,
        connect=connect,
        limits=StreamLimits(),
        limiter=ConnectionLimiter("streams", 10, 10),
        max_bytes=2**21,
        on_flaw=lambda _flaw, _host: None,
    )
    server = H2Server([service], tls=context_of(certs))
    try:
        yield await server.start(), server, peers
    finally:
        await server.stop()


async def test_identity_of_the_peer_reaches_the_service_and_large_messages_pass(certs: Path) -> None:
    async with serving(certs) as (port, _server, peers):
        peer = Peer(*await asyncio.open_connection("127.0.0.1", port, ssl=client_context(certs)))
        await peer.begin()
        number = await peer.open(METHOD, b"first")
        assert await peer.message(number, 5) == b"first"
        peer.received.clear()
        big = bytes(range(256)) * 4_000
        await peer.write(number, prefixed(big))
        assert await peer.message(number, len(big)) == big
        (found,) = peers
        assert found.identities == ("spiffe://switchgear.lab/proxy", "proxy.example")
        assert found.host == " ".join(("127.0.0.1", *found.identities))
        await peer.close()


@pytest.mark.parametrize(
    ("name", "protocol"), [("", "h2"), ("stranger", "h2"), ("proxy", "http/1.1"), ("proxy", "")]
)
async def test_peer_without_certificate_or_http2_is_refused(certs: Path, name: str, protocol: str) -> None:
    async with serving(certs) as (port, server, peers):
        with suppress(ssl.SSLError, ConnectionError):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=client_context(certs, name, protocol=protocol)
            )
            writer.write(frames.PREFACE + frames.settings({}))
            with suppress(ssl.SSLError, ConnectionError):
                while await asyncio.wait_for(reader.read(1000), LIMIT_S):
                    pass
            writer.close()
        await eventually(lambda: not server._connections, "the connection is gone", LIMIT_S)
        assert peers == []


@pytest.mark.parametrize("sent", [frames.PREFACE, b"GET / HTTP/1.1\r\n\r\n", bytes(500), b"\x16\x03\x01\xff\xff"])
async def test_plaintext_is_refused(certs: Path, sent: bytes) -> None:
    async with serving(certs) as (port, server, _peers):
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        if sent[:1] == b"\x16":
            writer.close()  # the rest of the record never comes
        await eventually(lambda: not server._connections, "the connection is gone", LIMIT_S)
        writer.close()


@pytest.mark.parametrize("piece", [1, 100, 100_000])
def test_handshake_and_data_in_any_pieces(certs: Path, piece: int) -> None:
    server = TlsSession(context_of(certs))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context(certs).wrap_bio(incoming, outgoing, server_side=False)
    received = b""

    def exchange() -> None:
        nonlocal received
        data = outgoing.read()
        for at in range(0, len(data), piece):
            received += server.receive(data[at : at + piece])
        incoming.write(server.outgoing())

    for _ in range(4):
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
        exchange()
    assert server.is_open
    assert server.protocol() == "h2"
    client.write(b"x" * 50_000)
    exchange()
    assert received == b"x" * 50_000
    server.encrypt(b"y" * 50_000)
    incoming.write(server.outgoing())
    got = b""
    while len(got) < 50_000:
        got += client.read(65_536)
    assert got == b"y" * 50_000
    server.close()
    incoming.write(server.outgoing())
    assert client.read(1) == b"", "the end was announced"
