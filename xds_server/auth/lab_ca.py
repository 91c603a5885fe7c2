"""Certificate authority for labs: created on the spot, valid for days, its key stored next to the certificates.

All certificates carry a SPIFFE URI and DNS names, as in a mesh, so access rules from the lab also work in
production. Not for production.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

TRUST_DOMAIN: Final = "switchgear.lab"
AUTHORITY: Final = "ca"
_NOTE: Final = "Switchgear lab, not for production"
_SKEW: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabCertificate:
    """A certificate to create: ``path`` below ``spiffe://switchgear.lab/``; ``names``: DNS names and IPs."""

    name: str
    path: str
    names: tuple[str, ...] = ("localhost", "127.0.0.1", "::1")


LAB_CERTIFICATES: Final = (
    LabCertificate(name="server", path="control-plane"),
    LabCertificate(name="proxy", path="proxy/gateway"),
    LabCertificate(name="agent", path="agent"),
    LabCertificate(name="operator", path="operator"),
)
"""Identities of a lab: control plane, Envoy, agent, operator."""


def make_certificates(
    folder: Path, wanted: Sequence[LabCertificate], *, lasts: timedelta, now: datetime | None = None
) -> None:
    """Create certificates and keys in ``folder``: ``NAME.crt``, ``NAME.key`` and the CA ``ca.crt``.

    An existing CA signs again, so trust does not change: use this to test rotation. Files are replaced
    atomically; keys are readable by this user only. Raises ``OSError``, and ``ValueError`` for a damaged CA.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    began = (now or datetime.now(UTC)) - _SKEW
    ends = began + _SKEW + lasts
    authority, key = _authority(folder, began, ends)
    for one in wanted:
        own = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(one.name, own.public_key(), authority.subject, began, ends)
            .add_extension(
                x509.SubjectAlternativeName(
                    [
                        x509.UniformResourceIdentifier(f"spiffe://{TRUST_DOMAIN}/{one.path}"),
                        *map(_named, one.names),
                    ]
                ),
                critical=False,
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        _write(folder / f"{one.name}.key", _pem(own), mode=0o600)
        _write(folder / f"{one.name}.crt", certificate.public_bytes(Encoding.PEM), mode=0o644)


def _authority(
    folder: Path, began: datetime, ends: datetime
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    at, at_key = folder / f"{AUTHORITY}.crt", folder / f"{AUTHORITY}.key"
    if at.is_file() and at_key.is_file():
        found, key = (
            x509.load_pem_x509_certificate(at.read_bytes()),
            load_pem_private_key(at_key.read_bytes(), None),
        )
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{at_key} is not a key created by this command")
        if found.not_valid_after_utc >= ends:
            return found, key
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NOTE)])
    made = (
        _builder(_NOTE, key.public_key(), name, began, began + 2 * (ends - began))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=True,
                crl_sign=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .sign(key, hashes.SHA256())
    )
    _write(at_key, _pem(key), mode=0o600)
    _write(at, made.public_bytes(Encoding.PEM), mode=0o644)
    return made, key


def _builder(
    name: str, key: ec.EllipticCurvePublicKey, issuer: x509.Name, began: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(began)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _named(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, content: bytes, *, mode: int) -> None:
    """Replace a file atomically."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    new.touch(mode=mode, exist_ok=False)
    new.write_bytes(content)
    new.replace(path)
