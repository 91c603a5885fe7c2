"""What a perfect admission ceiling would make of a scenario: the number that each measured one stands beside.

The fleet is one queue. It works off ``mu(t)`` requests per second, the capacity of the engines that are well,
and may hold ``mu(t) x W`` waiting ones; what arrives beyond that is shed. An engine counts as well again ``u``
after it is, because nobody knows sooner. For one fault of length T in which capacity is short this comes to

    goodput(fault)         = mu_f / lambda x (1 + W / T)
    goodput(fault + after) = 1 - [lambda (T + u) - mu_f (T + u + W)] / [lambda (T + A)]

Nothing here knows of detection, randomness or the caller's patience, all of which cost goodput; and a queue that
was full before the fault may be longer than W afterwards, which gives a little.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.failover.scenarios import Outage
from benchmarks.failover.setting import Setting
from chaos.fake_engine import ErrorAfterWork, Fault

RECOVERY_LAG_S: Final = 0.5
_STEP_S: Final = 0.005
_WARM_UP_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Good answers per hundred requests that arrived in the window."""

    fault_percent: float
    both_percent: float


def predicted(setting: Setting, outages: Sequence[Outage]) -> Prediction:
    """For the outages of a plan, which count from the start of the fault window."""
    waiting = 0.0
    arrived = {"fault": 0.0, "after": 0.0}
    served = dict(arrived)
    steps = math.ceil((_WARM_UP_S + setting.fault_s + setting.after_s) / _STEP_S)
    for step in range(steps):
        at_s = step * _STEP_S - _WARM_UP_S
        capacity = _capacity_per_s(setting, outages, at_s)
        come = setting.rate_per_s * _STEP_S
        room = max(0.0, capacity * setting.max_wait_s - waiting + capacity * _STEP_S)
        admitted = min(come, room)
        waiting = max(0.0, waiting + admitted - capacity * _STEP_S)
        if at_s >= 0:
            window = "fault" if at_s < setting.fault_s else "after"
            arrived[window] += come
            served[window] += admitted
    both = sum(arrived.values())
    return Prediction(
        fault_percent=100.0 * served["fault"] / arrived["fault"],
        both_percent=100.0 * sum(served.values()) / both,
    )


def _capacity_per_s(setting: Setting, outages: Sequence[Outage], at_s: float) -> float:
    left = dict.fromkeys(range(setting.engines), 1.0)
    for one in outages:
        if one.start_s <= at_s < one.end_s + RECOVERY_LAG_S:
            left[one.engine] = min(left[one.engine], _share_left(one.fault))
    return sum(share * setting.engine_capacity_per_s(engine) for engine, share in left.items())


def _share_left(fault: Fault) -> float:
    """Of a bad engine's capacity. A slow one has none: it is better left alone, and so is one that flaps."""
    return 1.0 - fault.share if isinstance(fault, ErrorAfterWork) else 0.0
