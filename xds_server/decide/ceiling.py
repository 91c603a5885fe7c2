"""How much one proxy may have in flight to a pool: the static admission ceiling and its part of the retries.

A pool of ``S`` slots whose requests take ``s`` seconds serves ``S / s`` of them per second, so one that arrives
when ``S x (1 + W / s)`` are in flight waits about ``W``. Everything above is refused at once, which costs
nothing, instead of after a queue that costs the caller its deadline and the engine work nobody waits for.

Slots are the declared ones here. Where live capacity is known, the same formula takes those.
"""

import math
from collections.abc import Mapping
from typing import Final

from policies.model import PolicySet
from policies.pool import EnginePoolSpec
from policies.resilience import Limits, ResilienceSpec
from policies.route import PriorityClass
from xds_server.decide.decisions import Ceiling

GATEWAY: Final = "gateway"
SIDECAR: Final = "sidecar"


def classes_by_pool(policies: PolicySet) -> Mapping[str, frozenset[PriorityClass]]:
    """The priority classes whose routes lead to each pool, as target or as fallback."""
    classes: dict[str, set[PriorityClass]] = {}
    for route in policies.routes.values():
        reached = [share.pool for share in route.spec.pools]
        if route.spec.fallback is not None:
            reached.append(route.spec.fallback)
        for pool in reached:
            classes.setdefault(pool, set()).add(route.spec.priority)
    return {pool: frozenset(found) for pool, found in classes.items()}


def classes_in_use(policies: PolicySet, pool: str) -> frozenset[PriorityClass]:
    """The priority classes whose routes lead to ``pool``."""
    return classes_by_pool(policies).get(pool, frozenset())


def pool_ceiling(limits: Limits, service_time_s: float, slots: int) -> tuple[int, str]:
    """Requests in flight to a pool of ``slots`` that the limits allow, at least 1, and how that came about."""
    if limits.max_concurrent is not None:
        return limits.max_concurrent, f"maxConcurrent {limits.max_concurrent}"
    if limits.concurrent_per_slot is not None:
        allowed = slots * limits.concurrent_per_slot
        how = f"{slots} slots x {limits.concurrent_per_slot:g} per slot"
    else:
        allowed = slots * (1 + limits.max_wait / service_time_s)
        how = f"{slots} slots x (1 + {limits.max_wait:g} s wait / {service_time_s:g} s service)"
    return max(1, _up(allowed)), how


def ceiling(
    pool: EnginePoolSpec,
    resilience: ResilienceSpec,
    *,
    slots: int,
    classes: frozenset[PriorityClass],
    role: str,
    proxies_by_role: Mapping[str, int],
) -> Ceiling:
    """The ceiling of each proxy of ``role``.

    Gateways share the pool evenly. Each sidecar gets the whole ceiling: without knowing which of a thousand will
    ask, a thousandth each would refuse almost everyone. Theirs is a backstop against one caller, not a promise.
    A class gets its share only where the other class is in use too. All parts are rounded up, to 1 at least,
    but a share of 0 % is none.
    """
    total, how = pool_ceiling(resilience.limits, pool.service_time, slots)
    sharers = max(1, proxies_by_role.get(role, 0)) if role == GATEWAY else 1
    shares = resilience.limits.priorities
    both = len(classes) > 1
    interactive = total * shares.interactive.share_percent / 100 if both else total
    batch = total * shares.batch.share_percent / 100 if both else total
    reason = f"{total} in flight = {how}"
    if both:
        reason += f"; {shares.interactive.share_percent:g} % interactive, {shares.batch.share_percent:g} % batch"
    if sharers > 1:
        reason += f"; shared by {sharers} gateways"
    elif role != GATEWAY:
        reason += "; whole for each proxy of this role"
    return Ceiling(
        interactive=_up(interactive / sharers),
        batch=_up(batch / sharers),
        # A percentage of what each proxy has in flight adds up to the same percentage of the fleet.
        retry_percent=resilience.retry_budget.percent_under_ceiling,
        retry_min_concurrency=_retries_at_least(resilience, proxies_by_role),
        reason=reason,
    )


def _retries_at_least(resilience: ResilienceSpec, proxies_by_role: Mapping[str, int]) -> int:
    """One proxy's part of the retries that are always allowed: at least one, unless the fleet has none."""
    whole = resilience.retry_budget.min_concurrency
    return max(1, whole // max(1, sum(proxies_by_role.values()))) if whole else 0


def _up(amount: float) -> int:
    """Rounded up, forgiving the last digits of floating point."""
    return math.ceil(amount - 1e-9 * max(1.0, amount))
