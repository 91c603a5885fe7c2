"""Effect of a change on a pool: lost engines, lost zone, more load, slower engines.

Compares the steady state of an M/M/c/K queue before and after; ``queueing`` lists its assumptions. The transition
(lost engines still receive requests, others take over) is not modelled.
"""

from dataclasses import dataclass, replace

from chaos.planning.error import PlanError
from chaos.planning.pool_situation import PoolSituation
from chaos.planning.queueing import queue_stats


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfChange:
    """Everything that happens at once. The engines with the highest throughput are lost first."""

    lose_engines: int = 0
    lose_zones: tuple[str, ...] = ()
    load_times: float = 1.0
    slower_times: float = 1.0

    @property
    def nothing(self) -> bool:
        """Whether this changes nothing."""
        return self == WhatIfChange()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOutcome:
    """Steady state of a pool. Shares are 0 to 1.

    ``in_flight`` follows Little's law and includes waiting requests. ``late`` is the share of admitted requests
    that wait longer than ``patience_s`` (default: the wait the admission limit allows). ``refused`` is the share
    shed. Waits are infinite when demand exceeds capacity and nothing is refused.
    """

    engines: int
    slots: float
    service_s: float
    arrivals_per_s: float
    pressure: float
    utilization: float
    in_flight: float
    waits: float
    late: float
    wait_mean_s: float
    refused: float
    answered_per_s: float


def changed_pool(situation: PoolSituation, change: WhatIfChange) -> PoolSituation:
    """Return the pool after the change; raise ``PlanError`` if the change is impossible."""
    if change.load_times < 0 or change.slower_times <= 0 or change.lose_engines < 0:
        raise PlanError("lost engines and load factor must not be negative; the slowdown factor must be above 0")
    unknown = sorted(set(change.lose_zones) - set(situation.zones))
    if unknown:
        raise PlanError(f"zone {unknown[0]!r} has no engine in rotation; zones: {', '.join(situation.zones)}")
    left = [one for one in situation.engines if one.zone not in change.lose_zones]
    most_first = sorted((one for one in left if one.up), key=lambda one: -one.slots / one.service_s)
    if change.lose_engines > len(most_first):
        raise PlanError(f"{change.lose_engines} engines cannot be lost: only {len(most_first)} are in rotation")
    lost = {one.name for one in most_first[: change.lose_engines]}
    return replace(
        situation,
        engines=tuple(
            replace(one, service_s=one.service_s * change.slower_times) for one in left if one.name not in lost
        ),
        arrivals_per_s=situation.arrivals_per_s * change.load_times,
    )


def pool_outcome(situation: PoolSituation, *, patience_s: float | None = None) -> PoolOutcome:
    """Compute the steady state; ``late`` uses ``patience_s``, or the wait the admission limit allows."""
    queue = situation.queue()
    if queue is None:
        return PoolOutcome(
            engines=0,
            slots=0,
            service_s=0,
            arrivals_per_s=situation.arrivals_per_s,
            pressure=float("inf"),
            utilization=0,
            in_flight=0,
            waits=0,
            late=0,
            wait_mean_s=0,
            refused=1,
            answered_per_s=0,
        )
    found = queue_stats(queue, patience_s=patience_s if patience_s is not None else situation.max_wait_s or 0.0)
    answered = min(queue.arrivals_per_s * (1 - found.refused), queue.servers / queue.service_s)
    return PoolOutcome(
        engines=len(situation.up),
        slots=situation.slots,
        service_s=situation.service_s,
        arrivals_per_s=queue.arrivals_per_s,
        pressure=queue.pressure,
        utilization=found.utilization,
        in_flight=found.in_flight,
        waits=found.waits,
        late=found.late,
        wait_mean_s=found.wait_mean_s,
        refused=found.refused,
        answered_per_s=answered,
    )
