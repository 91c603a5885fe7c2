"""Types of ``/v1/objectives``: objectives of routes and pools, as this replica measured them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

NO_CALLS: Final = "no-calls"
MET: Final = "met"
MISSED: Final = "missed"
BURNS_FAST: Final = "burns-fast"
BURNS_SLOWLY: Final = "burns-slowly"

OBJECTIVE_TROUBLES: Final = frozenset({MISSED, BURNS_FAST, BURNS_SLOWLY})


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveWindow:
    """Calls of the last minutes or hours; ``good_percent`` and ``burn_rate`` are None without calls.

    An objective for the time between tokens counts gaps between tokens instead.

    ``burn_rate`` is the share of bad calls over the error budget: 1 spends it exactly.
    """

    calls: float
    good_percent: float | None
    burn_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveStatus:
    """One objective of one route or pool; ``limit_s`` is the longest good call, None without a limit.

    ``pool`` is set for an objective of a pool, whose ``route`` is empty.

    ``windows`` by length: 5m, 30m, 1h, 6h. ``budget_left_percent`` of the last 6 h is negative if overspent, None
    without calls. ``measured_s``: how long this replica has measured, at most 6 h.

    ``state``: ``burns-fast`` and ``burns-slowly`` are the conditions of the alerts, ``missed`` is below its target
    over 1 h, ``met``, or ``no-calls`` over 1 h.
    """

    route: str
    objective: str
    pools: tuple[str, ...]
    target_percent: float
    limit_s: float | None
    state: str
    budget_left_percent: float | None
    measured_s: float
    windows: Mapping[str, ObjectiveWindow]
    pool: str = ""

    @property
    def name(self) -> str:
        """``ROUTE/OBJECTIVE`` or ``pool/POOL/OBJECTIVE``."""
        return f"{f'pool/{self.pool}' if self.pool else self.route}/{self.objective}"


def objective_sentence(one: ObjectiveStatus) -> str:
    """How the objective is met: share over 1 h, target, burn rate and budget left."""
    window, left = one.windows["1h"], one.budget_left_percent
    whose = f"pool {one.pool}" if one.pool else f"route {one.route}"
    name = f"{whose}, objective {one.objective}"
    if window.good_percent is None or window.burn_rate is None or left is None:
        return f"{name}: no calls in the last hour"
    limit = "" if one.limit_s is None else f" within {one.limit_s:g} s"
    calls = "gaps" if one.objective.startswith("between-tokens") else "calls"
    return (
        f"{name}: {window.good_percent:.4g} % of {calls}{limit} over 1 h, target {one.target_percent:g} %; "
        f"burn rate {window.burn_rate:.1f}, {left:.0f} % of the error budget of 6 h left"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveList:
    """Every objective of every route and pool."""

    objectives: tuple[ObjectiveStatus, ...]
