"""The endpoint picker as a contestant: the real one behind Envoy, and pods whose readiness follows the engines."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from benchmarks.failover import endpoint_picker
from benchmarks.failover.chaos_history import experiment_measures
from benchmarks.failover.cli import main
from benchmarks.failover.contestants import CONTESTANTS
from benchmarks.failover.engine_pods import PROBE_S, EnginePods
from benchmarks.failover.experiment_setting import ExperimentSetting
from benchmarks.failover.failover_experiment import ExperimentCell
from benchmarks.failover.failover_scenarios import SCENARIOS
from benchmarks.failover.picker_bootstrap import picker_bootstrap
from chaos.fake_engine import EngineConfig, EngineCrash, FakeEngine
from tests.benchmarks.failover.on_time_run import run_on_time
from tests.cluster import Cluster
from tests.eventually import eventually
from tests.go_build import PartsError
from xds_server.k8s.api_resources import PODS

LIMIT_S = 60.0


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


async def test_readiness_of_pods_follows_their_engines(cluster: Cluster) -> None:
    engine = FakeEngine(EngineConfig(name="e0"))
    await engine.start()

    async def ready() -> str:
        conditions = (await cluster.api.get(PODS, "default", "engine-0"))["status"]["conditions"]
        return str(next(one["status"] for one in conditions if one["type"] == "Ready"))

    async def is_ready(status: str) -> bool:
        return await ready() == status

    pods = EnginePods(kubeconfig=cluster.kubeconfig, addresses=["127.0.0.1"], port=engine.port)
    async with aiohttp.ClientSession() as session:
        kubelet = asyncio.create_task(pods.run(session))
        try:
            await eventually(pods.made.is_set, "pods are made", LIMIT_S)
            assert await ready() == "True"
            await engine.set_fault(EngineCrash())
            await eventually(lambda: is_ready("False"), f"not ready within probes of {PROBE_S} s", LIMIT_S)
            await engine.heal()
            await eventually(lambda: is_ready("True"), "ready again", LIMIT_S)
        finally:
            kubelet.cancel()
            await asyncio.gather(kubelet, return_exceptions=True)
            await engine.stop()


def test_contestant_without_its_programs_is_excluded_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENDPOINT_PICKER", str(tmp_path / "absent"))
    asked = ["--scenario", "S1", "--contestant", "picker", "--quick", "--results", str(tmp_path / "results")]
    assert main([*asked, "--engines", "2", "--width", "1000"]) == 1
    assert "could not be made: PartsError: no epp: `make picker-parts` builds it" in capsys.readouterr().out


@pytest.mark.envoy
@pytest.mark.timeout(400)
async def test_requests_go_where_the_picker_says() -> None:
    try:
        endpoint_picker.programs()
    except PartsError as why:
        pytest.skip(str(why))
    setting = ExperimentSetting(
        engines=4, engine_processes=1, load_percent=60.0, deadline_s=2.0, before_s=2.0, fault_s=2.0, after_s=1.0
    )
    history = await run_on_time(
        ExperimentCell(scenario=SCENARIOS["S2"], contestant=CONTESTANTS["picker"], setting=setting)
    )
    found = experiment_measures(history, setting)
    assert found.before.good > 10
    assert {one.engine for one in history.attempts} == set(range(setting.engines))
    assert len(found.silences) == 1
    # A request that timed out before it reached an engine has none, and no other is tried again.
    assert 0.5 < found.tries_per_request <= 1.0
    assert {"picker", "API server"} <= history.use.processes.keys()
