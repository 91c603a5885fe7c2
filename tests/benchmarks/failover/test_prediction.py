"""The prediction is the formula where the formula holds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.failover.experiment_setting import ExperimentSetting
from benchmarks.failover.failover_scenarios import SCENARIOS, EngineOutage, outages
from benchmarks.failover.prediction import predicted
from chaos.fake_engine import EngineHang
from chaos.measures.possible_goodput import RECOVERY_LAG_S


def formula(setting: ExperimentSetting, capacity: float) -> tuple[float, float]:
    """Fault, and fault plus after, of a fault that leaves ``capacity`` per second."""
    offered, long, wait, lag = setting.rate_per_s, setting.fault_s, setting.max_wait_s, RECOVERY_LAG_S
    shed = offered * (long + lag) - capacity * (long + lag + wait)
    return (
        100 * capacity / offered * (1 + wait / long),
        100 * (1 - shed / (offered * (long + setting.after_s))),
    )


@pytest.mark.parametrize("name", ["S1", "S3", "S5"])
@pytest.mark.parametrize("wait_s", [0.25, 2.0, 4.64])
def test_half_a_fleet_at_80_percent_is_the_closed_form(name: str, wait_s: float) -> None:
    setting = ExperimentSetting(max_wait_s=wait_s)
    found = predicted(setting, outages(SCENARIOS[name], setting))
    fault, both = formula(setting, setting.capacity_per_s / 2)
    assert found.fault_percent == pytest.approx(fault, abs=0.1)
    assert found.both_percent == pytest.approx(both, abs=0.1)


def test_two_seconds_of_wait_come_to_the_known_number() -> None:
    setting = ExperimentSetting()
    assert predicted(setting, outages(SCENARIOS["S5"], setting)).both_percent == pytest.approx(79.8, abs=0.1)


@pytest.mark.parametrize(("name", "load"), [("S2", 80.0), ("S6", 80.0), ("S3", 50.0), ("zone-loss", 50.0)])
def test_no_loss_is_predicted_if_the_rest_can_serve_all(name: str, load: float) -> None:
    setting = SCENARIOS[name].setting(ExperimentSetting(load_percent=load))
    assert predicted(setting, outages(SCENARIOS[name], setting)).both_percent == pytest.approx(100.0, abs=0.01)


def test_two_slow_ones_are_paid_from_the_queue() -> None:
    setting = ExperimentSetting()
    scarce = replace(setting, max_wait_s=0.25)
    assert predicted(setting, outages(SCENARIOS["S4"], setting)).both_percent == pytest.approx(100.0, abs=0.01)
    assert predicted(scarce, outages(SCENARIOS["S4"], scarce)).both_percent < 97.5


def test_above_capacity_something_is_shed_even_without_a_fault() -> None:
    setting = ExperimentSetting(load_percent=110.0)
    found = predicted(setting, ())
    assert found.fault_percent == pytest.approx(100 / 1.1, abs=0.1)


@given(
    wait_s=st.floats(0.1, 5.0),
    bad=st.integers(1, 7),
    load=st.floats(30.0, 100.0),
)
def test_more_wait_never_costs_and_more_damage_never_helps(wait_s: float, bad: int, load: float) -> None:
    setting = ExperimentSetting(max_wait_s=wait_s, load_percent=load, fault_s=6.0, after_s=4.0)
    hurt = [EngineOutage(engine=one, fault=EngineHang(), start_s=0.0, end_s=6.0) for one in range(bad)]
    now = predicted(setting, hurt).both_percent
    assert 0.0 <= now <= 100.001
    assert predicted(replace(setting, max_wait_s=wait_s + 1.0), hurt).both_percent >= now - 0.1
    assert predicted(setting, hurt[:-1]).both_percent >= now - 0.1


def test_slow_engines_count_while_their_answers_come_in_time() -> None:
    setting = ExperimentSetting(load_percent=30.0)
    assert predicted(setting, outages(SCENARIOS["all-slow"], setting)).both_percent == pytest.approx(
        100.0, abs=0.1
    )
    full = ExperimentSetting()
    third, _ = formula(full, full.capacity_per_s / 3)
    assert predicted(full, outages(SCENARIOS["all-slow"], full)).fault_percent == pytest.approx(third, abs=0.1)
