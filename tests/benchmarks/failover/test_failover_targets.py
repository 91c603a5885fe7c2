"""Promises are kept or not by their numbers."""

from dataclasses import replace

import pytest

from benchmarks.failover.contestants import CONTESTANTS
from benchmarks.failover.experiment_setting import ExperimentSetting
from benchmarks.failover.failover_experiment import ExperimentCell
from benchmarks.failover.failover_scenarios import SCENARIOS, outages
from benchmarks.failover.failover_targets import checks
from benchmarks.failover.prediction import Prediction, predicted
from chaos.measures.experiment_measures import ExperimentMeasures
from chaos.measures.request_periods import RequestPeriod
from chaos.measures.traffic_shift import TrafficRecovery, TrafficStop
from chaos.measures.wasted_gpu_time import WastedGpuTime


def period(goodput: float, p99_s: float) -> RequestPeriod:
    return RequestPeriod(
        requests=1000,
        good=int(10 * goodput),
        goodput_percent=goodput,
        good_p50_s=0.5,
        good_p99_s=p99_s,
        all_p50_s=0.5,
        all_p99_s=p99_s,
        reasons={},
    )


def silence(fault: str, quiet_s: float | None) -> TrafficStop:
    return TrafficStop(
        outage="outage-0",
        engine="e0",
        fault=fault,
        start_s=8.0,
        end_s=27.0,
        quiet_s=quiet_s,
        sent=9,
        strays_s=(),
    )


def recovery(back_s: float | None) -> TrafficRecovery:
    return TrafficRecovery(engines=("e0",), healed_s=27.0, back_s=back_s, watched_s=11.0)


def measures(
    goodput: float = 100.0, p99_s: float = 1.0, wasted_s: float = 0.0, **more: object
) -> ExperimentMeasures:
    one = period(goodput, p99_s)
    plain = ExperimentMeasures(
        before=one,
        fault=one,
        after=one,
        both=one,
        waste=WastedGpuTime(wasted_s=wasted_s, any_s=0.0, crash_s=0.0, used_s=100.0),
        calls_per_request=1.0,
        tries_per_request=1.0,
        retries_refused=0,
        silences=(silence("hang", 1.0),),
        recoveries=(recovery(0.4),),
        proxies={"a": 100.0},
        streams=None,
        bins=(),
    )
    return replace(plain, **more)  # type: ignore[arg-type] # a test's settings


def kept(scenario: str, found: ExperimentMeasures, *, load: float = 80.0) -> dict[str, bool | None]:
    setting = SCENARIOS[scenario].setting(ExperimentSetting(load_percent=load))
    cell = ExperimentCell(scenario=SCENARIOS[scenario], contestant=CONTESTANTS["switchgear"], setting=setting)
    prediction: Prediction = predicted(setting, outages(cell.scenario, setting))
    return {one.what: one.kept for one in checks(cell, found, prediction)}


@pytest.mark.parametrize(
    ("scenario", "load", "goodput", "good"),
    [
        ("S5", 80.0, 79.0, True),
        ("S5", 80.0, 78.7, False),
        ("S2", 80.0, 99.96, True),
        ("S2", 80.0, 99.8, False),
        ("S3", 50.0, 99.5, True),
        ("S3", 50.0, 99.4, False),
        ("dead-S1", 80.0, 83.5, True),
        ("dead-S1", 80.0, 82.0, False),
    ],
)
def test_goodput(scenario: str, load: float, goodput: float, good: bool) -> None:
    assert kept(scenario, measures(goodput), load=load)["goodput fault+after"] is good


@pytest.mark.parametrize(("p99_s", "good"), [(2.98, True), (3.0, False)])
def test_latency_is_bound_by_wait_and_longest_service(p99_s: float, good: bool) -> None:
    found = kept("S5", measures(79.8, p99_s))
    assert found["p99 of good answers"] is good
    assert found["p99 of all answers"] is good


@pytest.mark.parametrize(("scenario", "limit_s"), [("S1", 20.0), ("S5", 10.0), ("S3", 5.0), ("flap", 5.0)])
def test_waste_has_a_limit_by_scenario(scenario: str, limit_s: float) -> None:
    assert kept(scenario, measures(wasted_s=limit_s))["wasted in fault"] is True
    assert kept(scenario, measures(wasted_s=limit_s + 0.1))["wasted in fault"] is False


@pytest.mark.parametrize(
    ("fault", "quiet_s", "good"),
    [
        ("hang", 1.7, True),  # an answer was due after 0.72 s
        ("hang", 1.8, False),
        ("crash", 0.9, True),
        ("crash", 1.1, False),
        ("error_after_work", 1.4, True),
        ("hang", None, False),
    ],
)
def test_faulty_engine_is_ejected_within_a_second_of_detectability(
    fault: str, quiet_s: float | None, good: bool
) -> None:
    assert kept("S2", measures(silences=(silence(fault, quiet_s),)))["quiet after observable"] is good


def test_the_slowest_recovery_counts_and_none_is_a_miss() -> None:
    soon, never = recovery(0.2), recovery(None)
    assert kept("S2", measures(recoveries=(soon,)))["traffic back"] is True
    assert kept("S2", measures(recoveries=(soon, never)))["traffic back"] is False
    assert kept("S2", measures(recoveries=(soon, recovery(1.2))))["traffic back"] is False


def test_proxies_must_not_drift_apart() -> None:
    assert kept("two-proxies", measures(proxies={"a": 77.0, "b": 76.0}))["proxies apart"] is True
    assert kept("two-proxies", measures(proxies={"a": 68.0, "b": 99.0}))["proxies apart"] is False


def test_without_a_control_plane_only_collapse_is_a_miss() -> None:
    assert list(kept("dead-S5", measures(83.0, p99_s=9.0, wasted_s=140.0))) == ["goodput fault+after"]


@pytest.mark.parametrize(("scenario", "limit_s"), [("mixed-errors", 1.3 * 2.72), ("all-slow", 1.3 * 4.16)])
def test_mixtures_are_held_to_goodput_and_waits_alone(scenario: str, limit_s: float) -> None:
    cell = ExperimentCell(
        scenario=SCENARIOS[scenario], contestant=CONTESTANTS["switchgear"], setting=ExperimentSetting()
    )
    prediction = predicted(cell.setting, outages(cell.scenario, cell.setting))
    good = measures(prediction.both_percent - 1.9, p99_s=limit_s - 0.01, wasted_s=500.0)
    assert all(one.kept for one in checks(cell, good, prediction))
    late = measures(prediction.both_percent - 2.1, p99_s=limit_s + 0.01)
    assert [one.kept for one in checks(cell, late, prediction)] == [False, False, False]
    assert len(checks(cell, good, prediction)) == 3
