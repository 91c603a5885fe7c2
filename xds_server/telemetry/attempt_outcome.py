"""The outcome of one attempt, from Envoy's access log. Pure.

What Envoy 1.40 writes (checked by ``tests/with_envoy/telemetry/test_als_and_lrs_outcomes.py``):

======================================  ======  ========================  ========  =========
what happened                           code    flag                      complete  outcome
======================================  ======  ========================  ========  =========
answered                                200     -                         yes       success
500 after the work                      500     -                         yes       failure
shed by the engine                      503     -                         yes       neutral
429, other 4xx                          4xx     -                         yes       neutral
connection refused                      -       UF connection failure     no        failure
reset or closed before headers          -       UC connection ended       no        failure
rubbish instead of an answer            -       UPE protocol error        no        failure
reset in mid-stream                     200     UPE protocol error        no        failure
per_try_timeout                         -       UT request timeout        no        failure
per_try_idle_timeout, before headers    -       SI stream idle            no        failure
per_try_idle_timeout, silent stream     200     SI stream idle            no        failure
caller left                             - / 200 -                         no        neutral
route's own time limit                  - / 200 -                         no        neutral
hedged, and the other one won           -       UT or none                no        neutral
hedged, but still won                   200     UT request timeout        yes       success
full admission ceiling                  -       UO overflow               no        not sent
======================================  ======  ========================  ========  =========

Envoy treats a hedge as a timeout of the first attempt, so on a route with hedging a timeout proves nothing. A
route's own limit looks like a caller who left; the listener's entry distinguishes them (``request_outcome``).
"""

from collections.abc import Collection, Set
from enum import IntEnum
from typing import Final

from xds_server.model.pool_traffic import DeadlineResult
from xds_server.translate.deadlines import DEADLINE_KIND

RETRYABLE_CLIENT_ERRORS: Final = frozenset({408, 425, 429})
"""4xx statuses by which an engine refuses the time, not the request: it does count as demand."""


class AttemptOutcome(IntEnum):
    """What an attempt proves about its engine; ``NOT_SENT`` reached none, ``UNDETERMINED`` proves nothing."""

    SUCCESS = 0
    FAILURE = 1
    NEUTRAL = 2
    NOT_SENT = 3
    UNDETERMINED = 4


NO_FLAGS: Final[frozenset[str]] = frozenset()

OVERFLOW: Final = "upstream_overflow"
NO_HOST: Final = "no_healthy_upstream"
TIMEOUT: Final = "upstream_request_timeout"
_NO_CLUSTER: Final = "no_cluster_found"
_NOT_AUTHORIZED: Final = "unauthorized_details"
"""The authorization service refused the request, or could not be asked; the pool has nothing to do with it."""

_FAILED: Final = frozenset(
    {
        "upstream_connection_failure",
        "upstream_connection_termination",
        "upstream_remote_reset",
        "upstream_protocol_error",
        "stream_idle_timeout",
    }
)
"""Response flags of engines that broke off or fell silent, by their protobuf names."""

_LIMITS_OF_THE_ROUTE: Final = frozenset({"response_timeout", "stream_idle_timeout"})
"""Details of requests that the route's ``timeout`` or ``idle_timeout`` ended; tries have limits of their own."""


def attempt_outcome(
    code: int, flags: Set[str], *, complete: bool, count_statuses: Collection[int], hedged: bool
) -> AttemptOutcome:
    """The outcome of an attempt; ``code`` 0: no response, ``complete``: the whole response arrived.

    ``count_statuses`` are the policy's, ``hedged`` says whether the route hedges.
    """
    if flags and not complete:
        if OVERFLOW in flags and code == 0:
            return AttemptOutcome.NOT_SENT
        if TIMEOUT in flags and hedged:
            return AttemptOutcome.NEUTRAL
        if TIMEOUT in flags or not _FAILED.isdisjoint(flags):
            return AttemptOutcome.FAILURE
    if code in count_statuses:
        return AttemptOutcome.FAILURE
    return AttemptOutcome.SUCCESS if complete and 200 <= code < 400 else AttemptOutcome.NEUTRAL


DEADLINE_EXPIRED: Final = "max_duration_timeout"
"""Details of a request that its deadline ended, or the total time limit of a stream."""


def deadline_result(route: str, details: str) -> DeadlineResult | None:
    """What a deadline did to a request that the listener reports; ``route`` is the name of the Envoy route.

    Listeners report expired time limits of this kind only for requests with a deadline.
    """
    if route.partition("/")[2].startswith(f"{DEADLINE_KIND}/"):
        return DeadlineResult.REFUSED
    return DeadlineResult.EXPIRED if details == DEADLINE_EXPIRED else None


def request_outcome(flags: Set[str], details: str, attempt: int) -> AttemptOutcome:
    """What a listener's entry adds: ``NOT_SENT``, ``FAILURE`` of the last attempt's engine, or nothing.

    ``attempt`` is the number of tries, 0: none. The time limit of a whole request counts against an engine only if
    it was the only one tried. The attempt was already counted as neutral; that stays.
    """
    if details in _LIMITS_OF_THE_ROUTE:
        alone = attempt <= 1 or details != "response_timeout"
        return AttemptOutcome.FAILURE if alone else AttemptOutcome.UNDETERMINED
    if _NOT_AUTHORIZED in flags:
        return AttemptOutcome.UNDETERMINED
    if _NO_CLUSTER in flags:
        # The pool does not exist (yet), so this is not overload.
        return AttemptOutcome.UNDETERMINED
    if attempt == 0 or (NO_HOST in flags and attempt == 1):
        return AttemptOutcome.NOT_SENT
    return AttemptOutcome.UNDETERMINED
