"""Certificates on disk, rotated well and badly."""

import asyncio
import contextlib
import os
import ssl
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from engine.tls.certificate_files import (
    MAX_BYTES,
    CertificateError,
    KeyPair,
    RotatingKeyPair,
    expiry,
    identities_of,
    read_pair,
)
from engine.tls.contexts import peer_identities, server_context
from engine.tls.grpc_credentials import auth_context_identities, channel_credentials, server_credentials
from engine.tls.identity_patterns import certificate_identities
from engine.tls.paths import TlsFiles
from tests.engine.tls.certificate_fixtures import client_context, odd_certificate, of_strange_curve
from xds_server.auth.lab_ca import LAB_CERTIFICATES, make_certificates
from xds_server.cli import main

DAY = timedelta(days=1)
ECHO = "/test.Echo/Who"


def files(folder: Path, name: str) -> TlsFiles:
    return TlsFiles(certificate=folder / f"{name}.crt", key=folder / f"{name}.key", authorities=folder / "ca.crt")


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    folder = tmp_path / "certs"
    make_certificates(folder, LAB_CERTIFICATES, lasts=DAY)
    return folder


def test_a_pair_says_what_it_proves(lab: Path) -> None:
    pair = read_pair(files(lab, "proxy"))
    assert pair.identities == ("spiffe://switchgear.lab/proxy/gateway", "localhost")
    assert pair.identities == identities_of(pair.chain)
    assert "PRIVATE KEY" not in repr(pair)
    assert expiry(pair).endswith("UTC")
    assert identities_of(b"rubbish") == ()


@pytest.mark.parametrize(
    ("uris", "dns_names", "proved"),
    [
        (["spiffe://a/b", "urn:x"], ["c.d", "*.d"], ("spiffe://a/b", "urn:x", "c.d", "*.d")),
        (["c.d"], [], ()),
        ([], ["spiffe://a/b", "a/b", "urn:x"], ()),
        (["spiffe://a/\x1b[2J", "spiffe://a/\n", "spiffe://a/\u202eb"], ["c\x00.d"], ()),
        (["spiffe://a/" + "x" * 2_048], ["", "x" * 2_049], ()),
    ],
    ids=["names", "invalid URI", "invalid DNS name", "unprintable", "length"],
)
def test_dns_san_with_a_uri_value_is_not_an_identity(
    uris: list[str], dns_names: list[str], proved: tuple[str, ...]
) -> None:
    assert certificate_identities(uris, dns_names) == proved


def test_unknown_kind_of_name_is_ignored(lab: Path) -> None:
    odd_certificate(lab, "odd", b"", alt_name=b"\xa3\x02\x05\x00")  # an X.400 address
    assert identities_of((lab / "odd.crt").read_bytes()) == ()


def test_pipe_instead_of_a_key_does_not_block(lab: Path) -> None:
    keys = RotatingKeyPair(files(lab, "server"))
    (lab / "server.key").unlink()
    os.mkfifo(lab / "server.key")
    assert keys.reload() is keys.pair
    assert "not a regular file" in keys.error


def test_a_second_run_rotates_under_the_same_authority(lab: Path) -> None:
    before, authority = read_pair(files(lab, "server")), (lab / "ca.crt").read_bytes()
    make_certificates(lab, LAB_CERTIFICATES, lasts=DAY / 2)
    after = read_pair(files(lab, "server"))
    assert after.chain != before.chain
    assert (lab / "ca.crt").read_bytes() == authority
    assert stat.S_IMODE((lab / "server.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((lab / "ca.key").stat().st_mode) == 0o600
    assert not list(lab.glob(".*"))


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("server.crt", b"", "no PEM certificate"),
        ("server.crt", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "no PEM certificate"),
        ("server.key", b"rubbish", "not a PEM key"),
        ("ca.crt", b"\x00" * 100, "no PEM certificate"),
        ("ca.crt", b"x" * (MAX_BYTES + 1), "larger than"),
    ],
)
def test_invalid_file_is_named_with_its_fault(lab: Path, file: str, content: bytes, said: str) -> None:
    (lab / file).write_bytes(content)
    with pytest.raises(CertificateError, match=said) as refusal:
        read_pair(files(lab, "server"))
    assert str(lab / file) in str(refusal.value)


