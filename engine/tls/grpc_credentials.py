"""The pair of keys as gRPC wants it: for a server that rotates without a restart, and for a client's next call."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import grpc

if TYPE_CHECKING:
    from engine.tls.certificate_files import KeyPair, RotatingKeyPair

_CERTIFICATE: Final = "x509_pem_cert"


def server_credentials(keys: "RotatingKeyPair") -> grpc.ServerCredentials:
    """Credentials of a server: every new connection gets the pair of that moment, open ones keep theirs.

    With authorities, clients must prove themselves by a certificate of one of them.
    """
    current = keys.reload()
    told = current

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        # gRPC asks before each handshake, in a thread of its own; None leaves things as they are.
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
    """Credentials of a client that proves itself by this pair and trusts its authorities."""
    made: grpc.ChannelCredentials = grpc.ssl_channel_credentials(
        root_certificates=pair.authorities, private_key=pair.key, certificate_chain=pair.chain
    )
    return made


def auth_context_identities(context: Mapping[str, Iterable[bytes]]) -> tuple[str, ...]:
    """The URIs and DNS names that a peer's certificate proves, from gRPC's auth context; none without TLS."""
    from engine.tls.certificate_files import identities_of  # noqa: PLC0415 - cryptography, only where there is TLS

    pem = b"".join(context.get(_CERTIFICATE, ()))
    return identities_of(pem) if pem else ()


def _configuration(pair: "KeyPair") -> grpc.ServerCertificateConfiguration:
    made: grpc.ServerCertificateConfiguration = grpc.ssl_server_certificate_configuration(
        [(pair.key, pair.chain)], root_certificates=pair.authorities
    )
    return made
