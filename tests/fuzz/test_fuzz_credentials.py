"""Certificates, keys and tokens, spoiled: the reader's own error or a value; what they prove can be printed."""

import contextlib
import ssl
import tempfile
from datetime import UTC, datetime
from functools import cache, partialmethod
from itertools import count
from pathlib import Path
from unittest.mock import Mock, patch

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.tls.certificate_files import CertificateError, RotatingKeyPair, identities_of, read_pair, read_trust
from engine.tls.contexts import server_context
from engine.tls.engine_trust import TrustError, engine_client_context
from engine.tls.paths import TlsFiles, TrustFiles
from tests.engine.tls import certificate_fixtures
from tests.engine.tls.certificate_fixtures import DAY, certificate, odd_certificate, of_strange_curve
from tests.fuzz.mutations import broken, spoiled
from xds_server.auth.lab_ca import make_certificates
from xds_server.auth.rules_watcher import MIN_TOKEN_CHARACTERS, RulesWatcher
from xds_server.secrets.secret_validation import UnusableSecretError, validate_secret

FUZZ = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@cache
def originals() -> dict[str, bytes]:
    """What a lab's authority signs, odd names and an odd key among it; keys are in no corpus, they are made.

    The same bytes in each run (fixed serial numbers and date), so that drawn examples repeat.
    """
    numbers, signed = count(2), x509.CertificateBuilder.sign
    with (
        tempfile.TemporaryDirectory() as name,
        patch.object(ec, "generate_private_key", lambda curve: ec.derive_private_key(next(numbers), curve)),
        patch.object(x509, "random_serial_number", lambda: next(numbers)),
        patch.object(x509.CertificateBuilder, "sign", partialmethod(signed, ecdsa_deterministic=True)),
        patch.object(certificate_fixtures, "datetime", Mock(now=lambda zone: datetime(2026, 1, 1, tzinfo=zone))),
    ):
        folder = Path(name)
        make_certificates(folder, (), lasts=100 * DAY, now=datetime(2026, 1, 1, tzinfo=UTC))
        certificate(folder, "server", "localhost", "127.0.0.1", lasts=DAY)
        odd_certificate(folder, "odd", b"a\xff\x1b[2J.example.com")
        found = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    found["strange.crt"] = of_strange_curve(found["server.crt"].decode()).encode()
    return found


@st.composite
def certificates(draw: st.DrawFn) -> bytes:
    """PEM that is spoiled, or sound PEM round a certificate that is."""
    pems = tuple(content for name, content in originals().items() if name.endswith(".crt"))
    if draw(st.booleans()):
        return draw(broken(pems))
    ders = tuple(ssl.PEM_cert_to_DER_cert(pem.decode()) for pem in pems)
    wrapped = ssl.DER_cert_to_PEM_cert(draw(broken(ders))).encode()
    return wrapped if draw(st.booleans()) else wrapped + draw(st.sampled_from(pems))


@st.composite
def keys(draw: st.DrawFn) -> bytes:
    return draw(broken(tuple(content for name, content in originals().items() if name.endswith(".key"))))


either = st.one_of(certificates(), st.sampled_from(sorted(originals().values())))
key = st.one_of(keys(), st.just(originals()["server.key"]))


@FUZZ
@given(pem=certificates())
def test_certificate_identities_are_printable(pem: bytes) -> None:
    for one in identities_of(pem):
        assert one.isprintable()
        assert 0 < len(one) <= 2048


@FUZZ
@given(
    authorities=either,
    chain=st.none() | either,
    secret=st.none() | key,
    now_unix_s=st.sampled_from((0.0, 2e9, 1e11)),
)
def test_mutated_secret_is_loaded_or_rejected(
    authorities: bytes, chain: bytes | None, secret: bytes | None, now_unix_s: float
) -> None:
    try:
        found = validate_secret("one", authorities=authorities, chain=chain, key=secret, now_unix_s=now_unix_s)
    except UnusableSecretError as error:
        assert str(error).isprintable()  # noqa: PT017 - a sound one raises nothing
        assert b"PRIVATE" not in str(error).encode()  # noqa: PT017
        return
    assert b"PRIVATE KEY" not in found.secret.authorities + (found.secret.chain or b"")


@FUZZ
@given(chain=either, secret=key, authorities=either)
def test_mutated_certificate_pair_is_loaded_or_rejected(
    tmp_path: Path, chain: bytes, secret: bytes, authorities: bytes
) -> None:
    files = TlsFiles(certificate=tmp_path / "c", key=tmp_path / "k", authorities=tmp_path / "a")
    for path, content in ((tmp_path / "c", chain), (tmp_path / "k", secret), (tmp_path / "a", authorities)):
        path.write_bytes(content)
    with contextlib.suppress(CertificateError):
        assert all(one.isprintable() for one in read_pair(files).identities)
        server_context(RotatingKeyPair(files))
    with contextlib.suppress(CertificateError, TrustError):
        engine_client_context(
            read_trust(
                TrustFiles(authorities=files.authorities or Path(), certificate=files.certificate, key=files.key)
            )
        )


TOKENS = (
    b"0123456789abcdef0123456789abcdef\n",
    b"\xef\xbb\xbf0123456789abcdef\r\n",
    "geheim-geheim-geheim-größe".encode(),
)


@FUZZ
@given(content=st.one_of(broken(TOKENS), spoiled("vllm_metrics")))
def test_mutated_bearer_token_authenticates_or_is_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t").write_bytes(content)
    (tmp_path / "a.yaml").write_text(
        "apiVersion: switchgear.dev/v1alpha1\nkind: Access\nmetadata: {name: a}\n"
        "spec: {admin: [{tokenFile: t, name: robot}]}\n"
    )
    said: list[str] = []
    rules = RulesWatcher(tmp_path / "a.yaml", tell=said.append)
    for token in rules.tokens.values():
        assert len(token) >= MIN_TOKEN_CHARACTERS
        assert token.isascii()
        assert token.isprintable()
        assert not any(token in one for one in said)
    assert rules.tokens or said
