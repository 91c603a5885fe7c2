"""Times in which no policy could answer every request of some pools in time. Pure.

The pools are one queue with the policies' longest wait, as in ``possible_goodput``. It is overloaded from its
first waiting request until it is empty again, if it must refuse one meanwhile.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from chaos.history.recorded_history import History
from chaos.measures.impairments import Impairment
from chaos.measures.possible_goodput import (
    CapacityStretch,
    arrivals_between,
    capacity_left,
    queue_states,
    stretch_edges_s,
)

SETTLE_S: Final = 2.0
"""Time after an overload to return engines and learn their speed again."""

SERVICES_BEFORE: Final = 3.0
"""Requests within this many mean service times before an overload may have been hit by it."""

_LEAST: Final = 1e-6
"""Requests: less is rounding."""


def overload_spans(
    history: History,
    troubles: Sequence[Impairment],
    arrivals_s: Sequence[float],
    capacities_per_s: Mapping[str, float],
    *,
    full_speed: bool = False,
) -> tuple[tuple[float, float], ...]:
    """Start and end of each overload of the engines in ``capacities_per_s``, in order; they may overlap.

    ``arrivals_s`` are the times of their requests, sorted. ``full_speed``: impaired engines count as lost, because
    their answers are slow or late.
    """
    stretches = tuple(
        CapacityStretch(
            start_s=start_s,
            end_s=end_s,
            offered_per_s=arrivals_between(arrivals_s, start_s, end_s) / (end_s - start_s),
            capacity_per_s=_capacity_per_s(capacity_left(troubles, start_s), capacities_per_s, full_speed),
        )
        for start_s, end_s in pairwise(stretch_edges_s(history, troubles))
    )
    before_s = SERVICES_BEFORE * history.began.service_s
    return tuple(
        (start_s - before_s, end_s + SETTLE_S) for start_s, end_s in _refusing(stretches, history.began.max_wait_s)
    )


def is_within(at_s: float, spans: Sequence[tuple[float, float]]) -> bool:
    """Whether one of the spans contains the time."""
    return any(start_s <= at_s < end_s for start_s, end_s in spans)


def _capacity_per_s(left: Mapping[str, float], full_per_s: Mapping[str, float], full_speed: bool) -> float:
    return sum(
        per_s * (share if share >= 1.0 or not full_speed else 0.0)
        for engine, per_s in full_per_s.items()
        for share in (left.get(engine, 1.0),)
    )


def _refusing(stretches: Sequence[CapacityStretch], max_wait_s: float) -> Iterator[tuple[float, float]]:
    """Busy periods of the queue with a refusal."""
    began_s: float | None = None
    refuses = False
    states = queue_states(stretches, max_wait_s)
    for one, (admitted, waiting) in zip(stretches, states, strict=True):
        offered = one.offered_per_s * (one.end_s - one.start_s)
        refused_now = offered - admitted > _LEAST
        if began_s is None and (refused_now or waiting > _LEAST):
            began_s, refuses = one.start_s, False
        if began_s is None:
            continue
        refuses = refuses or refused_now
        if waiting <= _LEAST and not refused_now:
            if refuses:
                yield began_s, one.end_s
            began_s = None
    if began_s is not None and refuses:
        yield began_s, stretches[-1].end_s
