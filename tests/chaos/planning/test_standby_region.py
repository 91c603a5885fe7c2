"""Standby region compared with more spares."""

import pytest

from chaos.planning.error import PlanError
from chaos.planning.spare_engines import fewest_spares, shortage_probability
from chaos.planning.standby_region import RegionOutage, standby_comparison

OFTEN = RegionOutage(region_down=2e-4, region_repair_s=4 * 3600, failover_s=60)


def test_unreliable_region_needs_a_standby() -> None:
    found = standby_comparison(20, 0.005, 1e-4, OFTEN, cost_per_hour=2)
    assert found.spares is None
    assert found.each is not None
    assert found.standby_wins
    assert found.short_with_standby is not None
    assert found.short_with_standby <= 1e-4
    within, lost = shortage_probability(20, found.each, 0.005), 2e-4
    # Short in the first region, in the second while the first is down, or during a failover.
    expected = (1 - lost) * within + lost * (lost + (1 - lost) * within) + lost * 60 / (4 * 3600)
    assert found.short_with_standby == pytest.approx(expected)
    assert found.standby_cost_per_month == (20 + 2 * found.each) * 2 * 730
    assert "spares in it do not help" in found.verdict


def test_spares_are_cheaper_where_they_suffice() -> None:
    found = standby_comparison(20, 0.005, 1e-3, OFTEN, cost_per_hour=2)
    assert found.spares is not None
    assert not found.standby_wins
    assert found.short is not None
    # The outage of the region uses up part of the target.
    assert found.short == pytest.approx(2e-4 + (1 - 2e-4) * shortage_probability(20, found.spares, 0.005))
    assert found.short <= 1e-3


def test_slow_failovers_rule_out_a_standby() -> None:
    slow = RegionOutage(region_down=2e-4, region_repair_s=3600, failover_s=3600)
    found = standby_comparison(20, 0.005, 1e-4, slow)
    assert (found.spares, found.each, found.standby_wins) == (None, None, False)
    assert found.verdict.startswith("neither")


def test_perfect_region_leaves_the_binomial() -> None:
    calm = RegionOutage(region_down=0, region_repair_s=3600, failover_s=60)
    assert standby_comparison(20, 0.005, 1e-4, calm).spares == fewest_spares(20, 0.005, 1e-4)


def test_invalid_region_is_refused() -> None:
    with pytest.raises(PlanError):
        standby_comparison(20, 0.005, 1e-4, RegionOutage(region_down=2, region_repair_s=1, failover_s=1))
    with pytest.raises(PlanError):
        standby_comparison(20, 0.005, 1e-4, RegionOutage(region_down=0.1, region_repair_s=0, failover_s=1))
