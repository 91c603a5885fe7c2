"""Clocks and certificates of agents (as the server knows them) and engines (as they show them here)."""

import socket
import ssl
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cryptography import x509

from engine.tls.certificate_files import PARSE_ERRORS
from xds_server.admin_api.status_types import EngineStatus
from xds_server.diagnosis.check_result import Check, fail, ok, warn
from xds_server.diagnosis.file_problems import expiry_problem
from xds_server.diagnosis.process_checks import CLOCKS_MAY_DIFFER_S
from xds_server.model.text import names_text


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateValidity:
    """When a certificate begins and ends."""

    begins_unix_s: float
    ends_unix_s: float


def on_agents(engines: Sequence[EngineStatus], now_unix_s: float) -> Iterator[Check]:
    """Agents with clock skew to the server, and ending certificates; older agents report neither."""
    ahead = [(one, one.agent.clock_ahead_s) for one in engines if one.agent is not None]
    known = [(one, ahead_s) for one, ahead_s in ahead if ahead_s is not None]
    apart = [(one, ahead_s) for one, ahead_s in known if abs(ahead_s) > CLOCKS_MAY_DIFFER_S]
    for one, ahead_s in apart:
        way = "ahead of" if ahead_s > 0 else "behind"
        sentence = f"{abs(ahead_s):.0f} s {way} the server's clock when it connected"
        yield warn(f"clock of the agent of {_name(one)}", "SG232", sentence)
    if known and not apart:
        yield ok("clocks of agents", f"{len(known)} agree with the server")
    for one in engines:
        agent = one.agent
        if agent is None or not agent.connected:
            continue
        begins, until = agent.certificate_begins_unix_s, agent.certificate_ends_unix_s
        if begins is not None and until is not None:
            lasts = CertificateValidity(begins_unix_s=begins, ends_unix_s=until)
            yield from _on_end(f"certificate of the agent of {_name(one)}", lasts, now_unix_s)


def on_certificates(
    found: Iterable[tuple[EngineStatus, CertificateValidity | None]], now_unix_s: float
) -> Iterator[Check]:
    """Certificates that engines show; nothing for engines that show none."""
    seen = [(engine, shown) for engine, shown in found if shown is not None]
    troubles = [
        check
        for engine, shown in seen
        for check in _on_end(f"certificate of engine {_name(engine)}", shown, now_unix_s)
    ]
    yield from troubles
    if seen and not troubles:
        yield ok(
            "certificates of engines",
            f"seen at {names_text([_name(engine) for engine, _ in seen])}, none expires soon",
        )


def on_unexpected_tls(secure: Iterable[EngineStatus], by_tls: Collection[str]) -> Iterator[Check]:
    """Pools without ``tls`` whose engines speak TLS; ``by_tls`` are pools with it."""
    speaking: dict[str, list[str]] = {}
    for engine in secure:
        if engine.pool not in by_tls:
            speaking.setdefault(engine.pool, []).append(engine.engine)
    for pool, engines in speaking.items():
        yield fail(f"pool {pool}", "SG226", f"spec.tls is not set, but TLS is spoken by {names_text(engines)}")


def certificate_validity(host: str, port: int, timeout_s: float) -> CertificateValidity | None:
    """Validity of the certificate that a port shows; None where it speaks no TLS. It is not verified."""
    try:
        with (
            socket.create_connection((host, port), timeout=timeout_s) as plain,
            unverified_context().wrap_socket(plain, server_hostname=host) as secure,
        ):
            held = secure.getpeercert(binary_form=True)
        certificate = None if held is None else x509.load_der_x509_certificate(held)
    except (OSError, *PARSE_ERRORS):
        return None
    if certificate is None:
        return None
    return CertificateValidity(
        begins_unix_s=certificate.not_valid_before_utc.timestamp(),
        ends_unix_s=certificate.not_valid_after_utc.timestamp(),
    )


def unverified_context() -> ssl.SSLContext:
    """TLS without verification: to look at a certificate, never to send a secret."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _on_end(subject: str, lasts: CertificateValidity, now_unix_s: float) -> Iterator[Check]:
    for one in expiry_problem(
        "certificate", "", begins_unix_s=lasts.begins_unix_s, ends_unix_s=lasts.ends_unix_s, now_unix_s=now_unix_s
    ):
        ended = lasts.ends_unix_s <= now_unix_s
        yield (fail if ended else warn)(subject, "SG212" if ended else "SG211", one.sentence)
    if lasts.begins_unix_s > now_unix_s:
        begins = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(lasts.begins_unix_s))
        yield fail(subject, "SG232", f"valid only from {begins}, by this machine's clock")


def _name(engine: EngineStatus) -> str:
    return f"{engine.pool}/{engine.engine}"
