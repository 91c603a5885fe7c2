"""Whether a pool keeps the objectives of its callers, in the steady state of its queue.

The latency at a percentile is the time without a wait, scaled by the service time, plus the wait at that
percentile. Long answers and long waits rarely coincide, so this is an upper estimate.
"""

from dataclasses import dataclass

from chaos.planning.pool_situation import PlannedObjective, PoolSituation
from chaos.planning.queueing import SlotQueue, queue_stats, wait_quantile
from policies.objectives import ObjectiveKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveOutlook:
    """One objective: expected share of good requests, or expected latency at the percentile ``target``.

    ``kept`` is None where the latency was not measured.
    """

    name: str
    target: float
    limit_s: float
    good: float | None = None
    expected_s: float | None = None
    kept: bool | None = None


def objective_outlooks(situation: PoolSituation) -> tuple[ObjectiveOutlook, ...]:
    """Every objective of the pool."""
    queue = situation.queue()
    return tuple(_outlook(one, queue) for one in situation.objectives)


def _outlook(one: PlannedObjective, queue: SlotQueue | None) -> ObjectiveOutlook:
    objective = one.objective
    good = expected_s = kept = None
    if objective.kind is ObjectiveKind.GOOD:
        good = 0.0 if queue is None else _answered(queue)
        kept = good >= objective.target
    elif one.served_s is not None and queue is not None:
        expected_s = one.served_s * queue.service_s / one.service_s + wait_quantile(queue, objective.target)
        kept = expected_s <= objective.limit_s
    return ObjectiveOutlook(
        name=one.name,
        target=objective.target,
        limit_s=objective.limit_s,
        good=good,
        expected_s=expected_s,
        kept=kept,
    )


def _answered(queue: SlotQueue) -> float:
    """Share of requests that get an answer; without an admission limit all that capacity allows."""
    if queue.room is None:
        return min(1.0, 1 / queue.pressure) if queue.pressure else 1.0
    return 1 - queue_stats(queue).refused
