"""How one attempt ended, from what Envoy's access log says of it: pure, and the same for everybody who asks.

What Envoy 1.40 was seen to write (``tests/with_envoy/telemetry/test_als_and_lrs_outcomes.py`` holds it to that):

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
hedged, and won all the same            200     UT request timeout        yes       success
full admission ceiling                  -       UO overflow               no        not sent
======================================  ======  ========================  ========  =========

A hedge is to Envoy a timeout of the first attempt, so where a route hedges a timeout says nothing. A route's own
limit looks like a caller who left; the listener's entry tells them apart (``request_outcome``).
"""

from collections.abc import Collection, Set
from enum import IntEnum
from typing import Final

RETRYABLE_CLIENT_ERRORS: Final = frozenset({408, 425, 429})
"""Of the 4xx, those with which an engine says not that the request is wrong, but that it comes at a wrong time: it
did ask for work."""


class AttemptOutcome(IntEnum):
    """What an attempt says of its engine; ``NOT_SENT`` reached none, ``UNDETERMINED`` is no news."""

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

_FAILED: Final = frozenset(
    {
        "upstream_connection_failure",
        "upstream_connection_termination",
        "upstream_remote_reset",
        "upstream_protocol_error",
        "stream_idle_timeout",
    }
)
"""Flags, by their names in Envoy's protocol, of engines that broke off or fell silent."""

_LIMITS_OF_THE_ROUTE: Final = frozenset({"response_timeout", "stream_idle_timeout"})
"""Details of requests that the route's ``timeout`` or ``idle_timeout`` ended; a try tells of its own limits."""


def attempt_outcome(
    code: int, flags: Set[str], *, complete: bool, count_statuses: Collection[int], hedged: bool
) -> AttemptOutcome:
    """The outcome of an attempt; ``code`` 0: no answer came, ``complete``: the whole answer did.

    ``count_statuses`` are the policy's, ``hedged`` says whether the route starts second tries.
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


def request_outcome(flags: Set[str], details: str, attempt: int) -> AttemptOutcome:
    """What a listener's entry adds: ``NOT_SENT``, ``FAILURE`` of the last attempt's engine, or nothing.

    ``attempt`` is how often the request was tried, 0: never. The time limit of a whole request is held against an
    engine only where there was no other. The attempt itself has been counted as neutral; it stays so.
    """
    if details in _LIMITS_OF_THE_ROUTE:
        alone = attempt <= 1 or details != "response_timeout"
        return AttemptOutcome.FAILURE if alone else AttemptOutcome.UNDETERMINED
    if _NO_CLUSTER in flags:
        # The pool is not there (yet): nobody's overload.
        return AttemptOutcome.UNDETERMINED
    if attempt == 0 or (NO_HOST in flags and attempt == 1):
        return AttemptOutcome.NOT_SENT
    return AttemptOutcome.UNDETERMINED
