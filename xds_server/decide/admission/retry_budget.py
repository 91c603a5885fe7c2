"""One proxy's part of the retry budget of the fleet."""

from collections.abc import Mapping

from policies.resilience import ResilienceSpec
from xds_server.decide.decisions import DegradationState


def retry_budget(
    resilience: ResilienceSpec,
    total: int,
    proxies_by_role: Mapping[str, int],
    degradation: DegradationState | None,
    *,
    in_force: bool,
) -> tuple[float, int]:
    """One proxy's part of the retry budget: percentage, and how many are always allowed.

    A percentage of what each proxy has in flight adds up to the same percentage of the fleet; the number is
    divided, to one at least unless the fleet has none. A derived budget under a ceiling is as wide as the ceiling:
    what is cut off a hung engine is tried again all at once, when hardly anything else may be in flight, and each
    of those retries has to find a place under the ceiling anyway. Not where requests are hedged: Envoy has one
    budget for both.
    """
    budget = resilience.retry_budget
    percent = budget.percent_under_ceiling if in_force else budget.percent_without_ceiling
    if degradation is not None and degradation.retries_minimum:
        percent = 0.0
    elif in_force and budget.percent is None and not resilience.hedging.enabled:
        # The next power of two, for it is in the layer of every proxy, and the ceiling is the one that binds.
        return percent, 1 << (max(total, budget.min_concurrency) - 1).bit_length()
    whole = budget.min_concurrency
    return percent, max(1, whole // max(1, sum(proxies_by_role.values()))) if whole else 0
