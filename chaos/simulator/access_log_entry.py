"""Access log entries of a simulated proxy."""

from dataclasses import dataclass, field

from chaos.simulator.header_rules import NO_HEADERS, Headers
from chaos.simulator.proxied_request import ProxiedRequest, UpstreamAttempt
from xds_server.model.pool_traffic import DeadlineResult
from xds_server.telemetry.attempt_outcome import DEADLINE_EXPIRED
from xds_server.telemetry.tenant_counts import QuotaResult


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessLogEntry:
    """An access log entry of an attempt, or (``whole``) of a request with ``number`` attempts.

    ``prefiller``: whether the attempt named a prefill engine; ``prefillable``: whether its prompt is long enough.
    ``limit``: what refused the request because of its
    caller. ``late``: what its deadline did to it.
    """

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
    headers: Headers = field(default_factory=lambda: NO_HEADERS)
    limit: QuotaResult | None = None
    late: DeadlineResult | None = None
    prefiller: bool = False
    prefillable: bool = True


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
        headers=one.ask.headers,
        prefiller=one.named,
        prefillable=one.ask.prompt_tokens > one.ask.rules.prefill_above,
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
        headers=ask.headers,
        late=DeadlineResult.EXPIRED if ask.hurried and details == DEADLINE_EXPIRED else None,
    )


def refused_entry(
    pool: str,
    headers: Headers,
    *,
    limit: QuotaResult | None = None,
    late: DeadlineResult | None = None,
    now_s: float,
) -> AccessLogEntry:
    """Entry of a request to this pool that was refused before any attempt, because of its caller or deadline.

    ``pool`` is empty where none was chosen yet.
    """
    return AccessLogEntry(
        pool=pool,
        engine="",
        code=0,
        flags=frozenset(),
        complete=False,
        number=0,
        batch=False,
        streaming=False,
        duration_s=0.0,
        first_byte_s=0.0,
        ended_s=now_s,
        whole=True,
        headers=headers,
        limit=limit,
        late=late,
    )
