"""Certificates and keys on disk: read whole, judged before use, and read again when they change.

A rotation writes several files, and not at once; Kubernetes swaps a link. So what counts is the content of all of
them together: a key that does not belong to its certificate is a rotation half done, and the pair before it stays
in use until the other half is there.
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
"""A chain of certificates has a few thousand bytes, a bundle of all public authorities a quarter of a million."""

SUBJECT_CHARACTERS: Final = 200
"""Of a subject, which is only shown: whoever made the certificate says how long it is."""

PARSE_ERRORS: Final = (
    ValueError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""What the library says of certificates that it can take apart, and does not know what to make of."""


class CertificateError(Exception):
    """Certificate files cannot be used; the message names the file and says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A certificate chain, its key and the authorities to trust, as PEM, and from when to when it is valid.

    ``trusts_until``: the same two times of the authority that ends last, None without authorities.
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
    """What the files hold now; ``CertificateError`` where they cannot be read or do not belong together."""
    chain, key = _content(files.certificate), _content(files.key)
    authorities = None if files.authorities is None else _content(files.authorities)
    leaf = _certificates(chain, files.certificate)[0]
    trusts_until = None
    if authorities is not None and files.authorities is not None:
        trusted = _certificates(authorities, files.authorities)
        authorities = certificates_only(trusted)
        # Of several one that holds is enough: this is how they are rotated.
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
    """What a client goes by now; ``CertificateError`` where the files cannot be read or do not belong together."""
    trusted = _certificates(_content(files.authorities), files.authorities)
    # Of several authorities one that holds is enough: this is how they are rotated.
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
        raise CertificateError(f"{path}: a certificate of a form or a kind of key that is not known") from error


def _check_key(key: bytes, path: Path, leaf: x509.Certificate, certificate: Path) -> None:
    try:
        private = private_key(key)
    except (*PARSE_ERRORS, TypeError) as error:
        raise CertificateError(f"{path}: not a PEM key without a passphrase") from error
    if not key_matches(private, leaf):
        raise CertificateError(f"{path}: not the key of the certificate in {certificate}")


def private_key(pem: bytes) -> PrivateKeyTypes:
    """The key; one of ``PARSE_ERRORS`` or a ``TypeError`` where it is none.

    Whether the parts of an RSA key fit each other is not asked. That takes a second for 4096 bits, in which
    nothing else runs, and files that cannot be used are looked at again and again.
    """
    return load_pem_private_key(pem, password=None, unsafe_skip_rsa_key_validation=True)


def key_matches(private: PrivateKeyTypes, leaf: x509.Certificate) -> bool:
    """Whether this is the key of the certificate."""
    shape = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return private.public_key().public_bytes(*shape) == leaf.public_key().public_bytes(*shape)


def certificates_only(certificates: Iterable[x509.Certificate]) -> bytes:
    """These certificates as PEM, each once, and nothing of what stood between them: comments, say."""
    return b"".join(dict.fromkeys(one.public_bytes(Encoding.PEM) for one in certificates))


def identities(certificate: x509.Certificate) -> tuple[str, ...]:
    """The URIs and then the DNS names that a certificate proves; its subject proves nothing."""
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
    """The same of a certificate as PEM; nothing where it is none."""
    try:
        return identities(x509.load_pem_x509_certificate(pem))
    except PARSE_ERRORS:
        return ()


class FileReloader(Generic[T]):
    """What files hold, as it changes. ``reload`` is cheap where nothing changed: call it often, anywhere.

    ``on_change`` gets each new value, ``on_trouble`` a sentence when the files cannot be used; once per change.
    """

    def __init__(
        self,
        paths: Iterable[Path | None],
        read: Callable[[], T],
        *,
        on_change: Callable[[T], None] = lambda _: None,
        on_trouble: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Reads the files; ``CertificateError`` when they cannot be used, for there is nothing else to use."""
        self._paths = tuple(path for path in paths if path is not None)
        self._read = read
        self._on_change = on_change
        self._on_trouble = on_trouble
        self._seen = self._stamp()
        self._trouble = ""
        self._value = read()

    @property
    def error(self) -> str:
        """Why the files cannot be used now, so that the last good value is; empty when they can."""
        return self._trouble

    def reload(self) -> T:
        """What to use now: what the files hold, or the last good value while they cannot be used."""
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
    """A pair of keys that follows its files."""

    def __init__(
        self,
        files: TlsFiles,
        *,
        on_change: Callable[[KeyPair], None] = lambda _: None,
        on_trouble: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Reads the files; ``CertificateError`` when they cannot be used, for there is nothing else to use."""
        self.files = files
        super().__init__(
            (files.certificate, files.key, files.authorities),
            lambda: read_pair(files),
            on_change=on_change,
            on_trouble=on_trouble,
        )

    @property
    def pair(self) -> KeyPair:
        """The pair as it was at the last look."""
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
        raise CertificateError(f"{path}: larger than {MAX_BYTES} bytes, so no certificate")
    return found


def _certificates(pem: bytes, path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except PARSE_ERRORS as error:
        raise CertificateError(f"{path}: holds no PEM certificate") from error


def expiry(pair: KeyPair) -> str:
    """When a pair ends, as people write it."""
    return datetime.fromtimestamp(pair.ends_unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