def test_unknown_kind_of_key_is_reported_with_its_file(lab: Path) -> None:
    keys = RotatingKeyPair(files(lab, "server"))
    (lab / "server.crt").write_text(of_strange_curve((lab / "server.crt").read_text()))
    before = keys.pair
    assert keys.reload() is before  # and nothing ends by it
    assert keys.error.startswith(f"{lab / 'server.crt'}: ")


def test_a_key_of_another_certificate_and_a_file_that_is_missing(lab: Path) -> None:
    (lab / "server.key").write_bytes((lab / "proxy.key").read_bytes())
    with pytest.raises(CertificateError, match="not the key of the certificate"):
        read_pair(files(lab, "server"))
    (lab / "server.key").unlink()
    with pytest.raises(CertificateError, match="No such file"):
        RotatingKeyPair(files(lab, "server"))


def test_certificate_rotation_needs_cert_and_key(lab: Path, tmp_path: Path) -> None:
    changes: list[KeyPair] = []
    troubles: list[str] = []
    keys = RotatingKeyPair(files(lab, "server"), on_change=changes.append, on_trouble=troubles.append)
    first = keys.reload()
    make_certificates(tmp_path / "new", LAB_CERTIFICATES, lasts=DAY)
    (lab / "server.crt").write_bytes((tmp_path / "new" / "server.crt").read_bytes())
    assert keys.reload() is first
    assert keys.reload() is first
    assert len(troubles) == 1, "reported once"
    (lab / "server.key").write_bytes((tmp_path / "new" / "server.key").read_bytes())
    assert keys.reload().chain == (tmp_path / "new" / "server.crt").read_bytes()
    assert changes == [keys.pair]


def test_files_that_vanish_leave_the_last_pair(lab: Path) -> None:
    troubles: list[str] = []
    keys = RotatingKeyPair(files(lab, "server"), on_trouble=troubles.append)
    first, content = keys.reload(), (lab / "server.crt").read_bytes()
    (lab / "server.crt").unlink()
    assert keys.reload() is first
    assert troubles
    (lab / "server.crt").write_bytes(content)
    assert keys.reload() is first, "same content: unchanged"


