"""Validates the three files of a secret together. Pure: content in, value out.

Rejects what an Envoy would refuse: a certificate refused by a proxy costs a push and a rollback, while this error
names the file.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from engine.tls.certificate_files import (
    PARSE_ERRORS,
    SUBJECT_CHARACTERS,
    certificates_only,
    key_matches,
    private_key,
)
from xds_server.model.secret import EngineSecret

AUTHORITIES: Final = "ca.crt"
CHAIN: Final = "tls.crt"
KEY: Final = "tls.key"
API_KEY: Final = "api-key"
"""An engine's API key, sent by probes only."""

FILES: Final = (AUTHORITIES, CHAIN, KEY)
"""File names in a TLS Secret, as in Kubernetes and cert-manager."""

MOST_CERTIFICATES: Final = 500
"""Limit per file: a bundle of all public CAs has 150, and every TLS peer reads all of them."""

_PRIVATE: Final = b"PRIVATE KEY-----"
_BEGIN: Final = b"-----BEGIN "
_SHORTEST_RSA_BITS: Final = 2048
_CURVES: Final = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
"""Curves supported by Envoy. Source: Envoy docs, "Transport Layer Security", and its context_impl.cc."""


class UnusableSecretError(Exception):
    """The files are unusable; the message names the file and the reason, without content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedSecret:
    """A usable secret; ``begins_unix_s`` belongs to the certificate that expires first."""

    secret: EngineSecret
    begins_unix_s: float
    subject: str


def validate_secret(
    name: str, *, authorities: bytes, chain: bytes | None, key: bytes | None, now_unix_s: float
) -> ValidatedSecret:
    """Validate the files; ``UnusableSecretError`` if incomplete, invalid or inconsistent."""
    with _understood(AUTHORITIES):
        found = _authorities(authorities)
        trusted = _holding(found, now_unix_s)
    # One valid CA of several suffices: this is how they are rotated.
    last = max(trusted, key=lambda one: one.not_valid_after_utc)
    begins, ends = last.not_valid_before_utc, last.not_valid_after_utc
    subject, certificates = "", None
    if chain is None and key is not None:
        raise UnusableSecretError(f"{CHAIN} is missing: certificate and key are required together")
    if chain is not None and key is None:
        raise UnusableSecretError(f"{KEY} is missing: certificate and key are required together")
    if chain is not None and key is not None:
        with _understood(CHAIN):
            shown = _certificates(chain, CHAIN)
            leaf, certificates = _leaf(shown[0], key, now_unix_s), certificates_only(shown)
            subject = leaf.subject.rfc4514_string()[:SUBJECT_CHARACTERS]
        if leaf.not_valid_after_utc < ends:
            begins, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    return ValidatedSecret(
        secret=EngineSecret(
            name=name,
            authorities=certificates_only(found),
            chain=certificates,
            key=key,
            ends_unix_s=ends.timestamp(),
        ),
        begins_unix_s=begins.timestamp(),
        subject=subject,
    )


@contextmanager
def _understood(file: str) -> Iterator[None]:
    try:
        yield
    except PARSE_ERRORS:
        raise UnusableSecretError(f"{file} has a certificate of an unsupported form or key type") from None


def _authorities(content: bytes) -> Sequence[x509.Certificate]:
    found = _certificates(content, AUTHORITIES)
    for one in found:
        if not _is_authority(one):
            raise UnusableSecretError(f"{AUTHORITIES}: {_named(one)} is not a CA certificate")
    return found


def _holding(found: Sequence[x509.Certificate], now_unix_s: float) -> Sequence[x509.Certificate]:
    holding = [one for one in found if one.not_valid_after_utc.timestamp() > now_unix_s]
    if not holding:
        last = max(found, key=lambda one: one.not_valid_after_utc)
        raise UnusableSecretError(f"{AUTHORITIES}: {_named(last)} expired at {_when(last.not_valid_after_utc)}")
    return holding


def _leaf(leaf: x509.Certificate, key: bytes, now_unix_s: float) -> x509.Certificate:
    try:
        private = private_key(key)
    except (*PARSE_ERRORS, TypeError):
        # Without the cause: parser messages may quote the key.
        raise UnusableSecretError(f"{KEY} is not a PEM key without a passphrase") from None
    public = private.public_key()
    if not key_matches(private, leaf):
        raise UnusableSecretError(f"{KEY} does not match the first certificate in {CHAIN}")
    long_enough = isinstance(public, rsa.RSAPublicKey) and public.key_size >= _SHORTEST_RSA_BITS
    known_curve = isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, _CURVES)
    if not long_enough and not known_curve:
        raise UnusableSecretError(
            f"{KEY} has a type that Envoy refuses: use RSA with at least {_SHORTEST_RSA_BITS} bits, "
            "or ECDSA on P-256, P-384 or P-521"
        )
    if leaf.not_valid_after_utc.timestamp() <= now_unix_s:
        raise UnusableSecretError(f"{CHAIN}: {_named(leaf)} expired at {_when(leaf.not_valid_after_utc)}")
    if leaf.not_valid_before_utc.timestamp() > now_unix_s:
        raise UnusableSecretError(
            f"{CHAIN}: {_named(leaf)} is not valid before {_when(leaf.not_valid_before_utc)}"
        )
    return leaf


def _certificates(content: bytes, file: str) -> list[x509.Certificate]:
    if _PRIVATE in content:
        # CA bundles go to every proxy, and certificates are public.
        raise UnusableSecretError(f"{file} contains a private key: move it to {KEY}, which fewer peers get")
    if (many := content.count(_BEGIN)) > MOST_CERTIFICATES:
        raise UnusableSecretError(f"{file} has {many} certificates; limit {MOST_CERTIFICATES}")
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError:
        raise UnusableSecretError(f"{file} contains no PEM certificate") from None


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        # Version 1 has no extensions; some old self-signed roots use it.
        return certificate.version is x509.Version.v1 and certificate.subject == certificate.issuer


def _named(certificate: x509.Certificate) -> str:
    subject = certificate.subject.rfc4514_string()
    return f"the certificate of {subject[:200]}" if subject else f"certificate {certificate.serial_number:x}"


def _when(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
