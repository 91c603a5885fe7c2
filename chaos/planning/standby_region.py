"""Compare a standby region with more spares in one region.

A region is down as a whole for a share of time; its spares do not help then. A second region with its own
``need + k`` engines does, after a failover. Failover happens for the loss of a region only, not for a shortage.
The regions fail independently; common causes (a bad model build, the router in front of both) are not modelled.
"""

from dataclasses import dataclass

from chaos.planning.error import PlanError
from chaos.planning.spare_engines import MOST_ENGINES, fewest_satisfying, fewest_spares, monthly_cost
from chaos.planning.spare_engines import shortage_probability as short_within


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionOutage:
    """Outages of a region: share of time down, duration of each, and of a failover."""

    region_down: float
    region_repair_s: float
    failover_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyComparison:
    """Both ways to reach one target.

    ``spares`` is for one region, ``each`` for each of two; None if no number is enough. Costs cover all engines
    above ``need``: spares, or spares and a second region. ``verdict`` names the cheaper way.
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
    """Compare one region with two for an allowed shortage probability."""
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
            f"neither: a region is down for {regions.region_down:.3g} of the time, and failovers alone take "
            f"{_switching(regions):.3g}"
        )
    if spares is None:
        return (
            f"standby: a region is down for {regions.region_down:.3g} of the time, above the {allowed:.3g} "
            "allowed; spares in it do not help"
        )
    if each is None:
        return f"spares: failovers alone take {_switching(regions):.3g} of the time"
    if need + 2 * each < spares:
        return f"standby: {need + 2 * each} more engines in total; one region needs {spares}"
    return f"spares: {spares} more engines; a standby region needs {need + 2 * each}"


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
        raise PlanError("--region-down must be 0 to 1")
    if regions.region_repair_s <= 0 or regions.failover_s < 0:
        raise PlanError("--region-repair must be above 0; --failover must not be negative")
