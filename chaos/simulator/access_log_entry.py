"""A line of a simulated proxy's access log."""

from dataclasses import dataclass

from chaos.simulator.proxied_request import ProxiedRequest, UpstreamAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessLogEntry:
    """A line of the access log, of a try or (``whole``) of a request that was tried ``number`` times."""

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
    """A try that has ended now."""
    return AccessLogEntry(
        pool=one.ask.pool,
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


def request_entry(
    ask: ProxiedRequest, engine: str, *, flags: frozenset[str], details: str, now_s: float
) -> AccessLogEntry:
    """A request that the proxy itself ended now; ``engine`` had its last try, empty where none had."""
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
