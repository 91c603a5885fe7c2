"""The stand-in for an endpoint picker: how it chooses, and that Envoy sends where it says."""

import random
from pathlib import Path

import pytest

from benchmarks.failover.contestants import CONTESTANTS
from benchmarks.failover.experiment import Cell
from benchmarks.failover.picked_envoy import picked_bootstrap
from benchmarks.failover.picking import Said, least_busy, picked, said
from benchmarks.failover.scenarios import SCENARIOS
from benchmarks.failover.seen import measured
from benchmarks.failover.setting import Setting
from chaos.fake_engine.metrics import VllmMetrics
from tests.benchmarks.failover.calm import calmly

RNG = random.Random(0)


def test_it_reads_what_engines_publish() -> None:
    metrics = VllmMetrics("chat")
    metrics.gauges(running=3, waiting=7, kv_cache_ratio=0.25)
    assert said(metrics.text()) == Said(waiting=7.0, kv_ratio=0.25)
    with pytest.raises(KeyError):
        said(b"# HELP up\nup 1\n")


def test_queue_and_cache_count_alike_and_equals_take_turns() -> None:
    assert picked({"a": Said(waiting=4), "b": Said(waiting=1), "c": Said(waiting=9)}, RNG) == "b"
    assert picked({"a": Said(kv_ratio=0.5), "b": Said(kv_ratio=0.4)}, RNG) == "b"
    # One request less in the queue is worth less than the cache where queues differ by many.
    assert picked({"a": Said(waiting=1, kv_ratio=0.9), "b": Said(waiting=2), "c": Said(waiting=9)}, RNG) == "b"
    assert {picked({"a": Said(), "b": Said()}, RNG) for _ in range(50)} == {"a", "b"}
    assert picked({}, RNG) is None


def test_the_one_that_counts_takes_the_least_busy() -> None:
    assert least_busy({"a": 2, "b": 1, "c": 3}, RNG) == "b"
    assert least_busy({}, RNG) is None


@pytest.mark.envoy
def test_envoy_takes_the_configuration(tmp_path: Path, envoy_takes) -> None:
    path = tmp_path / "envoy.json"
    path.write_text(
        picked_bootstrap(
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
    setting = Setting(
        engines=4, engine_processes=1, load_percent=60.0, deadline_s=2.0, before_s=2.0, fault_s=2.0, after_s=1.0
    )
    history = await calmly(Cell(scenario=SCENARIOS["S2"], contestant=CONTESTANTS["picker"], setting=setting))
    found = measured(history, setting)
    assert found.before.good > 10
    assert {one.engine for one in history.attempts} == set(range(setting.engines))
    # Whether it sends the hung one more depends on what that one said last; but nobody tries elsewhere.
    assert len(found.silences) == 1
    # One whose time was up before it got to an engine has none.
    assert 0.8 < found.tries_per_request <= 1.0
    assert "picker" in history.use.processes
