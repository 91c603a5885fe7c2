"""gRPC credentials: servers that rotate without a restart, and clients."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import grpc

if TYPE_CHECKING:
    from engine.tls.certificate_files import KeyPair, RotatingKeyPair

_CERTIFICATE: Final = "x509_pem_cert"


def server_credentials(keys: "RotatingKeyPair") -> grpc.ServerCredentials:
    """Server credentials: new connections use the current pair, open ones keep theirs.

    With a CA bundle, clients must present a certificate.
    """
    current = keys.reload()
    told = current

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        # Called before each handshake in a gRPC thread; None keeps the current pair.
        nonlocal told
        pair = keys.reload()
        if pair is told:
            return None
        told = pair
        return _configuration(pair)

    made: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
        _configuration(current),
        fetch,  # type: ignore[arg-type]  # the stubs do not know that None is allowed; gRPC's documentation does
        require_client_authentication=current.authorities is not None,
    )
    return made


def channel_credentials(pair: "KeyPair") -> grpc.ChannelCredentials:
    """Client credentials with this pair and its CA bundle."""
    made: grpc.ChannelCredentials = grpc.ssl_channel_credentials(
        root_certificates=pair.authorities, private_key=pair.key, certificate_chain=pair.chain
    )
    return made


def auth_context_identities(context: Mapping[str, Iterable[bytes]]) -> tuple[str, ...]:
    """URI and DNS SANs of a peer from gRPC's auth context; empty without TLS."""
    from engine.tls.certificate_files import identities_of  # noqa: PLC0415 - cryptography, only where there is TLS

    pem = b"".join(context.get(_CERTIFICATE, ()))
    return identities_of(pem) if pem else ()


def _configuration(pair: "KeyPair") -> grpc.ServerCertificateConfiguration:
    made: grpc.ServerCertificateConfiguration = grpc.ssl_server_certificate_configuration(
        [(pair.key, pair.chain)], root_certificates=pair.authorities
    )
    return made
