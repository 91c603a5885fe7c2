"""A region that stands by, against more spares: when which wins."""

import pytest

from chaos.planning.error import PlanError
from chaos.planning.spare_engines import fewest_spares, shortage_probability
from chaos.planning.standby_region import RegionOutage, standby_comparison

OFTEN = RegionOutage(region_down=2e-4, region_repair_s=4 * 3600, failover_s=60)


def test_a_region_that_is_down_more_than_allowed_needs_another() -> None:
    found = standby_comparison(20, 0.005, 1e-4, OFTEN, cost_per_hour=2)
    assert found.spares is None
    assert found.each is not None
    assert found.standby_wins
    assert found.short_with_standby is not None
    assert found.short_with_standby <= 1e-4
    within, lost = shortage_probability(20, found.each, 0.005), 2e-4
    # Short while the region is there, or in the other while it is not, or on the way from one to the other.
    expected = (1 - lost) * within + lost * (lost + (1 - lost) * within) + lost * 60 / (4 * 3600)
    assert found.short_with_standby == pytest.approx(expected)
    assert found.standby_cost_per_month == (20 + 2 * found.each) * 2 * 730
    assert "no number of spares" in found.verdict


def test_where_spares_are_enough_they_are_cheaper() -> None:
    found = standby_comparison(20, 0.005, 1e-3, OFTEN, cost_per_hour=2)
    assert found.spares is not None
    assert not found.standby_wins
    assert found.short is not None
    # The region takes its part of what is allowed.
    assert found.short == pytest.approx(2e-4 + (1 - 2e-4) * shortage_probability(20, found.spares, 0.005))
    assert found.short <= 1e-3


def test_slow_failovers_can_be_too_much() -> None:
    slow = RegionOutage(region_down=2e-4, region_repair_s=3600, failover_s=3600)
    found = standby_comparison(20, 0.005, 1e-4, slow)
    assert (found.spares, found.each, found.standby_wins) == (None, None, False)
    assert found.verdict.startswith("neither")


def test_a_region_that_never_fails_leaves_the_binomial() -> None:
    calm = RegionOutage(region_down=0, region_repair_s=3600, failover_s=60)
    assert standby_comparison(20, 0.005, 1e-4, calm).spares == fewest_spares(20, 0.005, 1e-4)


def test_regions_that_cannot_be_are_refused() -> None:
    with pytest.raises(PlanError):
        standby_comparison(20, 0.005, 1e-4, RegionOutage(region_down=2, region_repair_s=1, failover_s=1))
    with pytest.raises(PlanError):
        standby_comparison(20, 0.005, 1e-4, RegionOutage(region_down=0.1, region_repair_s=0, failover_s=1))
