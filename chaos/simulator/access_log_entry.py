"""Access log entries of a simulated proxy."""

from dataclasses import dataclass

from chaos.simulator.proxied_request import ProxiedRequest, UpstreamAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessLogEntry:
    """An access log entry of an attempt, or (``whole``) of a request with ``number`` attempts."""

    pool: str
    engine: str
    code: int
    flags: frozenset[str]
    complete: bool
    number: int
    batch: bool
    streaming: bool
    duration_s: float
    first_byte_s: float
    ended_s: float
    whole: bool = False
    details: str = ""


def attempt_entry(one: UpstreamAttempt, *, flags: frozenset[str], complete: bool, now_s: float) -> AccessLogEntry:
    """Entry of an attempt that ends now."""
    return AccessLogEntry(
        pool=one.pool,
        engine=one.engine,
        code=one.status,
        flags=flags,
        complete=complete,
        number=one.number,
        batch=one.ask.batch,
        streaming=one.ask.streaming,
        duration_s=now_s - one.started_s,
        first_byte_s=one.first_byte_s,
        ended_s=now_s,
    )


def answered_entry(pool: str, engine: str, status: int, *, now_s: float) -> AccessLogEntry:
    """Entry of a request that the engine answered at once with this status."""
    return AccessLogEntry(
        pool=pool,
        engine=engine,
        code=status,
        flags=frozenset(),
        complete=True,
        number=1,
        batch=False,
        streaming=False,
        duration_s=0.0,
        first_byte_s=0.0,
        ended_s=now_s,
    )


def request_entry(
    ask: ProxiedRequest, engine: str, *, flags: frozenset[str], details: str, now_s: float
) -> AccessLogEntry:
    """Entry of a request that the proxy ends now; ``engine`` had its last attempt, empty without one."""
    return AccessLogEntry(
        pool=ask.pool,
        engine=engine,
        code=0,
        flags=flags,
        complete=False,
        number=ask.made,
        batch=ask.batch,
        streaming=ask.streaming,
        duration_s=now_s - ask.began_s,
        first_byte_s=0.0,
        ended_s=now_s,
        whole=True,
        details=details,
    )
