"""What a change would do to a pool: engines lost, a zone lost, more load, slower engines; by formula.

The long run of an M/M/c/K queue before and after: see ``queueing`` for what that assumes. Nothing here knows the
minutes of change between the two, in which lost engines still get calls and others take over what they held.
"""

from dataclasses import dataclass, replace

from chaos.planning.error import PlanError
from chaos.planning.pool_situation import PoolSituation
from chaos.planning.queueing import queue_stats


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfChange:
    """What happens, all of it at once: the engines with most slots go first."""

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
    """How a pool does in the long run. Shares are 0 to 1.

    ``in_flight`` is Little's law's number, those that wait included. ``late`` is the share of admitted requests
    that wait longer than the ceiling allows, or than ``patience_s``; ``refused`` the share that is shed. Waits are
    infinite where more comes than can be served and nothing is refused.
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
    """The situation after the change; ``PlanError`` for one that cannot be made."""
    if change.load_times < 0 or change.slower_times <= 0 or change.lose_engines < 0:
        raise PlanError("load and slowness are factors above nothing, and engines lost are not negative")
    unknown = sorted(set(change.lose_zones) - set(situation.zones))
    if unknown:
        raise PlanError(
            f"no engine that is in stands in zone {unknown[0]!r}; there are {', '.join(situation.zones)}"
        )
    left = [one for one in situation.engines if one.zone not in change.lose_zones]
    most_first = sorted((one for one in left if one.up), key=lambda one: -one.slots / one.service_s)
    if change.lose_engines > len(most_first):
        raise PlanError(f"{change.lose_engines} engines cannot be lost: {len(most_first)} are in")
    lost = {one.name for one in most_first[: change.lose_engines]}
    return replace(
        situation,
        engines=tuple(
            replace(one, service_s=one.service_s * change.slower_times) for one in left if one.name not in lost
        ),
        arrivals_per_s=situation.arrivals_per_s * change.load_times,
    )


def pool_outcome(situation: PoolSituation, *, patience_s: float | None = None) -> PoolOutcome:
    """How the pool does; ``late`` is about ``patience_s``, or else about the wait that the ceiling allows."""
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
