"""The three files of a secret, judged together before anything is sent on: pure, content in and value out.

What an Envoy would refuse is refused here: a certificate that a proxy takes back costs a push and a rollback, and
here the operator is told which file it is.
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
FILES: Final = (AUTHORITIES, CHAIN, KEY)
"""The names that Kubernetes and cert-manager give them in a TLS Secret."""

MOST_CERTIFICATES: Final = 500
"""In one file: a bundle of all public authorities has 150, and whoever speaks TLS by them reads all of them."""

_PRIVATE: Final = b"PRIVATE KEY-----"
_BEGIN: Final = b"-----BEGIN "
_SHORTEST_RSA_BITS: Final = 2048
_CURVES: Final = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
"""What Envoy takes. Source: Envoy docs, "Transport Layer Security", and its context_impl.cc."""


class UnusableSecretError(Exception):
    """Files cannot be used as they are; the message names the file and says why, and shows nothing of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedSecret:
    """A secret that can be used; ``begins_unix_s`` belongs to the certificate that ends first."""

    secret: EngineSecret
    begins_unix_s: float
    subject: str


def validate_secret(
    name: str, *, authorities: bytes, chain: bytes | None, key: bytes | None, now_unix_s: float
) -> ValidatedSecret:
    """What these files come to; ``UnusableSecretError`` where they are not whole, valid and of one piece."""
    with _understood(AUTHORITIES):
        found = _authorities(authorities)
        trusted = _holding(found, now_unix_s)
    # Of several authorities one that holds is enough: this is how they are rotated.
    last = max(trusted, key=lambda one: one.not_valid_after_utc)
    begins, ends = last.not_valid_before_utc, last.not_valid_after_utc
    subject, certificates = "", None
    if chain is None and key is not None:
        raise UnusableSecretError(f"{CHAIN} is missing: a certificate and its key go together")
    if chain is not None and key is None:
        raise UnusableSecretError(f"{KEY} is missing: a certificate and its key go together")
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
        raise UnusableSecretError(
            f"{file} has a certificate of a form or a kind of key that is not known"
        ) from None


def _authorities(content: bytes) -> Sequence[x509.Certificate]:
    found = _certificates(content, AUTHORITIES)
    for one in found:
        if not _is_authority(one):
            raise UnusableSecretError(f"{AUTHORITIES}: {_named(one)} is no authority, it may sign nothing")
    return found


def _holding(found: Sequence[x509.Certificate], now_unix_s: float) -> Sequence[x509.Certificate]:
    holding = [one for one in found if one.not_valid_after_utc.timestamp() > now_unix_s]
    if not holding:
        last = max(found, key=lambda one: one.not_valid_after_utc)
        raise UnusableSecretError(f"{AUTHORITIES}: {_named(last)} ended at {_when(last.not_valid_after_utc)}")
    return holding


def _leaf(leaf: x509.Certificate, key: bytes, now_unix_s: float) -> x509.Certificate:
    try:
        private = private_key(key)
    except (*PARSE_ERRORS, TypeError):
        # Without the cause: what a parser says of a key may quote it.
        raise UnusableSecretError(f"{KEY} is not a PEM key without a passphrase") from None
    public = private.public_key()
    if not key_matches(private, leaf):
        raise UnusableSecretError(f"{KEY} is not the key of the first certificate in {CHAIN}")
    long_enough = isinstance(public, rsa.RSAPublicKey) and public.key_size >= _SHORTEST_RSA_BITS
    known_curve = isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, _CURVES)
    if not long_enough and not known_curve:
        raise UnusableSecretError(
            f"{KEY} is of a kind that Envoy refuses: it takes RSA of {_SHORTEST_RSA_BITS} bits or more, and ECDSA "
            "on P-256, P-384 or P-521"
        )
    if leaf.not_valid_after_utc.timestamp() <= now_unix_s:
        raise UnusableSecretError(f"{CHAIN}: {_named(leaf)} ended at {_when(leaf.not_valid_after_utc)}")
    if leaf.not_valid_before_utc.timestamp() > now_unix_s:
        raise UnusableSecretError(
            f"{CHAIN}: {_named(leaf)} is valid from {_when(leaf.not_valid_before_utc)} on, and it is not then yet"
        )
    return leaf


def _certificates(content: bytes, file: str) -> list[x509.Certificate]:
    if _PRIVATE in content:
        # Authorities are sent to every proxy, and certificates are shown by whoever holds them.
        raise UnusableSecretError(
            f"{file} has a private key in it: that belongs into {KEY} alone, it goes to fewer"
        )
    if (many := content.count(_BEGIN)) > MOST_CERTIFICATES:
        raise UnusableSecretError(f"{file} has {many} certificates; at most {MOST_CERTIFICATES} are taken")
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError:
        raise UnusableSecretError(f"{file} holds no PEM certificate") from None


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        # Version 1 knows no extensions; some roots are that old, and they sign themselves.
        return certificate.version is x509.Version.v1 and certificate.subject == certificate.issuer


def _named(certificate: x509.Certificate) -> str:
    subject = certificate.subject.rfc4514_string()
    return f"the certificate of {subject[:200]}" if subject else f"certificate {certificate.serial_number:x}"


def _when(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
