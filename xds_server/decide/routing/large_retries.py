"""Whether large requests are retried: only while the pool has spare capacity.

A retry of a request for thousands of tokens repeats the work of dozens of short ones, which then wait. So above a
share of the slots in use its retries end, apart from those that no engine has seen; 10 points lower they begin
again. Which of the two holds is in the runtime layer, so routes do not move.

If utilization is unknown, only the number of retries bounds them.
"""

from typing import Final

from policies.resilience.retries import LargeRetries
from xds_server.decide.decisions import LargeRetryDecision
from xds_server.model.memo import reuse_equal

MARGIN_POINTS: Final = 10.0
"""Points below the limit that utilization must reach before retries begin again."""


def large_retries(
    policy: LargeRetries, before: LargeRetryDecision | None, *, utilization: float | None, shadow: bool
) -> LargeRetryDecision | None:
    """The decision now, the same object as before if nothing changed; None without a size of large requests.

    ``utilization`` as in ``AdmissionDecision``. In shadow mode they are retried.
    """
    if policy.tokens_above is None:
        return None
    was = None if before is None else before.shadow or before
    limit = policy.below_utilization_percent
    again = max(limit - MARGIN_POINTS, limit / 2)
    bound = again if was is not None and was.full else limit
    full = utilization is not None and 100 * utilization >= bound
    if was is not None and was.full is full:
        reason = was.reason  # numbers in a reason are from when it changed
    elif full:
        reason = f"off from {limit:g} % of slots in use, on again below {again:g} %"
    else:
        reason = f"on below {limit:g} % of slots in use"
    decision = LargeRetryDecision(full=full, reason=reason)
    if shadow:
        decision = LargeRetryDecision(full=False, reason=f"shadow mode, always on: {reason}", shadow=decision)
    return reuse_equal(before, decision)
