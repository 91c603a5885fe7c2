"""What the control loop is held to, cell by cell, and whether it got there. Pure.

Goodput within 1 point of what the allowed wait makes possible; latency of *all* answers within wait plus longest
service plus 10 %; little waste; bad engines quiet and recovered ones back within 1 s of the first observable sign.
Mixtures: goodput within 2 points, latency plus 30 %, nothing else. Checked for every set-up; binding for
Switchgear.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from benchmarks.failover.failover_experiment import ExperimentCell
from benchmarks.failover.prediction import Prediction
from chaos.measures.experiment_measures import ExperimentMeasures

GOODPUT_MARGIN: Final = 1.0
LIGHT_LOAD_PERCENT: Final = 50.0
LIGHT_LOAD_GOODPUT: Final = 99.5
ROUNDS_TO_ALL: Final = 99.95
"""Where everything could be served, everything has to be, to a tenth of a percent."""

LATENCY_FACTOR: Final = 1.1
MIXED_GOODPUT_MARGIN: Final = 2.0
MIXED_LATENCY_FACTOR: Final = 1.3
WASTE_S: Final[Mapping[str, float]] = MappingProxyType({"S1": 20.0, "S5": 10.0})
WASTE_ELSEWHERE_S: Final = 5.0
QUIET_S: Final = 1.0
BACK_S: Final = 1.0
FAIR_MARGIN: Final = 5.0
FROZEN: Final[Mapping[str, float]] = MappingProxyType(
    {"S1": 86.0, "S2": 100.0, "S3": 85.0, "S4": 99.0, "S5": 83.0, "S6": 100.0}
)
"""Goodput of a fixed ceiling (2 s of wait) at 80 % load, measured once."""

FROZEN_MARGIN: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCheck:
    """One target; ``kept`` is None if unknown."""

    what: str
    limit: str
    seen: str
    kept: bool | None


def checks(cell: ExperimentCell, measures: ExperimentMeasures, prediction: Prediction) -> list[TargetCheck]:
    """Every promise that is made for such a cell."""
    scenario, setting = cell.scenario, cell.setting
    base = scenario.name.rpartition("-")[2] if scenario.name.startswith(("dead-", "deaf-")) else scenario.name
    found = [_goodput(cell, base, measures, prediction)]
    if scenario.mixed:
        return [*found, *_latency(cell, measures, MIXED_LATENCY_FACTOR)]
    if not scenario.control_plane_dies:
        found += _latency(cell, measures, LATENCY_FACTOR)
        waste_s = WASTE_S.get(base, WASTE_ELSEWHERE_S) * setting.fault_s / 19.0
        found.append(_at_most("wasted in fault", measures.waste.wasted_s, waste_s, "s", digits=0))
        found += _speed(cell, measures)
    if len(measures.proxies) > 1:
        spread = max(measures.proxies.values()) - min(measures.proxies.values())
        found.append(_at_most("proxies apart", spread, FAIR_MARGIN, "points"))
    return found


def _goodput(cell: ExperimentCell, base: str, measures: ExperimentMeasures, prediction: Prediction) -> TargetCheck:
    seen = measures.both.goodput_percent
    possible = prediction.both_percent
    if cell.scenario.control_plane_dies and base in FROZEN:
        limit = FROZEN[base] - FROZEN_MARGIN
    elif possible >= ROUNDS_TO_ALL:
        light = cell.setting.load_percent <= LIGHT_LOAD_PERCENT
        limit = LIGHT_LOAD_GOODPUT if light else ROUNDS_TO_ALL
    else:
        limit = possible - (MIXED_GOODPUT_MARGIN if cell.scenario.mixed else GOODPUT_MARGIN)
    return TargetCheck(
        what="goodput fault+after",
        limit=f">= {limit:.1f} %",
        seen="-" if seen is None else f"{seen:.1f} %",
        kept=None if seen is None else seen >= limit,
    )


def _latency(cell: ExperimentCell, measures: ExperimentMeasures, factor: float) -> list[TargetCheck]:
    limit_s = factor * (cell.setting.max_wait_s + cell.setting.longest_service_s * cell.scenario.slowness)
    periods = (measures.fault, measures.after)
    good = [one.good_p99_s for one in periods if one.good_p99_s is not None]
    every = [one.all_p99_s for one in periods if one.all_p99_s is not None]
    return [
        _at_most("p99 of good answers", max(good, default=None), limit_s, "s", digits=2),
        _at_most("p99 of all answers", max(every, default=None), limit_s, "s", digits=2),
    ]


def _speed(cell: ExperimentCell, measures: ExperimentMeasures) -> list[TargetCheck]:
    """Detection counts from when the fault could be seen: an engine that answers nothing, or late, or wrongly,
    only shows it when an answer was due.
    """
    found = []
    slack = {"crash": 0.0, "error_after_work": cell.setting.mean_service_s}
    late = [
        None if one.quiet_s is None else one.quiet_s - slack.get(one.fault, cell.setting.longest_service_s)
        for one in measures.silences
    ]
    if late:
        worst = None if None in late else max(one for one in late if one is not None)
        found.append(_at_most("quiet after observable", worst, QUIET_S, "s", digits=2, none="never"))
    back = [one.back_s for one in measures.recoveries]
    if back:
        worst = None if None in back else max(one for one in back if one is not None)
        found.append(_at_most("traffic back", worst, BACK_S, "s", digits=2, none="never"))
    return found


def _at_most(
    what: str, seen: float | None, limit: float, unit: str, *, digits: int = 1, none: str = ""
) -> TargetCheck:
    """``none`` is the text for a missing value, which then misses the target; without it the check is unknown."""
    return TargetCheck(
        what=what,
        limit=f"<= {limit:.{digits}f} {unit}",
        seen=(none or "-") if seen is None else f"{seen:.{digits}f} {unit}",
        kept=(False if none else None) if seen is None else seen <= limit,
    )
