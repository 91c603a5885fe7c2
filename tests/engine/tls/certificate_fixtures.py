"""Certificates for tests: issued by an authority in a folder, with given names and lifetime."""

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtensionOID

from engine.tls.certificate_files import read_trust
from engine.tls.engine_trust import ClientTls, ClientTlsCache
from engine.tls.paths import TlsFiles, TrustFiles
from xds_server.auth.lab_ca import LabCertificate, make_certificates

DAY = timedelta(days=1)


def certificate(
    folder: Path,
    name: str,
    *names: str,
    path: str = "engine",
    lasts: timedelta = DAY,
    ago: timedelta = timedelta(),
) -> None:
    """``NAME.crt`` and ``NAME.key`` of the authority in the folder, which is made where there is none."""
    if not (folder / "ca.crt").exists():
        make_certificates(folder, (), lasts=100 * DAY)
    make_certificates(
        folder, (LabCertificate(name=name, path=path, names=names),), lasts=lasts, now=datetime.now(UTC) - ago
    )


def odd_certificate(folder: Path, name: str, dns_name: bytes, *, alt_name: bytes = b"") -> None:
    """The same for one DNS name, of bytes that no library would write; or for one ``alt_name`` as ASN.1."""
    certificate(folder, name)
    authority, key = (
        x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()),
        load_pem_private_key((folder / "ca.key").read_bytes(), password=None),
    )
    plain = x509.load_pem_x509_certificate((folder / f"{name}.crt").read_bytes())
    alt_name = alt_name or bytes((0x82, len(dns_name))) + dns_name
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    odd = (
        x509.CertificateBuilder(
            issuer_name=authority.subject,
            subject_name=plain.subject,
            public_key=plain.public_key(),
            serial_number=plain.serial_number,
            not_valid_before=plain.not_valid_before_utc,
            not_valid_after=plain.not_valid_after_utc,
        )
        .add_extension(
            x509.UnrecognizedExtension(
                ExtensionOID.SUBJECT_ALTERNATIVE_NAME, bytes((0x30, len(alt_name))) + alt_name
            ),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    (folder / f"{name}.crt").write_bytes(odd.public_bytes(Encoding.PEM))


def means(folder: Path, *alt_names: str, proof: str = "") -> Callable[[], ClientTls]:
    """What to connect by for who trusts the authority in the folder, and proves itself by that certificate."""
    files = TrustFiles(
        authorities=folder / "ca.crt",
        certificate=folder / f"{proof}.crt" if proof else None,
        key=folder / f"{proof}.key" if proof else None,
    )
    return ClientTlsCache(lambda: read_trust(files), alt_names)


@contextmanager
def swapped(folder: Path, name: str, other: str) -> Iterator[None]:
    """While this lasts, the files of one certificate hold another."""
    kept = {end: (folder / f"{name}.{end}").read_bytes() for end in ("key", "crt")}
    for end in kept:
        (folder / f"{name}.{end}").write_bytes((folder / f"{other}.{end}").read_bytes())
    yield
    for end, content in kept.items():
        (folder / f"{name}.{end}").write_bytes(content)


def of_strange_curve(certificate: str) -> str:
    """The same certificate with an unknown key curve, which parsers meet first."""
    known, unknown = bytes.fromhex("06082a8648ce3d030107"), bytes.fromhex("06082a8648ce3d030146")
    content = ssl.PEM_cert_to_DER_cert(certificate)
    assert known in content
    return ssl.DER_cert_to_PEM_cert(content.replace(known, unknown))


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """A context for a client that proves itself with this certificate and trusts its authorities alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.authorities)
    return context
