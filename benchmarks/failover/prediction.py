"""What a perfect admission ceiling would make of a scenario: the number that each measured one stands beside.

The fleet is one queue. It works off ``mu(t)`` requests per second, the capacity of the engines that are well,
and may hold ``mu(t) x W`` waiting ones; what arrives beyond that is shed. An engine counts as well again ``u``
after it is, because nobody knows sooner. For one fault of length T in which capacity is short this comes to

    goodput(fault)         = mu_f / lambda x (1 + W / T)
    goodput(fault + after) = 1 - [lambda (T + u) - mu_f (T + u + W)] / [lambda (T + A)]

Nothing here knows of detection, randomness or the caller's patience, all of which cost goodput; and a queue that
was full before the fault may be longer than W afterwards, which gives a little.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from benchmarks.failover.scenarios import Outage
from benchmarks.failover.setting import Setting
from chaos.fake_engine import ErrorAfterWork, Fault

RECOVERY_LAG_S: Final = 0.5
_WARM_UP_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Good answers per hundred requests that arrived in the window."""

    fault_percent: float
    both_percent: float


def predicted(setting: Setting, outages: Sequence[Outage]) -> Prediction:
    """For the outages of a plan, which count from the start of the fault window."""
    ends_s = {0.0, setting.fault_s, setting.fault_s + setting.after_s}
    for one in outages:
        ends_s |= {one.start_s, one.end_s + RECOVERY_LAG_S}
    edges = [-_WARM_UP_S, *sorted(at_s for at_s in ends_s if 0.0 <= at_s <= setting.fault_s + setting.after_s)]
    waiting = 0.0
    served = {"before": 0.0, "fault": 0.0, "after": 0.0}
    for start_s, end_s in pairwise(edges):
        capacity = _capacity_per_s(setting, outages, start_s)
        admitted, waiting = _stretch(
            setting.rate_per_s, capacity, capacity * setting.max_wait_s, waiting, end_s - start_s
        )
        served["before" if start_s < 0 else "fault" if start_s < setting.fault_s else "after"] += admitted
    offered = setting.rate_per_s
    return Prediction(
        fault_percent=100.0 * served["fault"] / (offered * setting.fault_s),
        both_percent=100.0 * (served["fault"] + served["after"]) / (offered * (setting.fault_s + setting.after_s)),
    )


def _stretch(offered: float, capacity: float, room: float, waiting: float, long_s: float) -> tuple[float, float]:
    """What is let in during ``long_s`` of one capacity, and how many wait at its end; at most ``room`` may."""
    if waiting > room:
        # A queue that was within its limit before capacity fell: nobody is let in until it is again.
        drained_s = min(long_s, (waiting - room) / capacity) if capacity else long_s
        waiting, long_s = waiting - capacity * drained_s, long_s - drained_s
    if offered <= capacity:
        return offered * long_s, max(0.0, waiting - (capacity - offered) * long_s)
    filling_s = min(long_s, (room - waiting) / (offered - capacity))
    full_s = long_s - filling_s
    return offered * filling_s + capacity * full_s, waiting + (offered - capacity) * filling_s


def _capacity_per_s(setting: Setting, outages: Sequence[Outage], at_s: float) -> float:
    left = dict.fromkeys(range(setting.engines), 1.0)
    for one in outages:
        if one.start_s <= at_s < one.end_s + RECOVERY_LAG_S:
            left[one.engine] = min(left[one.engine], _share_left(one.fault))
    return sum(share * setting.engine_capacity_per_s(engine) for engine, share in left.items())


def _share_left(fault: Fault) -> float:
    """Of a bad engine's capacity. A slow one has none: it is better left alone, and so is one that flaps."""
    return 1.0 - fault.share if isinstance(fault, ErrorAfterWork) else 0.0
