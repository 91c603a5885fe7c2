"""TLS of our clients to engines: CA, client certificate and accepted names.

Engines are verified as by Envoy: a chain to a CA, validity, and one of the names. ``tls_failure`` describes a
failure; callers decide what follows.
"""

import os
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from engine.tls.identity_patterns import matches

_EXPIRED: Final = 10
_NOT_YET: Final = 9
_UNKNOWN_ISSUER: Final = frozenset({2, 18, 19, 20, 21})
_WRONG_NAME: Final = 62
"""Numbers of OpenSSL's X509_V_ERR_*. Source: x509_vfy.h; BoringSSL has the same."""

_REFUSES_US: Final = (
    "CERTIFICATE_REQUIRED",
    "ALERT_UNKNOWN_CA",
    "ALERT_BAD_CERTIFICATE",
    "ALERT_CERTIFICATE",
    "ALERT_ACCESS_DENIED",
    "ALERT_UNSUPPORTED_CERTIFICATE",
)
_NAMES_SHOWN: Final = 20
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL")


class TrustError(Exception):
    """Our own TLS settings are missing or unusable; the message states what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustBundle:
    """CA bundle and optional client certificate with key, as PEM.

    ``ends_unix_s``: earliest expiry that breaks connections.
    """

    authorities: bytes
    chain: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    ends_unix_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineIdentity:
    """Expected identity: ``server_name`` is the SNI, default its host name or address.

    The certificate must have one of ``alt_names``: DNS names, ``*.x`` for one label before ``.x``, or URIs, where
    ``*`` matches all but a slash. Default: the SNI.
    """

    server_name: str = ""
    alt_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """SSL context and the expiry of its certificates."""

    context: ssl.SSLContext
    ends_unix_s: float


class ClientTlsCache:
    """Contexts for one name, rebuilt when ``trust()`` changes."""

    def __init__(self, trust: Callable[[], TrustBundle], alt_names: tuple[str, ...] = ()) -> None:
        self._trust = trust
        self._alt_names = alt_names
        self._made: tuple[TrustBundle, ClientTls] | None = None

    def __call__(self) -> ClientTls:
        """Current context, the same object while unchanged; ``TrustError`` without certificates."""
        trust = self._trust()
        made = self._made
        if made is None or (made[0] is not trust and made[0] != trust):
            made = (
                trust,
                ClientTls(context=engine_client_context(trust, self._alt_names), ends_unix_s=trust.ends_unix_s),
            )
            self._made = made
        return made[1]


def engine_client_context(trust: TrustBundle, alt_names: tuple[str, ...] = ()) -> ssl.SSLContext:
    """Context that verifies the engine; ``TrustError`` if it cannot be built."""
    context = _NameCheckingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.alt_names = alt_names
    context.sslobject_class = _NameCheckedConnection
    # Names are checked separately, like Envoy: patterns and URIs.
    context.check_hostname = False
    # Like Envoy, accept a CA that is not a root.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=trust.authorities.decode())
        if trust.chain is not None and trust.key is not None:
            with _as_file(trust.chain + b"\n" + trust.key) as path:
                context.load_cert_chain(path)
    except (ssl.SSLError, OSError, ValueError, TypeError) as error:
        # TypeError: a comment that is not ASCII.
        raise TrustError(f"unusable TLS files: {error}") from error
    return context


def certificate_matches(certificate: Mapping[str, Any], asked_for: str, alt_names: tuple[str, ...]) -> bool:
    """Whether a certificate (from ``getpeercert``) has one of the names; default ``asked_for``."""
    names = _names(certificate)
    if not alt_names:
        return any(_is_asked(kind, name, asked_for) for kind, name in names)
    return any(
        (kind == "URI" and matches(wanted, name)) if "://" in wanted else (kind == "DNS" and _fits(wanted, name))
        for wanted in alt_names
        for kind, name in names
    )


def tls_failure(error: BaseException) -> str:
    """TLS failure of a connection in words; empty if TLS did not fail."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    # The innermost exception has the details.
    for one in reversed(chain):
        if isinstance(one, ssl.SSLCertVerificationError):
            return _of_certificate(one)
        if isinstance(one, ssl.SSLError) and not isinstance(one, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return _of_agreement(one)
    return ""


class _NameCheckingContext(ssl.SSLContext):
    alt_names: tuple[str, ...] = ()


class _NameCheckedConnection(ssl.SSLObject):
    """Connection that completes only after the name is verified."""

    def do_handshake(self) -> None:
        super().do_handshake()
        context = self.context
        alt_names = context.alt_names if isinstance(context, _NameCheckingContext) else ()
        try:
            certificate = self.getpeercert() or {}
        except ValueError:
            # Python cannot decode such names.
            raise _wrong_name("its certificate has undecodable names") from None
        if certificate_matches(certificate, self.server_hostname or "", alt_names):
            return
        wanted = " or ".join(alt_names) or self.server_hostname
        has = ", ".join(_shown(name) for _, name in _names(certificate)[:_NAMES_SHOWN]) or "no name"
        raise _wrong_name(f"its certificate is for {has[:200]}, not for {wanted}")


def _wrong_name(words: str) -> ssl.SSLCertVerificationError:
    problem = ssl.SSLCertVerificationError(words)
    problem.verify_code = _WRONG_NAME
    return problem


def _shown(name: str) -> str:
    """A foreign name made printable for logs and terminals."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in name[:200])


def _names(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(str(kind), str(name)) for kind, name in certificate.get("subjectAltName", ())]


def _is_asked(kind: str, name: str, asked_for: str) -> bool:
    address = _address(asked_for)
    if address is not None:
        # An address needs an IP SAN: a DNS name that looks like one may match many.
        return kind == "IP Address" and _address(name) == address
    return kind == "DNS" and _fits_exactly(asked_for, name)


def _address(text: str) -> object:
    """Parse an IP address; None if invalid."""
    import ipaddress  # noqa: PLC0415 -- only where an engine is asked

    try:
        return ipaddress.ip_address(text.strip())
    except ValueError:
        return None


def _fits(wanted: str, name: str) -> bool:
    if not wanted.startswith("*."):
        return _fits_exactly(wanted, name)
    label, dot, rest = name.partition(".")
    return bool(label and dot) and rest.lower() == wanted.removeprefix("*.").lower()


def _fits_exactly(wanted: str, name: str) -> bool:
    """Whether a SAN is this DNS name, or a wildcard for its first label."""
    wanted, name = wanted.lower(), name.lower()
    if wanted == name:
        return True
    label, _, rest = name.partition(".")
    asked, _, domain = wanted.partition(".")
    begin, glob, end = label.partition("*")
    if not glob or "*" in end or not rest or rest != domain or label.startswith("xn--"):
        return False
    return len(asked) >= len(begin) + len(end) and asked.startswith(begin) and asked.endswith(end)


def _of_certificate(error: ssl.SSLCertVerificationError) -> str:
    code = getattr(error, "verify_code", 0)
    if code == _WRONG_NAME:
        return str(error.args[0] if error.args else error)
    if code == _EXPIRED:
        return "its certificate or CA has expired"
    if code == _NOT_YET:
        return "its certificate or CA is not valid yet, or a clock is wrong"
    if code in _UNKNOWN_ISSUER:
        return "its certificate is from an untrusted CA"
    return f"its certificate is invalid: {getattr(error, 'verify_message', '') or error}"


def _of_agreement(error: ssl.SSLError) -> str:
    reason = str(getattr(error, "reason", None) or error).upper().replace(" ", "_")
    if any(word in reason for word in _REFUSES_US):
        return f"it refuses our certificate, or requires one ({reason})"
    if any(word in reason for word in _NO_TLS):
        return "no TLS"
    return f"TLS handshake failed ({reason})"


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Temporary path to ``content``, in memory if possible: OpenSSL loads keys only from files."""
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("certificate", os.MFD_CLOEXEC)
        with os.fdopen(number, "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{number}"
        return
    with tempfile.NamedTemporaryFile() as kept:  # 0600
        kept.write(content)
        kept.flush()
        yield kept.name
