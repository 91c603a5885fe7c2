"""Certificate and key files: validated before use, reloaded on change.

A rotation writes several files in sequence; Kubernetes swaps a link. So all contents are compared together: a key
that does not match its certificate is an incomplete rotation, and the previous pair stays in use.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Generic, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import ExtensionOID

from engine.regular_file import read_regular_file
from engine.tls.engine_trust import TrustBundle
from engine.tls.identity_patterns import certificate_identities
from engine.tls.paths import TlsFiles, TrustFiles

T = TypeVar("T")

MAX_BYTES: Final = 1024 * 1024
"""Size limit: a chain has a few KB, a bundle of all public CAs 250 KB."""

SUBJECT_CHARACTERS: Final = 200
"""Length limit of a displayed subject, which its issuer controls."""

PARSE_ERRORS: Final = (
    ValueError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""Errors of the library on unsupported certificates."""


class CertificateError(Exception):
    """Unusable certificate files; the message names the file and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """Certificate chain, key and CA bundle as PEM, with validity.

    ``trusts_until``: validity of the CA that expires last, None without CAs.
    """

    chain: bytes
    key: bytes = field(repr=False)
    authorities: bytes | None
    subject: str
    identities: tuple[str, ...]
    begins_unix_s: float
    ends_unix_s: float
    trusts_until: tuple[float, float] | None = None


def read_pair(files: TlsFiles) -> KeyPair:
    """Load the files; ``CertificateError`` if unreadable or mismatched."""
    chain, key = _content(files.certificate), _content(files.key)
    authorities = None if files.authorities is None else _content(files.authorities)
    leaf = _certificates(chain, files.certificate)[0]
    trusts_until = None
    if authorities is not None and files.authorities is not None:
        trusted = _certificates(authorities, files.authorities)
        authorities = certificates_only(trusted)
        # One valid CA is enough: several exist during a rotation.
        last = max(trusted, key=lambda one: one.not_valid_after_utc)
        trusts_until = (last.not_valid_before_utc.timestamp(), last.not_valid_after_utc.timestamp())
    with _understood(files.certificate):
        _check_key(key, files.key, leaf, files.certificate)
        return KeyPair(
            chain=chain,
            key=key,
            authorities=authorities,
            subject=leaf.subject.rfc4514_string()[:SUBJECT_CHARACTERS],
            identities=identities(leaf),
            begins_unix_s=leaf.not_valid_before_utc.timestamp(),
            ends_unix_s=leaf.not_valid_after_utc.timestamp(),
            trusts_until=trusts_until,
        )


def read_trust(files: TrustFiles) -> TrustBundle:
    """Load the files of a client; ``CertificateError`` if unreadable or mismatched."""
    trusted = _certificates(_content(files.authorities), files.authorities)
    # One valid CA is enough: several exist during a rotation.
    ends = [max(one.not_valid_after_utc.timestamp() for one in trusted)]
    chain = key = None
    if files.certificate is not None and files.key is not None:
        chain, key = _content(files.certificate), _content(files.key)
        leaf = _certificates(chain, files.certificate)[0]
        with _understood(files.certificate):
            _check_key(key, files.key, leaf, files.certificate)
        ends.append(leaf.not_valid_after_utc.timestamp())
    return TrustBundle(authorities=certificates_only(trusted), chain=chain, key=key, ends_unix_s=min(ends))


@contextmanager
def _understood(path: Path) -> Iterator[None]:
    try:
        yield
    except PARSE_ERRORS as error:
        raise CertificateError(f"{path}: unsupported certificate or key type") from error


def _check_key(key: bytes, path: Path, leaf: x509.Certificate, certificate: Path) -> None:
    try:
        private = private_key(key)
    except (*PARSE_ERRORS, TypeError) as error:
        raise CertificateError(f"{path}: not a PEM key without a passphrase") from error
    if not key_matches(private, leaf):
        raise CertificateError(f"{path}: not the key of the certificate in {certificate}")


def private_key(pem: bytes) -> PrivateKeyTypes:
    """Parse a key; one of ``PARSE_ERRORS`` or ``TypeError`` if invalid.

    The parts of an RSA key are not checked against each other: for 4096 bits that blocks the loop for a second,
    and unusable files are reread repeatedly.
    """
    return load_pem_private_key(pem, password=None, unsafe_skip_rsa_key_validation=True)


def key_matches(private: PrivateKeyTypes, leaf: x509.Certificate) -> bool:
    """Whether the key matches the certificate."""
    shape = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return private.public_key().public_bytes(*shape) == leaf.public_key().public_bytes(*shape)


def certificates_only(certificates: Iterable[x509.Certificate]) -> bytes:
    """Distinct certificates as PEM, without comments."""
    return b"".join(dict.fromkeys(one.public_bytes(Encoding.PEM) for one in certificates))


def identities(certificate: x509.Certificate) -> tuple[str, ...]:
    """URI and DNS SANs of a certificate, URIs first; the subject is ignored."""
    try:
        names = certificate.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
    except x509.ExtensionNotFound:
        return ()
    if not isinstance(names, x509.SubjectAlternativeName):
        return ()
    return certificate_identities(
        names.get_values_for_type(x509.UniformResourceIdentifier), names.get_values_for_type(x509.DNSName)
    )


def identities_of(pem: bytes) -> tuple[str, ...]:
    """SANs of a PEM certificate; empty if invalid."""
    try:
        return identities(x509.load_pem_x509_certificate(pem))
    except PARSE_ERRORS:
        return ()


class FileReloader(Generic[T]):
    """Contents of files that rotate. ``reload`` is cheap without changes, so call it often.

    ``on_change`` gets each new value, ``on_trouble`` an error sentence; once per change.
    """

    def __init__(
        self,
        paths: Iterable[Path | None],
        read: Callable[[], T],
        *,
        on_change: Callable[[T], None] = lambda _: None,
        on_trouble: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Load the files; ``CertificateError`` if unusable."""
        self._paths = tuple(path for path in paths if path is not None)
        self._read = read
        self._on_change = on_change
        self._on_trouble = on_trouble
        self._seen = self._stamp()
        self._trouble = ""
        self._value = read()

    @property
    def error(self) -> str:
        """Error of the current files, while the last valid value is in use; else empty."""
        return self._trouble

    def reload(self) -> T:
        """Current value: from the files, or the last valid one."""
        stamp = self._stamp()
        if stamp == self._seen and not self._trouble:
            return self._value
        try:
            value = self._read()
        except CertificateError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                self._on_trouble(self._trouble)
            return self._value
        self._seen, self._trouble = stamp, ""
        if value != self._value:
            self._value = value
            self._on_change(value)
        return self._value

    def _stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_stamp, self._paths))


class RotatingKeyPair(FileReloader[KeyPair]):
    """Certificate and key that follow their files."""

    def __init__(
        self,
        files: TlsFiles,
        *,
        on_change: Callable[[KeyPair], None] = lambda _: None,
        on_trouble: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Load the files; ``CertificateError`` if unusable."""
        self.files = files
        super().__init__(
            (files.certificate, files.key, files.authorities),
            lambda: read_pair(files),
            on_change=on_change,
            on_trouble=on_trouble,
        )

    @property
    def pair(self) -> KeyPair:
        """The pair as of the last reload."""
        return self._value


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _content(path: Path) -> bytes:
    try:
        found = read_regular_file(path, MAX_BYTES + 1)
    except OSError as error:
        raise CertificateError(f"{path}: {error.strerror or error}") from error
    if len(found) > MAX_BYTES:
        raise CertificateError(f"{path}: larger than {MAX_BYTES} bytes, not a certificate")
    return found


def _certificates(pem: bytes, path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except PARSE_ERRORS as error:
        raise CertificateError(f"{path}: contains no PEM certificate") from error


def expiry(pair: KeyPair) -> str:
    """Expiry as text."""
    return datetime.fromtimestamp(pair.ends_unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
