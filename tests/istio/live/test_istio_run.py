"""``switchgear istio run`` as a process: verdicts of real engines end in Istio's endpoints."""

import functools
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from chaos.fake_engine import EngineConfig, FakeEngine
from chaos.processes import ChildProcesses, free_ports
from tests.cluster import Cluster
from tests.eventually import eventually as patiently
from tests.istio.live.test_endpoint_writer import CRD, entries, says, serves_is
from xds_server.cli import main

LIMIT_S = 60.0
SWITCHGEAR = str(Path(sys.executable).with_name("switchgear"))
eventually = functools.partial(patiently, limit_s=LIMIT_S)


def document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "switchgear.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.fixture
async def processes() -> AsyncIterator[ChildProcesses]:
    async with ChildProcesses() as found:
        yield found


@pytest.fixture
async def engines() -> AsyncIterator[list[FakeEngine]]:
    (port,) = free_ports(1)
    made = [
        FakeEngine(EngineConfig(name=f"chat-{number}", host=f"127.0.0.{number + 2}", port=port))
        for number in range(2)
    ]
    for engine in made:
        await engine.start()
    yield made
    for engine in made:
        await engine.stop()


def words(cluster: Cluster, *more: str) -> list[str]:
    ports = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "json")
    return ["istio", "run", *ports, "--istio-kubeconfig", str(cluster.kubeconfig), *more]


async def test_engines_by_hand_become_workload_entries(
    cluster: Cluster, processes: ChildProcesses, engines: list[FakeEngine], tmp_path: Path
) -> None:
    await cluster.define(CRD)
    listed = [
        {"name": one.config.name, "address": one.config.host, "port": one.port, "zone": "z1"} for one in engines
    ]
    policy = tmp_path / "policy.yaml"
    probe = {"interval": "200ms", "timeout": "30s", "stallAfter": "60s"}
    pool = document("EnginePool", "chat", {"model": "fake-model", "endpoints": listed, "probe": probe})
    policy.write_text(yaml.safe_dump(pool))
    asked = words(cluster, "-f", str(policy))
    child = await processes.start("istio", [SWITCHGEAR, *asked], ready_within_s=LIMIT_S)
    for engine in engines:
        await eventually(functools.partial(serves_is, cluster, f"chat.{engine.config.name}", "true"), "it serves")
    await engines[0].stop()
    await eventually(lambda: serves_is(cluster, "chat.chat-0", "false"), "it is out")
    await engines[0].start()
    await eventually(lambda: serves_is(cluster, "chat.chat-0", "true"), "it is back")
    assert await processes.stop(child, limit_s=30) == 0
    assert len(await entries(cluster)) == 2, "written entries stay"

    removing = await processes.start("remove", [SWITCHGEAR, *asked, "--remove"])
    assert await removing.wait() == 0
    assert not await entries(cluster)


async def test_pods_are_labelled_and_a_dry_run_only_reports(
    cluster: Cluster, processes: ChildProcesses, engines: list[FakeEngine]
) -> None:
    await cluster.define()
    await cluster.define(CRD)
    await cluster.node("n")
    for engine in engines:
        await cluster.pod(
            engine.config.name,
            labels={"app": "chat"},
            node="n",
            ip=engine.config.host,
            ports={"http": engine.port},
        )
    await cluster.service("chat", selector={"app": "chat"}, ports={"http": "http"})
    found = {"service": "chat", "port": "http"}
    probe = {"interval": "200ms", "timeout": "30s", "stallAfter": "60s"}
    await cluster.put(document("EnginePool", "chat", {"model": "fake-model", "kubernetes": found, "probe": probe}))
    from_cluster = ("--kubernetes", "--kubeconfig", str(cluster.kubeconfig))
    dry = await processes.start("dry", [SWITCHGEAR, *words(cluster, *from_cluster, "--dry-run")])
    log = processes.log_dir / "dry.log"
    await eventually(lambda: "would: pod default/chat-1 serves" in log.read_text(), "it says what it would do")
    assert await says(cluster, "chat-1", None)
    await processes.stop(dry, limit_s=30)

    await processes.start("istio", [SWITCHGEAR, *words(cluster, *from_cluster)], ready_within_s=LIMIT_S)
    for engine in engines:
        await eventually(functools.partial(says, cluster, engine.config.name, "true"), "it serves")
    await engines[0].stop()
    await eventually(lambda: says(cluster, "chat-0", "false"), "it is out")
    assert await says(cluster, "chat-1", "true")
    assert not await entries(cluster)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--istio-lease", "nowhere"], "NAMESPACE/NAME"),
        (["--writes-per-s", "0"], "writes-per-s"),
        (["--remove", "--istio-kubeconfig", "/nowhere"], "cannot reach the cluster"),
        ([], "no policies: set -f"),
    ],
)
def test_invalid_settings_exit_2(more: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["istio", "run", *more]) == 2
    assert said in capsys.readouterr().err
