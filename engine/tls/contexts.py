"""The pair of keys as HTTP over asyncio wants it: contexts of a server that rotates, and of a client."""

import contextlib
import ssl

from engine.tls.certificate_files import CertificateError, KeyPair, RotatingKeyPair
from engine.tls.identity_patterns import certificate_identities
from engine.tls.paths import TlsFiles


def server_context(keys: RotatingKeyPair, *, only_proved: bool = False) -> ssl.SSLContext:
    """A context for a server that follows its files: each handshake gets the pair of that moment.

    Clients may prove themselves by a certificate of the authorities, and need not unless ``only_proved``: whoever
    answers them says what that means. TLS 1.3, without resumption, so that nobody comes back by what was true
    before.
    """
    context = _context(keys.pair, keys.files, only_proved=only_proved)
    served = (keys.pair, context)

    def swap(
        connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context_before: ssl.SSLContext
    ) -> None:
        nonlocal served
        pair = keys.reload()
        if pair is not served[0]:
            # Where the files changed once more in between, the pair before them serves this handshake too.
            with contextlib.suppress(CertificateError):
                served = (pair, _context(pair, keys.files, only_proved=only_proved))
        if served[1] is not context:
            connection.context = served[1]

    context.sni_callback = swap
    return context


def _context(pair: KeyPair, files: TlsFiles, *, only_proved: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    _load(context, pair, files)
    if pair.authorities is not None:
        context.verify_mode = ssl.CERT_REQUIRED if only_proved else ssl.CERT_OPTIONAL
    return context


def _load(context: ssl.SSLContext, pair: KeyPair, files: TlsFiles) -> None:
    # Only files can be loaded; what they hold was judged a moment ago, and is judged again here.
    try:
        context.load_cert_chain(files.certificate, files.key)
        if pair.authorities is not None:
            context.load_verify_locations(cadata=pair.authorities.decode())
    except (ssl.SSLError, OSError, ValueError) as error:
        raise CertificateError(f"{files.certificate}: {error}") from error


def peer_identities(connection: ssl.SSLObject | ssl.SSLSocket | None) -> tuple[str, ...]:
    """The URIs and DNS names that the other end of a connection has proved; none without TLS or a certificate."""
    try:
        certificate = None if connection is None else connection.getpeercert()
    except ValueError:
        return ()  # names are bytes to whoever signs them, and these are no text
    names = (certificate or {}).get("subjectAltName", ())
    uris, dns_names = (
        [str(name[1]) for name in names if isinstance(name, tuple) and name[0] == kind] for kind in ("URI", "DNS")
    )
    return certificate_identities(uris, dns_names)
