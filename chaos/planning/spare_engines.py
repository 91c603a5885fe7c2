"""Spares: the smallest k so that ``need`` of ``need + k`` engines are up with the target probability.

Engines fail independently with the same down share, so the number down is binomial. The shortage probability uses
the binomial survival function (a regularized incomplete beta function): it keeps its relative precision, unlike a
sum of terms or one minus it.

``correlated_failures`` covers engines that fail together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from scipy.stats import binom

from chaos.planning.availability import HOURS_PER_MONTH
from chaos.planning.error import PlanError

MOST_ENGINES: Final = 10_000_000
"""Bound of the search; above any fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareEngines:
    """A number of spares, its shortage probability and its cost.

    ``allowed`` is the target shortage probability; None without a target. Costs cover the spares for one month;
    None without a price.
    """

    need: int
    spares: int
    short: float
    allowed: float | None = None
    cost_per_month: float | None = None

    @property
    def attained(self) -> float:
        """Probability that enough engines are up; rounds to 1.0 below float resolution."""
        return 1.0 - self.short

    @property
    def kept(self) -> bool:
        """Whether the target is met."""
        return self.allowed is None or self.short <= self.allowed


def shortage_probability(need: int, spares: int, down: float) -> float:
    """Probability that fewer than ``need`` of ``need + spares`` engines are up, each with down share ``down``."""
    _judge(need, down)
    if spares < 0:
        raise PlanError(f"spares {spares}: must not be negative")
    return float(binom.sf(spares, need + spares, down))


def fewest_spares(need: int, down: float, allowed: float) -> int:
    """Fewest spares with ``shortage_probability`` at most ``allowed``; ``PlanError`` if none suffices."""
    _judge(need, down)
    if not 0 <= allowed <= 1:
        raise PlanError(f"target {1 - allowed:g}: must be 0 to 1")
    if allowed == 0 and down > 0:
        raise PlanError("a target of 1 is unreachable: all engines can be down at once")
    if down >= 1 and allowed < 1:
        raise PlanError("an availability of 0 reaches no target: the engines are never up")
    return fewest_satisfying(lambda spares: shortage_probability(need, spares, down) <= allowed, most=MOST_ENGINES)


def fewest_satisfying(enough: Callable[[int], bool], *, most: int) -> int:
    """Smallest number for which the monotone ``enough`` holds; ``PlanError`` above ``most``."""
    if enough(0):
        return 0
    low, high = 0, 1
    while not enough(high):
        if high >= most:
            raise PlanError(f"not even {most} spares are enough")
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def spares_for(
    need: int, down: float, targets: Sequence[float], *, cost_per_hour: float | None = None
) -> tuple[SpareEngines, ...]:
    """Spares for each target, given as allowed shortage probability."""
    if cost_per_hour is not None and cost_per_hour < 0:
        raise PlanError(f"cost {cost_per_hour:g}: must not be negative")
    return tuple(
        _spares(need, fewest_spares(need, down, allowed), down, allowed, cost_per_hour) for allowed in targets
    )


def spares_steps(
    need: int, down: float, most: int, *, cost_per_hour: float | None = None
) -> tuple[SpareEngines, ...]:
    """Shortage probability for 0, 1, ... ``most`` spares."""
    return tuple(_spares(need, spares, down, None, cost_per_hour) for spares in range(most + 1))


def monthly_cost(cost_per_hour: float | None, engines: int) -> float | None:
    """Cost of the engines in a month of 730 hours; None without a price."""
    return None if cost_per_hour is None else cost_per_hour * engines * HOURS_PER_MONTH


def _spares(
    need: int, spares: int, down: float, allowed: float | None, cost_per_hour: float | None
) -> SpareEngines:
    return SpareEngines(
        need=need,
        spares=spares,
        short=shortage_probability(need, spares, down),
        allowed=allowed,
        cost_per_month=monthly_cost(cost_per_hour, spares),
    )


def _judge(need: int, down: float) -> None:
    if need < 1:
        raise PlanError(f"need {need}: must be at least one")
    if need > MOST_ENGINES:
        raise PlanError(f"need {need}: the limit is {MOST_ENGINES} engines")
    if not 0 <= down <= 1:
        raise PlanError(f"availability {1 - down:g}: must be 0 to 1")
