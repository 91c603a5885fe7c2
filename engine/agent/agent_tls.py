"""The agent's ends of TLS: its ports, with which clients may watch and drain, and what it asks its engine by.

Certificates are followed as they rotate.
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
    """Reads the files; ``AgentConfigError`` where they cannot be used."""

    def __init__(self, files: TlsFiles, allowed: tuple[str, ...]) -> None:
        # Ten megabytes that an agent without TLS does not need.
        from engine.tls.certificate_files import CertificateError, RotatingKeyPair  # noqa: PLC0415

        self._allowed = allowed
        try:
            self._keys = RotatingKeyPair(files, on_change=_changed, on_trouble=_troubled)
        except CertificateError as error:
            raise AgentConfigError(f"--tls-cert: {error}") from error

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """For the port that control planes watch: nobody without a certificate gets in."""
        from engine.tls.grpc_credentials import server_credentials  # noqa: PLC0415

        return server_credentials(self._keys)

    def http_context(self) -> ssl.SSLContext:
        """For probes, metrics and drain: a certificate is asked for, and probes have none."""
        from engine.tls.contexts import server_context  # noqa: PLC0415

        return server_context(self._keys)

    def permits(self, identities: tuple[str, ...]) -> bool:
        """Whether whoever proved these may watch and drain."""
        if not self._allowed:
            return bool(identities)
        return any(first_match(identities, pattern) is not None for pattern in self._allowed)

    def permits_watch(self, context: grpc.aio.ServicerContext[Any, Any]) -> bool:
        """Whether the peer of a call may watch. Without patterns every certificate of the authorities will do."""
        from engine.tls.grpc_credentials import auth_context_identities  # noqa: PLC0415

        return not self._allowed or self.permits(auth_context_identities(context.auth_context()))

    def validity_unix_s(self) -> tuple[float, float]:
        """From when until when the certificate holds."""
        return self._keys.pair.begins_unix_s, self._keys.pair.ends_unix_s

    async def run(self) -> None:
        """Look at the files until cancelled, so that trouble is told of before somebody connects."""
        while True:
            await asyncio.sleep(RELOAD_INTERVAL_S)
            self._keys.reload()


def engine_client_tls(files: TrustFiles) -> Callable[[], ClientTls]:
    """What to ask the engine by, as the files say from now on; ``AgentConfigError`` where they cannot be used."""
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
    """The flag that named the file which a problem begins with."""
    named = {files.certificate: "--engine-certificate", files.key: "--engine-key"}
    return next((flag for path, flag in named.items() if problem.startswith(f"{path}:")), "--engine-ca")


def _changed(pair: "KeyPair") -> None:
    _log.info("certificate.changed", subject=pair.subject, identities=pair.identities)


def _troubled(reason: str) -> None:
    _log.error("certificate.refused", reason=reason, effect="what was there before stays in use")
