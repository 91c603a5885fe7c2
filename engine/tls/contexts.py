"""SSL contexts for asyncio: servers with rotating files, and clients."""

import contextlib
import ssl
from collections.abc import Sequence

from engine.tls.certificate_files import CertificateError, KeyPair, RotatingKeyPair
from engine.tls.identity_patterns import certificate_identities
from engine.tls.paths import TlsFiles


def server_context(
    keys: RotatingKeyPair, *, only_proved: bool = False, protocols: Sequence[str] = ()
) -> ssl.SSLContext:
    """Server context that follows its files: each handshake uses the current pair.

    Client certificates are optional unless ``only_proved``; ``protocols``: names of ALPN. TLS 1.3 without
    resumption, which would skip a new check.
    """
    context = _context(keys.pair, keys.files, only_proved=only_proved, protocols=protocols)
    served = (keys.pair, context)

    def swap(
        connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context_before: ssl.SSLContext
    ) -> None:
        nonlocal served
        pair = keys.reload()
        if pair is not served[0]:
            # If the files changed again meanwhile, this handshake uses the previous pair.
            with contextlib.suppress(CertificateError):
                served = (pair, _context(pair, keys.files, only_proved=only_proved, protocols=protocols))
        if served[1] is not context:
            connection.context = served[1]

    context.sni_callback = swap
    return context


def _context(pair: KeyPair, files: TlsFiles, *, only_proved: bool, protocols: Sequence[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    if protocols:
        context.set_alpn_protocols(protocols)
    _load(context, pair, files)
    if pair.authorities is not None:
        context.verify_mode = ssl.CERT_REQUIRED if only_proved else ssl.CERT_OPTIONAL
    return context


def _load(context: ssl.SSLContext, pair: KeyPair, files: TlsFiles) -> None:
    # OpenSSL loads only files; their contents are validated again here.
    try:
        context.load_cert_chain(files.certificate, files.key)
        if pair.authorities is not None:
            context.load_verify_locations(cadata=pair.authorities.decode())
    except (ssl.SSLError, OSError, ValueError) as error:
        raise CertificateError(f"{files.certificate}: {error}") from error


def peer_identities(connection: ssl.SSLObject | ssl.SSLSocket | None) -> tuple[str, ...]:
    """URI and DNS SANs of the peer; empty without TLS or a certificate."""
    try:
        certificate = None if connection is None else connection.getpeercert()
    except ValueError:
        return ()  # names with invalid encoding
    names = (certificate or {}).get("subjectAltName", ())
    uris, dns_names = (
        [str(name[1]) for name in names if isinstance(name, tuple) and name[0] == kind] for kind in ("URI", "DNS")
    )
    return certificate_identities(uris, dns_names)
