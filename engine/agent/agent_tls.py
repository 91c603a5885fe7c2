"""TLS of the agent: server ports, permitted clients, and the connection to its engine.

Rotated certificates are reloaded.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
import structlog

from engine.agent.config_error import AgentConfigError
from engine.tls.engine_trust import ClientTls, ClientTlsCache, TrustError
from engine.tls.identity_patterns import first_match
from engine.tls.paths import TlsFiles, TrustFiles

if TYPE_CHECKING:
    from engine.tls.certificate_files import KeyPair

RELOAD_INTERVAL_S: Final = 5.0

_log = structlog.get_logger()


class AgentTls:
    """Read the files; ``AgentConfigError`` if they are unusable."""

    def __init__(self, files: TlsFiles, allowed: tuple[str, ...]) -> None:
        # Imported late: saves 10 MB without TLS.
        from engine.tls.certificate_files import CertificateError, RotatingKeyPair  # noqa: PLC0415

        self._allowed = allowed
        try:
            self._keys = RotatingKeyPair(files, on_change=_changed, on_trouble=_troubled)
        except CertificateError as error:
            raise AgentConfigError(f"--tls-cert: {error}") from error

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Credentials of the gRPC port: clients need a certificate."""
        from engine.tls.grpc_credentials import server_credentials  # noqa: PLC0415

        return server_credentials(self._keys)

    def http_context(self) -> ssl.SSLContext:
        """Context of the HTTP port: client certificates are optional, as probes have none."""
        from engine.tls.contexts import server_context  # noqa: PLC0415

        return server_context(self._keys)

    def permits(self, identities: tuple[str, ...]) -> bool:
        """Whether these identities may watch and drain."""
        if not self._allowed:
            return bool(identities)
        return any(first_match(identities, pattern) is not None for pattern in self._allowed)

    def permits_watch(self, context: grpc.aio.ServicerContext[Any, Any]) -> bool:
        """Whether the peer of a call may watch; without patterns any certificate of the CA may."""
        from engine.tls.grpc_credentials import auth_context_identities  # noqa: PLC0415

        return not self._allowed or self.permits(auth_context_identities(context.auth_context()))

    def validity_unix_s(self) -> tuple[float, float]:
        """Validity of the certificate."""
        return self._keys.pair.begins_unix_s, self._keys.pair.ends_unix_s

    async def run(self) -> None:
        """Check the files until cancelled, so that errors are logged early."""
        while True:
            await asyncio.sleep(RELOAD_INTERVAL_S)
            self._keys.reload()


def engine_client_tls(files: TrustFiles) -> Callable[[], ClientTls]:
    """TLS settings for the engine, following the files; ``AgentConfigError`` if unusable."""
    from engine.tls.certificate_files import CertificateError, FileReloader, read_trust  # noqa: PLC0415

    try:
        following = FileReloader(
            (files.authorities, files.certificate, files.key),
            lambda: read_trust(files),
            on_change=lambda _: _log.info("certificate.changed", file=str(files.authorities), of="the engine"),
            on_trouble=_troubled,
        )
        means = ClientTlsCache(following.reload)
        means()
    except (CertificateError, TrustError) as error:
        raise AgentConfigError(f"{_flag(files, str(error))}: {error}") from error
    return means


def _flag(files: TrustFiles, problem: str) -> str:
    """The flag of the file that an error starts with."""
    named = {files.certificate: "--engine-certificate", files.key: "--engine-key"}
    return next((flag for path, flag in named.items() if problem.startswith(f"{path}:")), "--engine-ca")


def _changed(pair: "KeyPair") -> None:
    _log.info("certificate.changed", subject=pair.subject, identities=pair.identities)


def _troubled(reason: str) -> None:
    _log.error("certificate.refused", reason=reason, effect="previous files stay in use")
