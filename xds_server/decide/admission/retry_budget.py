"""One proxy's part of the fleet's retry budget."""

from collections.abc import Mapping
from typing import Final

from policies.resilience import ResilienceSpec
from xds_server.decide.decisions import DegradationState

_CROWDED_SHARE: Final = 0.005
"""Retries in flight per place under the ceiling of a crowded pool, at least 1. In eight restarts one after
another at 110 % load, 1 % still let p99 exceed the promised wait with one seed of six."""


def retry_budget(
    resilience: ResilienceSpec,
    total: int,
    proxies_by_role: Mapping[str, int],
    degradation: DegradationState | None,
    *,
    in_force: bool,
    crowded: bool = False,
) -> tuple[float, int]:
    """One proxy's part of the retry budget: percentage, and the number always allowed.

    The same percentage of each proxy's requests in flight is that percentage of the fleet; the number is divided,
    at least one unless the fleet has none. A derived budget under a ceiling is as large as the ceiling: requests
    cut off a hung engine are retried all at once, when hardly anything else may be in flight, and each of those
    retries needs a place under the ceiling anyway. With hedging it is not: Envoy has one budget for both.

    From degradation level 1 on only the number is allowed. Under a ceiling a share is added: a retry costs no more
    than the new request that it displaces, and without it the errors of engines that fail reach callers. In a
    ``crowded`` pool each retry does displace one, and waits for the second time. There a derived budget is a small
    part of the ceiling, too few retries to move the 99th percentile.
    """
    budget = resilience.retry_budget
    percent = budget.percent_under_ceiling if in_force else budget.percent_without_ceiling
    whole = budget.min_concurrency
    if degradation is not None and degradation.retries_minimum:
        percent = min(percent, budget.percent_without_ceiling) if in_force else 0.0
        if in_force and crowded and budget.percent is None:
            percent, whole = 0.0, min(whole, max(1, int(total * _CROWDED_SHARE)))
    elif in_force and budget.percent is None and not resilience.hedging.enabled:
        # The next power of two: it is in the layer of every proxy, and the ceiling is the effective limit.
        return percent, 1 << (max(total, budget.min_concurrency) - 1).bit_length()
    return percent, max(1, whole // max(1, sum(proxies_by_role.values()))) if whole else 0
