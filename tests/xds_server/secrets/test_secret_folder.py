"""Secret folders follow rotations: complete, by content, and never outside the folder."""

import ipaddress
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID
from structlog.testing import capture_logs

from tests.engine.tls.certificate_fixtures import of_strange_curve
from xds_server.admin_api.status_types import FileDefect
from xds_server.auth.lab_ca import LabCertificate, make_certificates
from xds_server.secrets.secret_folder import MAX_BYTES, SecretFolder
from xds_server.secrets.secret_validation import UnusableSecretError, validate_secret

DAY = timedelta(days=1)


def write(folder: Path, made: Path, *, client: bool = True) -> None:
    """One secret from files of a lab CA in ``made``."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(made / "ca.crt", folder / "ca.crt")
    if client:
        shutil.copy(made / "proxy.crt", folder / "tls.crt")
        shutil.copy(made / "proxy.key", folder / "tls.key")


def made(where: Path, *, lasts: timedelta = 30 * DAY, now: datetime | None = None) -> Path:
    make_certificates(where, [LabCertificate(name="proxy", path="proxy/gateway")], lasts=lasts, now=now)
    return where


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return made(tmp_path / "one")


@pytest.fixture
def two(tmp_path: Path) -> Path:
    return made(tmp_path / "two")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secrets").mkdir()
    return tmp_path / "secrets"


def reasons(followed: SecretFolder) -> list[str]:
    return [one.sentence for one in followed.problems()]


def test_secret_is_a_folder_with_optional_client_certificate(folder: Path, one: Path) -> None:
    write(folder / "mutual", one)
    write(folder / "plain", one, client=False)
    (folder / "README").write_text("not a secret")
    followed = SecretFolder(folder)
    assert list(followed.current) == ["mutual", "plain"]
    assert followed.current["mutual"].key == (one / "proxy.key").read_bytes()
    assert followed.current["plain"].chain is None
    assert followed.current["plain"].key is None
    assert not reasons(followed)
    key = (one / "proxy.key").read_text()
    assert key not in repr(followed.current["mutual"])
    assert key.splitlines()[1] not in repr(followed.current["mutual"])


def test_api_keys_need_no_certificates_and_reach_no_proxy(folder: Path, one: Path) -> None:
    write(folder / "both", one)
    (folder / "both" / "api-key").write_text("key-of-both\n")
    (folder / "alone").mkdir()
    (folder / "alone" / "api-key").write_text("key-alone")
    followed = SecretFolder(folder)
    assert followed.api_keys == {"both": "key-of-both", "alone": "key-alone"}
    assert list(followed.current) == ["both"]
    assert "key-of-both" not in repr(followed.current["both"])
    assert not reasons(followed)
    (folder / "alone" / "api-key").write_text("next")
    followed.poll()
    assert followed.api_keys["alone"] == "key-alone", "it may still be written"
    followed.poll()
    assert followed.api_keys["alone"] == "next"
    (folder / "alone" / "api-key").write_text("two words")
    followed.poll()
    followed.poll()
    assert followed.api_keys["alone"] == "next"
    assert "api-key must hold one key" in reasons(followed)[0]
    assert "two words" not in str(reasons(followed))


def test_api_key_outside_the_folder_is_not_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("not-for-engines")
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "api-key").symlink_to(tmp_path / "elsewhere")
    followed = SecretFolder(folder)
    assert not followed.api_keys
    assert "outside" in reasons(followed)[0]


def test_secret_rotation_is_debounced(folder: Path, one: Path, two: Path) -> None:
    write(folder / "a", one)
    followed = SecretFolder(folder)
    before = followed.current
    write(folder / "a", two)
    assert not followed.poll()
    assert followed.current is before
    assert followed.poll()
    assert followed.current["a"].chain == (two / "proxy.crt").read_bytes()
    assert not followed.poll()


def test_partial_secret_rotation_keeps_the_previous_secret(folder: Path, one: Path, two: Path) -> None:
    write(folder / "a", one)
    followed = SecretFolder(folder)
    shutil.copy(two / "proxy.crt", folder / "a" / "tls.crt")
    with capture_logs() as logs:
        for _ in range(4):
            assert not followed.poll()
    lines = [line for line in logs if line["event"] == "secret.refused"]
    assert len(lines) == 1
    assert "does not match" in lines[0]["reason"]
    assert followed.current["a"].chain == (one / "proxy.crt").read_bytes()
    assert "stays in use" in reasons(followed)[0]
    assert [line.defect for line in followed.problems()] == [FileDefect.UNUSABLE]
    shutil.copy(two / "proxy.key", folder / "a" / "tls.key")
    assert [followed.poll(), followed.poll()] == [False, True]
    assert not reasons(followed)


def test_incomplete_secret_folder_is_not_read(folder: Path, one: Path) -> None:
    followed = SecretFolder(folder)
    write(folder / "a", one, client=False)
    assert not followed.poll()
    write(folder / "a", one)
    assert not followed.poll()
    assert followed.poll()
    assert followed.current["a"].key is not None


def test_secret_rotation_by_kubernetes_symlink_swap(folder: Path, one: Path, two: Path) -> None:
    mounted = folder / "a"
    write(mounted / "..1", one)
    write(mounted / "..2", two)
    (mounted / "..data").symlink_to("..1")
    for name in ("ca.crt", "tls.crt", "tls.key"):
        (mounted / name).symlink_to(Path("..data") / name)
    followed = SecretFolder(folder)
    assert followed.current["a"].chain == (one / "proxy.crt").read_bytes()
    (mounted / "..new").symlink_to("..2")
    (mounted / "..new").rename(mounted / "..data")
    followed.poll()
    assert followed.poll()
    assert followed.current["a"].authorities == (two / "ca.crt").read_bytes()


def test_secrets_folder_may_be_a_symlink(folder: Path, one: Path, tmp_path: Path) -> None:
    write(folder / "a", one)
    (tmp_path / "link").symlink_to(folder)
    assert list(SecretFolder(tmp_path / "link").current) == ["a"]


@pytest.mark.parametrize("which", ["file", "folder"])
def test_secret_symlink_out_of_the_folder_is_not_read(folder: Path, one: Path, tmp_path: Path, which: str) -> None:
    write(tmp_path / "outside", one)
    if which == "folder":
        (folder / "a").symlink_to(tmp_path / "outside")
    else:
        write(folder / "a", one)
        (folder / "a" / "tls.key").unlink()
        (folder / "a" / "tls.key").symlink_to(tmp_path / "outside" / "tls.key")
    followed = SecretFolder(folder)
    assert not followed.current
    assert "leads outside the secrets folder" in followed.why_not("a")


def not_key(folder: Path, _: Path) -> None:
    (folder / "tls.key").write_text("hello")


def no_key(folder: Path, _: Path) -> None:
    (folder / "tls.key").unlink()


def no_certificate(folder: Path, _: Path) -> None:
    (folder / "tls.crt").unlink()


def no_authorities(folder: Path, _: Path) -> None:
    (folder / "ca.crt").unlink()


def empty_authorities(folder: Path, _: Path) -> None:
    (folder / "ca.crt").write_bytes(b"")


def leaf_for_authority(folder: Path, one: Path) -> None:
    shutil.copy(one / "proxy.crt", folder / "ca.crt")


def locked_key(folder: Path, one: Path) -> None:
    key = load_pem_private_key((one / "proxy.key").read_bytes(), None)
    shape = (Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    (folder / "tls.key").write_bytes(key.private_bytes(*shape))


def huge(folder: Path, _: Path) -> None:
    with (folder / "ca.crt").open("ab") as file:
        file.write(b"\n" * MAX_BYTES)


def pipe(folder: Path, _: Path) -> None:
    (folder / "ca.crt").unlink()
    os.mkfifo(folder / "ca.crt")


def folder_for_file(folder: Path, _: Path) -> None:
    (folder / "ca.crt").unlink()
    (folder / "ca.crt").mkdir()


def strange_curve(folder: Path, _: Path) -> None:
    (folder / "tls.crt").write_text(of_strange_curve((folder / "tls.crt").read_text()))


def looping(folder: Path, _: Path) -> None:
    (folder / "ca.crt").unlink()
    (folder / "ca.crt").symlink_to("ca.crt")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (not_key, "tls.key is not a PEM key"),
        (no_key, "tls.key is missing"),
        (no_certificate, "tls.crt is missing"),
        (no_authorities, "ca.crt is missing"),
        (empty_authorities, "ca.crt contains no PEM certificate"),
        (leaf_for_authority, "is not a CA certificate"),
        (locked_key, "without a passphrase"),
        (huge, "exceeds"),
        (pipe, "ca.crt is not a file"),
        (folder_for_file, "ca.crt is not a file"),
        (strange_curve, "tls.crt has a certificate of an unsupported form or key type"),
        (looping, "ca.crt: Too many levels of symbolic links"),
    ],
)
def test_each_secret_error_is_named(
    folder: Path, one: Path, spoil: Callable[[Path, Path], None], reason: str
) -> None:
    write(folder / "a", one)
    spoil(folder / "a", one)
    followed = SecretFolder(folder)
    assert not followed.current
    assert reason in followed.why_not("a")
    assert "policies cannot name it" in reasons(followed)[0]


def test_missing_secrets_folder_has_no_secrets() -> None:
    followed = SecretFolder(None)
    assert not followed.poll()
    assert not followed.current
    assert not reasons(followed)
    assert "--secrets" in followed.why_not("a")


def test_secret_names_are_kubernetes_names(folder: Path, one: Path) -> None:
    write(folder / "Not A Label", one)
    followed = SecretFolder(folder)
    assert not followed.current
    assert "lower-case letters" in reasons(followed)[0]
    assert "no folder" in followed.why_not("another")


def test_expired_certificate_is_rejected_and_expiry_reported(folder: Path, one: Path, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    old = made(tmp_path / "old", lasts=DAY, now=now - 3 * DAY)
    write(folder / "new", one)
    write(folder / "old", old)
    followed = SecretFolder(folder)
    assert list(followed.current) == ["new"]
    assert "expired at" in followed.why_not("old")
    later = SecretFolder(folder, wall=(now + 29.9 * DAY).timestamp)
    assert FileDefect.ENDS in {line.defect for line in later.problems()}
    ended = {
        family.name: {sample.labels["secret"]: sample.value for sample in family.samples}
        for family in later.families()
    }
    assert 0 < ended["switchgear_secret_expiry_seconds"]["new"] < DAY.total_seconds()
    assert ended["switchgear_secret_trouble"] == {"new": 0.0, "old": 1.0}


def test_future_certificate_is_used_once_valid(folder: Path, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    clock = [now.timestamp()]
    write(folder / "a", made(tmp_path / "early", now=now + DAY))
    followed = SecretFolder(folder, wall=lambda: clock[0])
    assert "is not valid before" in followed.why_not("a")
    clock[0] += 2 * DAY.total_seconds()
    assert followed.poll()


def test_deleted_secret_stays_while_policies_name_it(folder: Path, one: Path) -> None:
    write(folder / "asked", one)
    write(folder / "other", one)
    followed = SecretFolder(folder, in_use=lambda: ["asked"])
    shutil.rmtree(folder / "asked")
    shutil.rmtree(folder / "other")
    assert followed.poll()
    assert list(followed.current) == ["asked"]
    assert "folder deleted" in reasons(followed)[0]
    shutil.rmtree(folder)
    assert not followed.poll()
    assert list(followed.current) == ["asked"]
    assert "No such file" in reasons(followed)[0]


def authority(*, ends: datetime) -> bytes:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"until {ends:%Y}")])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(ends - 365 * DAY)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )


def test_one_valid_ca_of_several_suffices() -> None:
    now = datetime.now(UTC)
    old, new = authority(ends=now - DAY), authority(ends=now + DAY)
    found = validate_secret("a", authorities=old + new, chain=None, key=None, now_unix_s=now.timestamp())
    assert found.secret.ends_unix_s == pytest.approx((now + DAY).timestamp(), abs=1)
    with pytest.raises(UnusableSecretError, match="expired at"):
        validate_secret("a", authorities=old, chain=None, key=None, now_unix_s=now.timestamp())


@pytest.mark.parametrize("kind", ["ed25519", "short"])
def test_unsupported_keys_are_rejected(kind: str) -> None:
    now = datetime.now(UTC)
    key = (
        ed25519.Ed25519PrivateKey.generate()
        if kind == "ed25519"
        else rsa.generate_private_key(public_exponent=65537, key_size=1024)
    )
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "weak")])
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    chain = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(names, critical=False)
        .sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(UnusableSecretError, match="has a type that Envoy refuses"):
        validate_secret(
            "a", authorities=authority(ends=now + DAY), chain=chain, key=pem, now_unix_s=now.timestamp()
        )
