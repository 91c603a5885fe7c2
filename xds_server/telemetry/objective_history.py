"""Objectives over the last minutes and hours: good share, burn rate, error budget left.

Counts since the start are sampled, finely for 5 minutes and coarsely for 6 hours; a window is the difference from
the sample before it. Only changes are stored. A younger server covers the time since its start. Prometheus has the
same counts of all replicas, over a restart, too.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from policies.objectives import FAST_BURN, SLOW_BURN, BurnAlert, Objective
from xds_server.admin_api.objective_types import (
    BURNS_FAST,
    BURNS_SLOWLY,
    MET,
    MISSED,
    NO_CALLS,
    ObjectiveStatus,
    ObjectiveWindow,
)

WINDOWS_S: Final = {"5m": 300.0, "30m": 1800.0, "1h": 3600.0, "6h": 21_600.0}
_FINE_S: Final = 10.0
_COARSE_S: Final = 120.0
_FINE_FOR_S: Final = WINDOWS_S["5m"]
_COARSE_FOR_S: Final = WINDOWS_S["6h"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveTotals:
    """Calls of one objective of a route to all its pools, or of a pool, since the start; ``good`` of ``calls``."""

    objective: Objective
    pools: tuple[str, ...]
    calls: float
    good: float


ObjectiveKey = tuple[str, str, str]
"""Pool, route and objective; of pool and route one is empty."""

_Sample = tuple[float, float, float]
"""Time, calls, good calls."""


class _Samples:
    """Samples of one objective, oldest first."""

    __slots__ = ("coarse", "fine", "objective", "since_s")

    def __init__(self, objective: Objective, now_s: float) -> None:
        self.objective = objective
        self.since_s = now_s
        self.fine: deque[_Sample] = deque([(now_s, 0.0, 0.0)])
        self.coarse: deque[_Sample] = deque(self.fine)

    def add(self, now_s: float, calls: float, good: float) -> None:
        """Store the counts, if they changed and it is time."""
        for samples, step_s, for_s in (
            (self.fine, _FINE_S, _FINE_FOR_S),
            (self.coarse, _COARSE_S, _COARSE_FOR_S),
        ):
            at_s, *newest = samples[-1]
            if newest != [calls, good] and now_s - at_s >= step_s:
                samples.append((now_s, calls, good))
            # One sample from before the window stays: the window begins with it.
            while len(samples) > 1 and samples[1][0] <= now_s - for_s:
                samples.popleft()

    def before(self, at_s: float) -> _Sample:
        """The newest sample that is not after ``at_s``, or the oldest one."""
        for samples in (self.fine, self.coarse):
            found = next((one for one in reversed(samples) if one[0] <= at_s), None)
            if found is not None:
                return found
        return self.coarse[0]


class ObjectiveHistory:
    """Samples of all objectives."""

    def __init__(self) -> None:
        self._samples: dict[ObjectiveKey, _Samples] = {}

    def sample(self, totals: Mapping[ObjectiveKey, ObjectiveTotals], now_s: float) -> None:
        """Take these counts; call it every few seconds."""
        for key in [key for key in self._samples if key not in totals]:
            del self._samples[key]
        for key, total in totals.items():
            known = self._samples.get(key)
            # Counts fall when objectives or pools of a route change.
            if known is None or known.objective != total.objective or total.calls < known.fine[-1][1]:
                known = self._samples[key] = _Samples(total.objective, now_s)
            known.add(now_s, total.calls, total.good)

    def statuses(self, totals: Mapping[ObjectiveKey, ObjectiveTotals], now_s: float) -> Iterator[ObjectiveStatus]:
        """Every objective now, those of routes first."""
        self.sample(totals, now_s)
        for (pool, route, name), total in sorted(totals.items()):
            samples = self._samples[pool, route, name]
            windows = {
                window: _window(samples.before(now_s - length_s), total) for window, length_s in WINDOWS_S.items()
            }
            spent = windows["6h"].burn_rate
            yield ObjectiveStatus(
                route=route,
                pool=pool,
                objective=name,
                pools=total.pools,
                target_percent=round(100 * total.objective.target, 6),
                limit_s=total.objective.limit_s or None,
                state=_state(windows),
                budget_left_percent=None if spent is None else round(100 * (1 - spent), 2),
                measured_s=round(min(now_s - samples.since_s, _COARSE_FOR_S), 3),
                windows=windows,
            )


def _window(before: _Sample, total: ObjectiveTotals) -> ObjectiveWindow:
    calls, good = total.calls - before[1], total.good - before[2]
    if calls <= 0:
        return ObjectiveWindow(calls=0.0, good_percent=None, burn_rate=None)
    # A retry can succeed after the window in which its request was counted.
    share = min(1.0, max(0.0, good / calls))
    burn_rate = (1 - share) / (1 - total.objective.target)
    return ObjectiveWindow(
        calls=round(calls, 3), good_percent=round(100 * share, 4), burn_rate=round(burn_rate, 4)
    )


def _state(windows: Mapping[str, ObjectiveWindow]) -> str:
    if _burns(windows, FAST_BURN):
        return BURNS_FAST
    if _burns(windows, SLOW_BURN):
        return BURNS_SLOWLY
    burn_rate = windows["1h"].burn_rate
    if burn_rate is None:
        return NO_CALLS
    return MISSED if burn_rate > 1 else MET


def _burns(windows: Mapping[str, ObjectiveWindow], alert: BurnAlert) -> bool:
    rates = (windows[alert.long].burn_rate, windows[alert.short].burn_rate)
    return all(rate is not None and rate > alert.factor for rate in rates)
