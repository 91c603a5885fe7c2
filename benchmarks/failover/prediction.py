"""Goodput of a perfect admission ceiling, to compare measured ones with.

Computed by ``chaos.measures.possible_goodput``, with even load and the planned outages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from benchmarks.failover.experiment_setting import ExperimentSetting
from benchmarks.failover.failover_scenarios import EngineOutage
from chaos.fake_engine import EngineErrorAfterWork, EngineFault, EngineSlow
from chaos.measures.possible_goodput import RECOVERY_LAG_S, CapacityStretch, admitted_requests

USEFUL_SLOWNESS: Final = 4.0
"""A slower engine answers later (0.5 s x 5) than a wait of 2 s at a normal one would take."""

_WARM_UP_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Good answers per hundred requests that arrived in the window."""

    fault_percent: float
    both_percent: float


def predicted(setting: ExperimentSetting, outages: Sequence[EngineOutage]) -> Prediction:
    """For the outages of a plan, which count from the start of the fault window."""
    ends_s = {0.0, setting.fault_s, setting.fault_s + setting.after_s}
    for one in outages:
        ends_s |= {one.start_s, one.end_s + RECOVERY_LAG_S}
    edges = [-_WARM_UP_S, *sorted(at_s for at_s in ends_s if 0.0 <= at_s <= setting.fault_s + setting.after_s)]
    offered = setting.rate_per_s
    stretches = [
        CapacityStretch(
            start_s=start_s,
            end_s=end_s,
            offered_per_s=offered,
            capacity_per_s=_capacity_per_s(setting, outages, start_s),
        )
        for start_s, end_s in pairwise(edges)
    ]
    let_in = list(zip(stretches, admitted_requests(stretches, setting.max_wait_s), strict=True))
    fault = sum(count for one, count in let_in if 0.0 <= one.start_s < setting.fault_s)
    after = sum(count for one, count in let_in if one.start_s >= setting.fault_s)
    return Prediction(
        fault_percent=100.0 * fault / (offered * setting.fault_s),
        both_percent=100.0 * (fault + after) / (offered * (setting.fault_s + setting.after_s)),
    )


def share_left(fault: EngineFault) -> float:
    """Of a bad engine's capacity. A very slow one has none: it is better left alone, and so is one that flaps."""
    if isinstance(fault, EngineSlow) and fault.factor <= USEFUL_SLOWNESS:
        return 1 / fault.factor
    return 1.0 - fault.share if isinstance(fault, EngineErrorAfterWork) else 0.0


def _capacity_per_s(setting: ExperimentSetting, outages: Sequence[EngineOutage], at_s: float) -> float:
    left = dict.fromkeys(range(setting.engines), 1.0)
    for one in outages:
        if one.start_s <= at_s < one.end_s + RECOVERY_LAG_S:
            left[one.engine] = min(left[one.engine], share_left(one.fault))
    return sum(share * setting.engine_capacity_per_s(engine) for engine, share in left.items())
