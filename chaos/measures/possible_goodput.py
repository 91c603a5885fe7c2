"""Goodput possible with a perfect admission limit, as a reference for the measured goodput.

The fleet is one queue. It serves ``mu(t)`` requests per second, the capacity of healthy engines, and holds up to
``mu(t) x W`` waiting ones; further arrivals are shed. A healed engine counts after ``u``, the time to detect it.
For one fault of length T with too little capacity, an even load of lambda and an observation time A afterwards:

    goodput(fault)         = mu_f / lambda x (1 + W / T)
    goodput(fault + after) = 1 - [lambda (T + u) - mu_f (T + u + W)] / [lambda (T + A)]

The model ignores detection, randomness and deadlines, which cost goodput. A queue that was full before the fault
may be longer than W afterwards, which adds a little.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from chaos.faults.actions import FreezeProcess, KillProcess, ProcessRole
from chaos.faults.target_kind import TargetKind
from chaos.history.recorded_history import History
from chaos.measures.impairments import Impairment, fault_of_event, outages_of_target_kind
from chaos.measures.request_periods import questions
from chaos.measures.traffic_shift import capacities_per_s

RECOVERY_LAG_S: Final = 0.5
_STEP_S: Final = 0.5
"""Step for counting arrivals: shorter than any useful wait, longer than the gaps between arrivals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityStretch:
    """A period of constant load and capacity."""

    start_s: float
    end_s: float
    offered_per_s: float
    capacity_per_s: float


def admitted_requests(stretches: Iterable[CapacityStretch], max_wait_s: float) -> list[float]:
    """Requests admitted in each of these consecutive periods; the queue starts empty."""
    return [let_in for let_in, _ in queue_states(stretches, max_wait_s)]


def queue_states(stretches: Iterable[CapacityStretch], max_wait_s: float) -> Iterator[tuple[float, float]]:
    """Requests admitted in each of these consecutive periods, and those waiting at its end; it starts empty."""
    waiting = 0.0
    for one in stretches:
        let_in, waiting = _stretch(
            one.offered_per_s,
            one.capacity_per_s,
            one.capacity_per_s * max_wait_s,
            waiting,
            one.end_s - one.start_s,
        )
        yield let_in, waiting


def possible_goodput_percent(
    history: History, troubles: Sequence[Impairment], from_s: float, to_s: float
) -> float | None:
    """Possible good answers per 100 caller requests in the window, for the real arrivals.

    None without arrivals. Requests to a stopped proxy cannot succeed.
    """
    ordered = stretch_edges_s(history, troubles, from_s, to_s)
    blocked = stopped_proxies(history)
    asked = questions(history.requests)
    reachable = [
        one.at_s
        for one in asked
        if not any(proxy == one.proxy and start_s <= one.at_s < end_s for proxy, start_s, end_s in blocked)
    ]
    total = sum(from_s <= one.at_s < to_s for one in asked)
    stretches = [
        CapacityStretch(
            start_s=start_s,
            end_s=end_s,
            offered_per_s=arrivals_between(reachable, start_s, end_s) / (end_s - start_s),
            capacity_per_s=capacity_per_s(history, troubles, start_s),
        )
        for start_s, end_s in pairwise(ordered)
    ]
    let_in = sum(
        count
        for one, count in zip(stretches, admitted_requests(stretches, history.began.max_wait_s), strict=True)
        if from_s <= one.start_s < to_s
    )
    return 100.0 * let_in / total if total else None


def stretch_edges_s(history: History, troubles: Sequence[Impairment], *more_s: float) -> list[float]:
    """Times at which load or capacity may change, from start to end, in order; ``more_s`` are added."""
    edges = {0.0, history.end_s, *more_s}
    edges |= {_STEP_S * step for step in range(int(history.end_s / _STEP_S) + 1)}
    for trouble in troubles:
        edges |= {trouble.start_s, trouble.end_s + RECOVERY_LAG_S}
    return sorted(at_s for at_s in edges if 0.0 <= at_s <= history.end_s)


def stopped_proxies(history: History, least_share: float = 1.0) -> list[tuple[str, float, float]]:
    """Proxies that were dead, or stopped for at least this share of the time, with start and end."""
    found = []
    for outage in outages_of_target_kind(history, TargetKind.PROXIES):
        fault = fault_of_event(outage.fault)
        end_s = float("inf") if outage.end_s is None else outage.end_s
        for target in outage.targets:
            pulls = () if fault is None else fault.actions(target)
            if any(
                (isinstance(one, KillProcess) or (isinstance(one, FreezeProcess) and one.on_share >= least_share))
                and one.part is ProcessRole.PROXY
                for one in pulls
            ):
                found.append((target, outage.start_s, end_s))
    return found


def capacity_per_s(history: History, troubles: Sequence[Impairment], at_s: float) -> float:
    """Usable capacity of all engines at this time, in requests per second."""
    left = capacity_left(troubles, at_s)
    return sum(left.get(engine, 1.0) * per_s for engine, per_s in capacities_per_s(history).items())


def capacity_left(troubles: Iterable[Impairment], at_s: float) -> Mapping[str, float]:
    """Usable share of the capacity of each impaired engine at this time."""
    left: dict[str, float] = {}
    for one in troubles:
        # An engine cut from some proxies still serves the others.
        if one.proxies is None and one.start_s <= at_s < one.end_s + RECOVERY_LAG_S:
            left[one.engine] = min(left.get(one.engine, 1.0), one.nature.capacity_left)
    return left


def arrivals_between(ordered: Sequence[float], start_s: float, end_s: float) -> int:
    return bisect_left(ordered, end_s) - bisect_left(ordered, start_s)


def _stretch(offered: float, capacity: float, room: float, waiting: float, long_s: float) -> tuple[float, float]:
    """Requests admitted in ``long_s`` at one capacity, and the queue at its end (at most ``room``)."""
    if waiting > room:
        # Capacity fell below the queue's limit: admit nothing until the queue is within it again.
        drained_s = min(long_s, (waiting - room) / capacity) if capacity else long_s
        waiting, long_s = waiting - capacity * drained_s, long_s - drained_s
    if offered <= capacity:
        return offered * long_s, max(0.0, waiting - (capacity - offered) * long_s)
    filling_s = min(long_s, max(0.0, room - waiting) / (offered - capacity))
    full_s = long_s - filling_s
    return offered * filling_s + capacity * full_s, waiting + (offered - capacity) * filling_s
