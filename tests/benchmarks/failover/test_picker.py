"""The stand-in for an endpoint picker: how it chooses, and that Envoy sends where it says."""

import random
from pathlib import Path

import pytest

from benchmarks.failover.chaos_history import experiment_measures
from benchmarks.failover.contestants import CONTESTANTS
from benchmarks.failover.experiment_setting import ExperimentSetting
from benchmarks.failover.failover_experiment import ExperimentCell
from benchmarks.failover.failover_scenarios import SCENARIOS
from benchmarks.failover.picker_bootstrap import picker_bootstrap
from benchmarks.failover.picker_policy import EngineGauges, best_scored, engine_gauges, least_busy
from chaos.fake_engine.metrics_page import FakeVllmMetrics
from chaos.fake_engine.step_scheduler import StepCounters
from tests.benchmarks.failover.on_time_run import run_on_time

RNG = random.Random(0)


def test_picker_reads_engine_metrics() -> None:
    metrics = FakeVllmMetrics("chat")
    metrics.step(StepCounters(running=3, waiting=7, kv_cache_ratio=0.25), {}, kv_cache_full=False)
    assert engine_gauges(metrics.text()) == EngineGauges(waiting=7.0, kv_ratio=0.25)
    with pytest.raises(KeyError):
        engine_gauges(b"# HELP up\nup 1\n")


def test_queue_and_cache_count_alike_and_equals_take_turns() -> None:
    assert (
        best_scored(
            {"a": EngineGauges(waiting=4), "b": EngineGauges(waiting=1), "c": EngineGauges(waiting=9)}, RNG
        )
        == "b"
    )
    assert best_scored({"a": EngineGauges(kv_ratio=0.5), "b": EngineGauges(kv_ratio=0.4)}, RNG) == "b"
    # One request less in the queue is worth less than the cache where queues differ by many.
    assert (
        best_scored(
            {
                "a": EngineGauges(waiting=1, kv_ratio=0.9),
                "b": EngineGauges(waiting=2),
                "c": EngineGauges(waiting=9),
            },
            RNG,
        )
        == "b"
    )
    assert {best_scored({"a": EngineGauges(), "b": EngineGauges()}, RNG) for _ in range(50)} == {"a", "b"}
    assert best_scored({}, RNG) is None


def test_the_one_that_counts_takes_the_least_busy() -> None:
    assert least_busy({"a": 2, "b": 1, "c": 3}, RNG) == "b"
    assert least_busy({}, RNG) is None


@pytest.mark.envoy
def test_envoy_takes_the_configuration(tmp_path: Path, envoy_takes) -> None:
    path = tmp_path / "envoy.json"
    path.write_text(
        picker_bootstrap(
            10000,
            engine_ports=[10001, 10002],
            slots=16,
            proxies=1,
            deadline_s=10.0,
            listener_port=10003,
            admin_port=10004,
        )
    )
    envoy_takes(path)


@pytest.mark.envoy
@pytest.mark.timeout(400)
async def test_requests_go_where_the_picker_says() -> None:
    setting = ExperimentSetting(
        engines=4, engine_processes=1, load_percent=60.0, deadline_s=2.0, before_s=2.0, fault_s=2.0, after_s=1.0
    )
    history = await run_on_time(
        ExperimentCell(scenario=SCENARIOS["S2"], contestant=CONTESTANTS["picker"], setting=setting)
    )
    found = experiment_measures(history, setting)
    assert found.before.good > 10
    assert {one.engine for one in history.attempts} == set(range(setting.engines))
    # Requests to the hung engine depend on its last metrics; none is retried elsewhere.
    assert len(found.silences) == 1
    # A request that timed out before it reached an engine has none.
    assert 0.8 < found.tries_per_request <= 1.0
    assert "picker" in history.use.processes
