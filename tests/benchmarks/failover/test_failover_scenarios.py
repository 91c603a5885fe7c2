"""Scenarios are data that fits the setting it is for."""

from itertools import pairwise

import pytest

from benchmarks.failover.experiment_setting import ExperimentSetting
from benchmarks.failover.failover_scenarios import SCENARIOS, SIX, outages


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_every_outage_is_of_an_engine_that_exists_and_inside_the_window(name: str) -> None:
    setting = SCENARIOS[name].setting(ExperimentSetting())
    found = outages(SCENARIOS[name], setting)
    assert found
    assert all(0 <= one.engine < setting.engines for one in found)
    assert all(0 <= one.start_s < one.end_s <= setting.fault_s for one in found)


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_no_engine_is_broken_twice_at_once(name: str) -> None:
    setting = SCENARIOS[name].setting(ExperimentSetting())
    found = outages(SCENARIOS[name], setting)
    for one in found:
        overlapping = [
            other
            for other in found
            if other is not one and other.engine == one.engine and other.start_s < one.end_s > one.start_s
        ]
        assert all(other.end_s <= one.start_s or other.start_s >= one.end_s for other in overlapping)


def test_a_rolling_restart_takes_each_engine_once_and_one_at_a_time() -> None:
    found = outages(SCENARIOS["S6"], ExperimentSetting(engines=6))
    assert sorted(one.engine for one in found) == list(range(6))
    assert all(before.end_s < after.start_s for before, after in pairwise(found))


def test_half_of_the_engines_are_picked_from_both_halves_of_the_fleet() -> None:
    engines = [one.engine for one in outages(SCENARIOS["S5"], ExperimentSetting())]
    assert len(engines) == 4
    assert sum(engine < 4 for engine in engines) == 2


def test_a_zone_is_lost_whole() -> None:
    setting = SCENARIOS["zone-loss"].setting(ExperimentSetting())
    lost = {one.engine for one in outages(SCENARIOS["zone-loss"], setting)}
    assert lost == {engine for engine in range(setting.engines) if setting.zone(engine) == "b"}


def test_the_default_bench_is_the_one_it_is_compared_with() -> None:
    setting = ExperimentSetting()
    assert setting.capacity_per_s == pytest.approx(128.0)
    assert setting.rate_per_s == pytest.approx(102.4)
    assert setting.mean_service_s == pytest.approx(0.5)
    assert setting.longest_service_s == pytest.approx(0.72)


def test_unequal_engines_count_by_what_they_can() -> None:
    setting = SCENARIOS["unequal"].setting(ExperimentSetting())
    assert setting.slots == 2 * (16 + 8 + 8 + 4)
    assert setting.capacity_per_s == pytest.approx(2 * (32 + 16 + 8 + 8))
    assert setting.longest_service_s == pytest.approx(1.44)


def test_six_scenarios_have_the_same_engines_with_and_without_a_control_plane() -> None:
    for one in SIX:
        for kind in ("dead", "deaf"):
            assert outages(SCENARIOS[f"{kind}-{one.name}"], ExperimentSetting()) == outages(
                one, ExperimentSetting()
            )


def test_mixtures_break_as_many_engines_as_they_say() -> None:
    broken = {
        name: {one.engine for one in outages(SCENARIOS[name], ExperimentSetting())}
        for name in ("most-fail", "mixed-restarts", "mixed-errors", "all-slow")
    }
    assert {name: len(engines) for name, engines in broken.items()} == {
        "most-fail": 6,
        "mixed-restarts": 8,
        "mixed-errors": 5,
        "all-slow": 8,
    }
