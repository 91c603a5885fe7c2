"""How a client of ours speaks TLS to an engine: whom it trusts, by what it proves itself, which names will do.

An engine is held to what an Envoy would hold it to: a chain to one of the authorities, dates that hold, and one of
the names. What follows from a failure is not decided here; ``tls_failure`` only puts it in plain words.
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
    """There is nothing to speak TLS by, which is nobody's fault but ours; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustBundle:
    """Authorities to trust and, where both are there, a certificate and its key to show; all as PEM.

    ``ends_unix_s`` is when the first of them expires without which nothing works.
    """

    authorities: bytes
    chain: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    ends_unix_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineIdentity:
    """Who an engine has to be: ``server_name`` is asked for (SNI), its host name or address when empty.

    Its certificate must have one of ``alt_names``: DNS names, ``*.x`` for one label before ``.x``, or URIs, where
    ``*`` is anything but a slash. When there are none, the name that is asked for.
    """

    server_name: str = ""
    alt_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """A context to connect with, and when what it was made of ends."""

    context: ssl.SSLContext
    ends_unix_s: float


class ClientTlsCache:
    """Contexts for one name, made anew when what is trusted is another; ``trust`` gives what is, at any time."""

    def __init__(self, trust: Callable[[], TrustBundle], alt_names: tuple[str, ...] = ()) -> None:
        self._trust = trust
        self._alt_names = alt_names
        self._made: tuple[TrustBundle, ClientTls] | None = None

    def __call__(self) -> ClientTls:
        """What to connect with now, the same object while it is the same; ``TrustError`` when there is nothing."""
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
    """A context that takes an engine for what it says only if it proves it; ``TrustError`` if none can be made."""
    context = _NameCheckingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.alt_names = alt_names
    context.sslobject_class = _NameCheckedConnection
    # The names are checked as an Envoy checks them, which knows patterns and URIs.
    context.check_hostname = False
    # An Envoy is content with an authority that is not a root, too.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=trust.authorities.decode())
        if trust.chain is not None and trust.key is not None:
            with _as_file(trust.chain + b"\n" + trust.key) as path:
                context.load_cert_chain(path)
    except (ssl.SSLError, OSError, ValueError, TypeError) as error:
        # TypeError: a comment that is not ASCII.
        raise TrustError(f"cannot speak TLS by what it was given: {error}") from error
    return context


def certificate_matches(certificate: Mapping[str, Any], asked_for: str, alt_names: tuple[str, ...]) -> bool:
    """Whether a certificate, as ``getpeercert`` gives it, has one of the names; without any, ``asked_for``."""
    names = _names(certificate)
    if not alt_names:
        return any(_is_asked(kind, name, asked_for) for kind, name in names)
    return any(
        (kind == "URI" and matches(wanted, name)) if "://" in wanted else (kind == "DNS" and _fits(wanted, name))
        for wanted in alt_names
        for kind, name in names
    )


def tls_failure(error: BaseException) -> str:
    """What is wrong with the other end of a connection, in plain words; empty where TLS is not what failed."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    # The innermost knows most: what wraps it may be of its class, and know only its text.
    for one in reversed(chain):
        if isinstance(one, ssl.SSLCertVerificationError):
            return _of_certificate(one)
        if isinstance(one, ssl.SSLError) and not isinstance(one, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return _of_agreement(one)
    return ""


class _NameCheckingContext(ssl.SSLContext):
    alt_names: tuple[str, ...] = ()


class _NameCheckedConnection(ssl.SSLObject):
    """A connection that is none before the other end has proved its name."""

    def do_handshake(self) -> None:
        super().do_handshake()
        context = self.context
        alt_names = context.alt_names if isinstance(context, _NameCheckingContext) else ()
        try:
            certificate = self.getpeercert() or {}
        except ValueError:
            # Names are bytes to whoever signs them; Python wants text, and says so in its own way.
            raise _wrong_name("its certificate has names that are no text") from None
        if certificate_matches(certificate, self.server_hostname or "", alt_names):
            return
        wanted = " or ".join(alt_names) or self.server_hostname
        has = ", ".join(_shown(name) for _, name in _names(certificate)[:_NAMES_SHOWN]) or "no name at all"
        raise _wrong_name(f"its certificate is for {has[:200]}, and not for {wanted}")


def _wrong_name(words: str) -> ssl.SSLCertVerificationError:
    problem = ssl.SSLCertVerificationError(words)
    problem.verify_code = _WRONG_NAME
    return problem


def _shown(name: str) -> str:
    """A name that somebody else made, as it may stand in a log and on a terminal."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in name[:200])


def _names(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(str(kind), str(name)) for kind, name in certificate.get("subjectAltName", ())]


def _is_asked(kind: str, name: str, asked_for: str) -> bool:
    address = _address(asked_for)
    if address is not None:
        # Who is asked for by an address proves the address: a DNS name may look like one, and stand for many.
        return kind == "IP Address" and _address(name) == address
    return kind == "DNS" and _fits_exactly(asked_for, name)


def _address(text: str) -> object:
    """The IP address that a text is; None where it is none."""
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
    """Whether a certificate's name is this DNS name, or a wildcard that stands for its first label."""
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
        return "its certificate, or an authority behind it, has expired"
    if code == _NOT_YET:
        return "its certificate, or an authority behind it, is not valid yet; or a clock is wrong"
    if code in _UNKNOWN_ISSUER:
        return "its certificate comes from no authority that is trusted here"
    return f"its certificate cannot be believed: {getattr(error, 'verify_message', '') or error}"


def _of_agreement(error: ssl.SSLError) -> str:
    reason = str(getattr(error, "reason", None) or error).upper().replace(" ", "_")
    if any(word in reason for word in _REFUSES_US):
        return f"it refuses our certificate, or asks for one ({reason})"
    if any(word in reason for word in _NO_TLS):
        return "it does not speak TLS"
    return f"no agreement on TLS ({reason})"


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path to ``content`` for a while: OpenSSL reads keys from files alone. In memory where the system can."""
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
