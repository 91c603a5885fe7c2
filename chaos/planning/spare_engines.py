"""How many spares: the smallest k with at least ``need`` of ``need + k`` engines up, often enough.

Engines fail alone here, each down for the same share of time: the number that is down is binomial. What is
computed is the small probability of being short, by the survival function of the binomial distribution (a
regularized incomplete beta function), which keeps its relative precision where the sum of its terms, or one
minus it, does not.

Failures together are in ``correlated``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from scipy.stats import binom

from chaos.planning.availability import HOURS_PER_MONTH
from chaos.planning.error import PlanError

MOST_ENGINES: Final = 10_000_000
"""More than any fleet; a search that gets here was asked for something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareEngines:
    """``spares`` more engines than needed, how likely it is to be short then, and what they cost.

    ``allowed`` is the probability of being short that was asked for; None where none was. Costs are per month, of
    the spares alone, None where no price was given.
    """

    need: int
    spares: int
    short: float
    allowed: float | None = None
    cost_per_month: float | None = None

    @property
    def attained(self) -> float:
        """Probability that enough engines are up; rounds to 1.0 where ``shortage_probability`` is below a float's
        resolution.
        """
        return 1.0 - self.short

    @property
    def kept(self) -> bool:
        """Whether this is as good as was asked for."""
        return self.allowed is None or self.short <= self.allowed


def shortage_probability(need: int, spares: int, down: float) -> float:
    """Probability that fewer than ``need`` of ``need + spares`` engines are up, each down with ``down``."""
    _judge(need, down)
    if spares < 0:
        raise PlanError(f"spares {spares}: there cannot be fewer than none")
    return float(binom.sf(spares, need + spares, down))


def fewest_spares(need: int, down: float, allowed: float) -> int:
    """The smallest number of spares with ``shortage_probability`` at most ``allowed``; ``PlanError`` where there
    is none.
    """
    _judge(need, down)
    if not 0 <= allowed <= 1:
        raise PlanError(f"target {1 - allowed:g}: a probability lies between 0 and 1")
    if allowed == 0 and down > 0:
        raise PlanError("a target of 1 cannot be reached: any number of engines can be down at once")
    if down >= 1 and allowed < 1:
        raise PlanError("an availability of 0 cannot reach any target: such engines are never up")
    return fewest_satisfying(lambda spares: shortage_probability(need, spares, down) <= allowed, most=MOST_ENGINES)


def fewest_satisfying(enough: Callable[[int], bool], *, most: int) -> int:
    """The smallest number for which ``enough`` holds, which must go on holding; ``PlanError`` above ``most``."""
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
    """The answer for each target, given as the probability of being short that is allowed."""
    if cost_per_hour is not None and cost_per_hour < 0:
        raise PlanError(f"cost {cost_per_hour:g}: an engine cannot cost less than nothing")
    return tuple(
        _spares(need, fewest_spares(need, down, allowed), down, allowed, cost_per_hour) for allowed in targets
    )


def spares_steps(
    need: int, down: float, most: int, *, cost_per_hour: float | None = None
) -> tuple[SpareEngines, ...]:
    """What 0, 1, ... ``most`` spares give: what each further one buys."""
    return tuple(_spares(need, spares, down, None, cost_per_hour) for spares in range(most + 1))


def monthly_cost(cost_per_hour: float | None, engines: int) -> float | None:
    """What so many engines cost in a month of 730 hours; None without a price."""
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
        raise PlanError(f"need {need}: at least one engine must be needed")
    if need > MOST_ENGINES:
        raise PlanError(f"need {need}: more than {MOST_ENGINES} engines cannot be planned here")
    if not 0 <= down <= 1:
        raise PlanError(f"availability {1 - down:g}: a probability lies between 0 and 1")