@asynccontextmanager
async def listening(keys: RotatingKeyPair) -> AsyncIterator[int]:
    """A port that answers each client with the identity it proved."""

    async def who(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(" ".join(peer_identities(writer.get_extra_info("ssl_object"))).encode() or b"none")
            await writer.drain()
            writer.close()

    server = await asyncio.start_server(who, "127.0.0.1", 0, ssl=server_context(keys))
    async with server:
        yield server.sockets[0].getsockname()[1]


async def told(port: int, context: ssl.SSLContext) -> str:
    """What the port says, and the serial number of its certificate; OSError where it hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    try:
        said = (await reader.read()).decode()
        if not said:
            raise ConnectionError("hung up")
        return f"{said} {writer.get_extra_info('ssl_object').getpeercert()['serialNumber']}"
    finally:
        writer.close()


def serial(pair: KeyPair) -> str:
    return f"{x509.load_pem_x509_certificate(pair.chain).serial_number:X}"


async def test_each_tls_handshake_gets_the_current_certificate(lab: Path) -> None:
    keys = RotatingKeyPair(files(lab, "server"))
    proxy = client_context(files(lab, "proxy"))
    nobody = ssl.create_default_context(cafile=lab / "ca.crt")
    async with listening(keys) as port:
        assert (await told(port, proxy)).startswith("spiffe://switchgear.lab/proxy/gateway localhost ")
        assert (await told(port, nobody)).startswith("none ")
        before = serial(keys.pair)
        make_certificates(lab, LAB_CERTIFICATES, lasts=DAY / 2)
        assert (await told(port, proxy)).endswith(serial(read_pair(files(lab, "server"))).lstrip("0"))
        assert serial(keys.pair) != before
        (lab / "server.key").write_text("half")
        assert await told(port, proxy), "the last good pair"


async def test_removed_ca_is_no_longer_trusted(lab: Path, tmp_path: Path) -> None:
    old = client_context(files(lab, "proxy"))
    async with listening(RotatingKeyPair(files(lab, "server"))) as port:
        assert await told(port, old)
        make_certificates(tmp_path / "new", LAB_CERTIFICATES, lasts=DAY)
        for name in ("server.key", "server.crt", "ca.crt"):
            (tmp_path / "new" / name).replace(lab / name)
        old.load_verify_locations(lab / "ca.crt")
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await told(port, old)


@asynccontextmanager
async def served(keys: RotatingKeyPair) -> AsyncIterator[int]:
    async def who(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return " ".join(auth_context_identities(context.auth_context())).encode()  # type: ignore[arg-type]

    class Echo(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> object:
            return grpc.unary_unary_rpc_method_handler(who) if details.method == ECHO else None

    server = grpc.aio.server(handlers=[Echo()])  # type: ignore[abstract]
    port = server.add_secure_port("127.0.0.1:0", server_credentials(keys))
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def asked(port: int, pair: KeyPair | None, authority: bytes) -> str:
    credentials = grpc.ssl_channel_credentials(authority) if pair is None else channel_credentials(pair)
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        answer = await channel.unary_unary(ECHO)(b"", timeout=60)
        return bytes(answer).decode()


async def test_mtls_peers_are_authenticated_and_strangers_rejected(lab: Path, tmp_path: Path) -> None:
    proxy = read_pair(files(lab, "proxy"))
    make_certificates(tmp_path / "other", LAB_CERTIFICATES, lasts=DAY)
    stranger = read_pair(
        TlsFiles(
            certificate=tmp_path / "other" / "proxy.crt",
            key=tmp_path / "other" / "proxy.key",
            authorities=lab / "ca.crt",
        )
    )
    async with served(RotatingKeyPair(files(lab, "server"))) as port:
        assert await asked(port, proxy, b"") == "spiffe://switchgear.lab/proxy/gateway localhost"
        for nobody in (None, stranger):
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await asked(port, nobody, (lab / "ca.crt").read_bytes())
            assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_server_certificate_rotation_needs_no_restart(lab: Path, tmp_path: Path) -> None:
    changes: list[KeyPair] = []
    keys = RotatingKeyPair(files(lab, "server"), on_change=changes.append)
    async with served(keys) as port:
        proxy = read_pair(files(lab, "proxy"))
        assert await asked(port, proxy, b"")
        # Another authority: clients of the old one are refused, clients of the new one are accepted.
        make_certificates(tmp_path / "new", LAB_CERTIFICATES, lasts=DAY)
        for one in ("server.crt", "server.key", "ca.crt"):
            (lab / one).write_bytes((tmp_path / "new" / one).read_bytes())
        assert await asked(port, read_pair(files(tmp_path / "new", "proxy")), b"")
        assert len(changes) == 1
        with pytest.raises(grpc.aio.AioRpcError):
            await asked(port, proxy, b"")


def test_lab_ca_command_writes_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certs", "dev", str(tmp_path / "c"), "--lasts", "1h", "--name", "engine.test"]) == 0
    said = capsys.readouterr()
    assert "spiffe://switchgear.lab/operator" in said.out
    assert "valid for 1h" in said.err
    leaf = x509.load_pem_x509_certificate((tmp_path / "c" / "agent.crt").read_bytes())
    assert "engine.test" in read_pair(files(tmp_path / "c", "agent")).identities
    assert leaf.not_valid_after_utc - leaf.not_valid_before_utc < timedelta(hours=2)
    assert main(["certs", "dev", str(tmp_path / "c"), "--lasts", "1s"]) == 2
    (tmp_path / "c" / "ca.key").write_text("rubbish")
    assert main(["certs", "dev", str(tmp_path / "c")]) == 2
    assert "remove the folder" in capsys.readouterr().err


def test_a_handshake_during_a_second_rotation_gets_the_pair_of_the_first(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = RotatingKeyPair(files(lab, "server"))
    context = server_context(keys)

    def shown() -> bytes | None:
        ours, theirs, back = (
            ssl.MemoryBIO(),
            ssl.MemoryBIO(),
            client_context(files(lab, "proxy")),
        )
        server = context.wrap_bio(ours, theirs, server_side=True)
        client = back.wrap_bio(theirs, ours, server_hostname="localhost")
        for _ in range(4):
            for one in (client, server):
                with contextlib.suppress(ssl.SSLWantReadError):
                    one.do_handshake()
        return client.getpeercert(binary_form=True)

    first = shown()
    make_certificates(lab, LAB_CERTIFICATES, lasts=DAY / 2)
    keys.reload()
    second = shown()
    assert second != first
    make_certificates(lab, LAB_CERTIFICATES, lasts=DAY / 3)
    keys.reload()

    def torn(*_: object, **_how: object) -> ssl.SSLContext:
        raise CertificateError("half-written")

    monkeypatch.setattr("engine.tls.contexts._context", torn)
    assert shown() == second
