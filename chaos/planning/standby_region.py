"""A second region that stands by, beside more spares in the first.

A region as a whole is down for a share of time, and no number of spares in it helps then. A second region with its
own ``need + k`` engines does, after a failover that takes its time whenever the first goes. Failover is for the
loss of the region: one that is short of a few engines keeps its traffic. The two fail independently here; what
takes both (a bad model build pushed everywhere, the thing in front of both) is not in it.
"""

from dataclasses import dataclass

from chaos.planning.error import PlanError
from chaos.planning.spare_engines import MOST_ENGINES, fewest_satisfying, fewest_spares, monthly_cost
from chaos.planning.spare_engines import shortage_probability as short_within


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionOutage:
    """What a region does: down for this share of time, for so long each time, and how long a failover takes."""

    region_down: float
    region_repair_s: float
    failover_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyComparison:
    """The two ways to one target.

    ``spares`` is for one region, None where no number is enough; ``each`` for each of two, None likewise. Costs
    are of all that is above ``need`` engines: spares, or spares and a whole second region. ``verdict`` says
    which wins.
    """

    allowed: float
    spares: int | None
    short: float | None
    cost_per_month: float | None
    each: int | None
    short_with_standby: float | None
    standby_cost_per_month: float | None
    standby_wins: bool
    verdict: str


def standby_comparison(
    need: int, down: float, allowed: float, regions: RegionOutage, *, cost_per_hour: float | None = None
) -> StandbyComparison:
    """One region with more spares beside two regions, for this probability of being short."""
    _judge(regions)
    spares = _alone(need, down, allowed, regions)
    each = _with_standby(need, down, allowed, regions)
    more_with_standby = None if each is None else need + 2 * each
    wins = each is not None and (spares is None or need + 2 * each < spares)
    return StandbyComparison(
        allowed=allowed,
        spares=spares,
        short=None if spares is None else _short_alone(need, spares, down, regions),
        cost_per_month=None if spares is None else monthly_cost(cost_per_hour, spares),
        each=each,
        short_with_standby=None if each is None else _short_with_standby(need, each, down, regions),
        standby_cost_per_month=None
        if more_with_standby is None
        else monthly_cost(cost_per_hour, more_with_standby),
        standby_wins=wins,
        verdict=_verdict(spares, each, need, allowed, regions),
    )


def _verdict(spares: int | None, each: int | None, need: int, allowed: float, regions: RegionOutage) -> str:
    if spares is None and each is None:
        return (
            f"neither: a region is down {regions.region_down:.3g} of the time, and failovers alone take "
            f"{_switching(regions):.3g}"
        )
    if spares is None:
        return (
            f"standby: a region as a whole is down {regions.region_down:.3g} of the time, more than the "
            f"{allowed:.3g} allowed, and no number of spares in it helps then"
        )
    if each is None:
        return f"spares: failovers alone would take {_switching(regions):.3g} of the time"
    if need + 2 * each < spares:
        return f"standby: {need + 2 * each} more engines in all, where one region would need {spares}"
    return f"spares: {spares} more engines where a standby region means {need + 2 * each}"


def _alone(need: int, down: float, allowed: float, regions: RegionOutage) -> int | None:
    left = (allowed - regions.region_down) / (1 - regions.region_down) if regions.region_down < 1 else 0.0
    if left <= 0 and (down > 0 or left < 0):
        return None
    return fewest_spares(need, down, left)


def _with_standby(need: int, down: float, allowed: float, regions: RegionOutage) -> int | None:
    least = regions.region_down**2 + _switching(regions)
    if least > allowed or (least == allowed and down > 0) or down >= 1:
        return None
    return fewest_satisfying(
        lambda each: _short_with_standby(need, each, down, regions) <= allowed, most=MOST_ENGINES
    )


def _short_alone(need: int, spares: int, down: float, regions: RegionOutage) -> float:
    return regions.region_down + (1 - regions.region_down) * short_within(need, spares, down)


def _short_with_standby(need: int, each: int, down: float, regions: RegionOutage) -> float:
    within = short_within(need, each, down)
    lost = regions.region_down
    return min(1.0, (1 - lost) * within + lost * (lost + (1 - lost) * within) + _switching(regions))


def _switching(regions: RegionOutage) -> float:
    """Share of time spent between the two: how often the first region goes, times how long a failover takes."""
    return regions.region_down / regions.region_repair_s * regions.failover_s


def _judge(regions: RegionOutage) -> None:
    if not 0 <= regions.region_down <= 1:
        raise PlanError("the down share of a region is a probability: it lies between 0 and 1")
    if regions.region_repair_s <= 0 or regions.failover_s < 0:
        raise PlanError("how long a region is down each time must be more than nothing, a failover not less")
