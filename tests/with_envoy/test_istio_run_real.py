"""``switchgear istio run`` next to Istio's own istiod, on a real API server, before a real Envoy.

A verdict has to go all the way: the object changes in the API server, istiod pushes, Envoy sends no more. Without
the programs the tests are skipped: ``make istio-parts`` and ``make cluster-parts`` build them. The first test
prints how long it took.
"""

import json
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest
import yaml

from chaos.fake_engine import EngineConfig, EngineHang, FakeEngine
from chaos.processes import ChildProcess, ChildProcesses, free_ports
from istio.export.istio_export import export_to_istio
from istio.export.istio_objects import IstioTarget, Object
from istio.live.desired_state import SERVING_LABEL
from istio.live.endpoint_writer import WORKLOAD_ENTRIES
from policies.load import load_contents
from tests.cluster import Cluster
from tests.eventually import eventually
from tests.istio.real_istiod import apply, sidecar_bootstrap, start_istiod, write_definitions
from tests.mesh_parts import ISTIOCTL, ISTIOD, required
from tests.with_envoy.conftest import EnvoyProcess, StartEnvoy
from xds_server.k8s.api_resources import PODS
from xds_server.k8s.kube_api import ApiError

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(600)]

LIMIT_S = 120.0
NAMESPACE = "llm"
SWITCHGEAR = str(Path(sys.executable).with_name("switchgear"))
PATIENT_PROBE = {"interval": "300ms", "timeout": "5s", "stallAfter": "5s"}
"""So that a busy machine makes no engine hang."""

NONE_LEFT = "503 no healthy upstream"
"""Envoy's answer where no engine is left."""

Found = Literal["listed", "selector", "service"]
"""How the pool finds its engines: WorkloadEntries, pods by their labels, pods of a Service."""

FOUND_BY: Mapping[Found, Mapping[str, Any]] = {
    "listed": {},
    "selector": {"kubernetes": {"selector": {"app": "chat"}}},
    "service": {"kubernetes": {"service": "chat"}},
}


def own_address() -> str:
    """An address of this machine that is none of loopback; skips the test without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))  # sends nothing: the kernel chooses the address
        except OSError:
            pytest.skip("this machine has only addresses of loopback, which EndpointSlices may not have")
        return str(asking.getsockname()[0])


def documents(found: Mapping[str, Any], listener: int) -> list[dict[str, Any]]:
    """A pool whose engines are found like this. Envoy's own ejections are switched off."""
    breaker = {"consecutiveErrors": 1000, "consecutiveLocalErrors": 1000, "errorRatePercent": 0}
    specs = {
        ("EnginePool", "chat"): {"model": "fake-model", **found, "probe": PATIENT_PROBE},
        ("ModelRoute", "front"): {
            "listener": {"port": listener},
            "match": {"pathPrefix": "/v1/"},
            "pools": [{"pool": "chat"}],
        },
        ("ResiliencePolicy", "default"): {"breaker": breaker, "retries": {"attempts": 0}},
    }
    return [
        {
            "apiVersion": "switchgear.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": spec,
        }
        for (kind, name), spec in specs.items()
    ]


@dataclass(kw_only=True)
class LiveMesh:
    """Engines behind an Envoy of istiod, and ``switchgear istio run``, which takes the ``arguments``.

    ``used``: the Envoy cluster that requests go to.
    """

    cluster: Cluster
    processes: ChildProcesses
    engines: Sequence[FakeEngine]
    session: aiohttp.ClientSession
    envoy: EnvoyProcess
    port: int
    used: str
    arguments: Sequence[str]
    found: Found
    exported: Sequence[Object]
    writer: ChildProcess | None = None

    async def ask(self) -> str:
        """The name of the engine that answered, or what went wrong."""
        headers = {"Host": f"models-{self.port}.{NAMESPACE}.svc.cluster.local"}
        body = {"model": "fake-model", "prompt": "word", "max_tokens": 2}
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        try:
            async with self.session.post(url, json=body, headers=headers) as answer:
                text = await answer.text()
                return answer.headers.get("x-fake-engine", f"{answer.status} {text}")
        except (aiohttp.ClientError, TimeoutError) as error:
            return type(error).__name__

    async def weights(self) -> Mapping[str, int]:
        """Engines that Envoy may send to, with their weights."""
        names = {f"{one.config.host}:{one.port}": one.config.name for one in self.engines}
        (cluster,) = [
            one
            for one in (await self.envoy.json("/clusters?format=json"))["cluster_statuses"]
            if one["name"] == self.used
        ]
        found = {}
        for host in cluster.get("host_statuses", ()):
            at = host["address"]["socket_address"]
            found[names[f"{at['address']}:{at['port_value']}"]] = int(host["weight"])
        return found

    async def sends_to(self, *numbers: int) -> bool:
        """Whether Envoy may send to these engines, and to no other one."""
        return set(await self.weights()) == {self.engines[number].config.name for number in numbers}

    async def reaches(self, *numbers: int) -> None:
        """Wait until Envoy may send to these engines only; then all of them answer, and without any it does."""
        await eventually(lambda: self.sends_to(*numbers), f"Envoy sends to the engines {numbers}", LIMIT_S)
        names: Counter[str] = Counter()
        wanted = {self.engines[number].config.name for number in numbers} or {NONE_LEFT}

        async def all_answered() -> bool:
            names.update([await self.ask() for _ in range(10)])
            assert set(names) <= wanted, names
            return set(names) == wanted

        await eventually(all_answered, f"the engines {numbers} answer", LIMIT_S)

    async def marks(self) -> Mapping[str, str | None]:
        """What the API server says of each engine: its label."""
        if self.found == "listed":
            return {one.config.name: await self._entry(f"chat.{one.config.name}") for one in self.engines}
        pods = {name: await self.cluster.api.get(PODS, NAMESPACE, name) for name in map(_name, self.engines)}
        return {name: pod["metadata"]["labels"].get(SERVING_LABEL) for name, pod in pods.items()}

    async def marked(self, name: str, label: str) -> bool:
        return (await self.marks())[name] == label

    async def _entry(self, name: str) -> str | None:
        labels = (await self.cluster.api.get(WORKLOAD_ENTRIES, NAMESPACE, name))["spec"]["labels"]
        return str(labels[SERVING_LABEL]) if SERVING_LABEL in labels else None

    async def start_writer(self, name: str) -> None:
        self.writer = await self.processes.start(name, [SWITCHGEAR, *self.arguments], ready_within_s=LIMIT_S)

    async def kill_writer(self) -> None:
        assert self.writer is not None
        self.writer.signal_group(signal.SIGKILL)
        await self.processes.stop(self.writer)

    def out_at(self, name: str) -> tuple[float, float]:
        """When the writer had its verdict about an engine, and when the API server had it."""
        assert self.writer is not None
        found = {}
        for line in self.writer.log_path.read_text().splitlines():
            one = json.loads(line) if line[:1] == "{" else {}
            about = str(one.get("engine", "")) + str(one.get("write", ""))
            if one.get("event") in {"engine.health", "istio.told"} and name in about and "hung" in line:
                found[one["event"]] = datetime.fromisoformat(one["timestamp"]).timestamp()
        return found["engine.health"], found["istio.told"]


def _name(engine: FakeEngine) -> str:
    return engine.config.name


@asynccontextmanager
async def engines_at(hosts: Sequence[str]) -> AsyncIterator[Sequence[FakeEngine]]:
    (port,) = free_ports(1)
    made = [
        FakeEngine(EngineConfig(name=f"chat-{number}", host=host, port=port)) for number, host in enumerate(hosts)
    ]
    for engine in made:
        await engine.start()
    try:
        yield made
    finally:
        for engine in made:
            await engine.stop()


@asynccontextmanager
async def live_mesh(
    cluster: Cluster, start_envoy: StartEnvoy, folder: Path, found: Found = "listed"
) -> AsyncIterator[LiveMesh]:
    """A mesh that serves through all of its engines: three, and one of a Service."""
    required(ISTIOD)
    required(ISTIOCTL)
    if cluster.real is None:
        pytest.skip("no real API server: `make cluster-parts` builds it, or KUBE_APISERVER and ETCD name one")
    if found == "service":
        cluster.must_have_controllers()
    # Slices may have no address of loopback, and istiod takes one engine of an address: that of the machine.
    hosts = [own_address()] if found == "service" else [f"127.0.0.{number}" for number in (2, 3, 4)]
    write_definitions(folder / "definitions.yaml")
    await cluster.define(folder / "definitions.yaml")
    for namespace in ("istio-system", NAMESPACE):
        await cluster.namespace(namespace)
    (port,) = free_ports(1)
    async with (
        engines_at(hosts) as engines,
        ChildProcesses(log_dir=folder / "logs") as processes,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session,
    ):
        arguments = [
            *("istio", "run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "json"),
            *("--istio-kubeconfig", str(cluster.kubeconfig), "--istio-namespace", NAMESPACE),
        ]
        if found == "listed":
            listed = [{"name": one.config.name, "address": one.config.host, "port": one.port} for one in engines]
            texts = documents({"endpoints": listed}, port)
            (folder / "policy.yaml").write_text(yaml.safe_dump_all(texts))
            arguments += ["-f", str(folder / "policy.yaml")]
        else:
            texts = documents(_found_pods(found, engines), port)
            await _run_pods(cluster, engines, found)
            await cluster.define()
            for text in texts:
                await cluster.put(text, namespace=NAMESPACE)
            arguments += ["--kubernetes", "--kubeconfig", str(cluster.kubeconfig)]
        policies = load_contents({Path("policy.yaml"): yaml.safe_dump_all(texts).encode()})
        target = IstioTarget(namespace=NAMESPACE, telemetry=False, live=found != "listed")
        exported = export_to_istio(policies, target).objects
        await apply(cluster, exported)
        istiod_port = await start_istiod(processes, cluster.kubeconfig, folder)
        envoy = await start_envoy(sidecar_bootstrap(istiod_port, NAMESPACE))
        subset = "serving" if found == "service" else ""
        mesh = LiveMesh(
            cluster=cluster,
            processes=processes,
            engines=engines,
            session=session,
            envoy=envoy,
            port=port,
            used=f"outbound|{engines[0].port}|{subset}|chat.{NAMESPACE}.svc.cluster.local",
            arguments=arguments,
            found=found,
            exported=exported,
        )
        await mesh.start_writer("writer")
        await mesh.reaches(*range(len(engines)))
        yield mesh


def _found_pods(found: Found, engines: Sequence[FakeEngine]) -> Mapping[str, Any]:
    return {"kubernetes": {**FOUND_BY[found]["kubernetes"], "port": engines[0].port}}


async def _run_pods(cluster: Cluster, engines: Sequence[FakeEngine], found: Found) -> None:
    await cluster.node("n")
    for one in engines:
        await cluster.pod(
            one.config.name,
            namespace=NAMESPACE,
            labels={"app": "chat"},
            node="n",
            ip=one.config.host,
            ports={"http": one.port},
        )
    if found == "service":
        names = {"namespace": NAMESPACE, "selector": {"app": "chat"}}
        await cluster.service("chat", ports={"http": engines[0].port}, headless=False, **names)


@pytest.mark.parametrize("found", FOUND_BY)
async def test_hung_engine_leaves_the_envoy_of_istiod_and_returns(
    cluster: Cluster, start_envoy: StartEnvoy, tmp_path: Path, capsys: pytest.CaptureFixture[str], found: Found
) -> None:
    async with live_mesh(cluster, start_envoy, tmp_path, found) as mesh:
        hung, *others = range(len(mesh.engines))
        await mesh.engines[hung].set_fault(EngineHang())
        hung_at = time.time()
        await eventually(lambda: mesh.sends_to(*others), "Envoy drops the engine that hangs", LIMIT_S)
        gone_at = time.time()
        with capsys.disabled():
            verdict_at, written_at = mesh.out_at("chat-0")
            print(  # noqa: T201 - what was measured
                f"\n{found}: verdict {verdict_at - hung_at:.2f} s after the fault, "
                f"written {written_at - verdict_at:.2f} s and out of Envoy {gone_at - verdict_at:.2f} s after that"
            )
        serving = {f"chat-{number}": "true" for number in others}
        assert await mesh.marks() == {"chat-0": "false", **serving}
        await mesh.reaches(*others)
        await mesh.engines[hung].heal()
        await mesh.reaches(hung, *others)


async def test_killed_writer_changes_nothing_and_the_next_one_continues(
    cluster: Cluster, start_envoy: StartEnvoy, tmp_path: Path
) -> None:
    async with live_mesh(cluster, start_envoy, tmp_path) as mesh:
        await mesh.engines[0].set_fault(EngineHang())
        await mesh.reaches(1, 2)
        await mesh.kill_writer()
        await mesh.engines[1].set_fault(EngineHang())
        assert await mesh.marks() == {"chat-0": "false", "chat-1": "true", "chat-2": "true"}
        assert await mesh.sends_to(1, 2)
        seen: list[Mapping[str, int]] = []

        async def only_the_last() -> bool:
            seen.append(await mesh.weights())
            return set(seen[-1]) == {"chat-2"}

        await mesh.start_writer("next")
        await eventually(only_the_last, "the second engine is out", LIMIT_S)
        assert all("chat-0" not in one for one in seen), "a start returns no engine that hangs"
        await mesh.reaches(2)
        await mesh.engines[0].heal()
        await mesh.engines[1].heal()
        await mesh.reaches(0, 1, 2)


async def test_api_server_that_restarts_delays_verdicts_and_loses_none(
    cluster: Cluster, start_envoy: StartEnvoy, tmp_path: Path
) -> None:
    async with live_mesh(cluster, start_envoy, tmp_path) as mesh:
        await mesh.engines[0].set_fault(EngineHang())
        await mesh.reaches(1, 2)
        await cluster.down()
        try:
            await mesh.engines[0].heal()
            await mesh.engines[1].set_fault(EngineHang())
            assert await mesh.sends_to(1, 2)
        finally:
            await cluster.up()
        await mesh.reaches(0, 2)
        assert await mesh.marks() == {"chat-0": "true", "chat-1": "false", "chat-2": "true"}
        await mesh.engines[1].heal()
        await mesh.reaches(0, 1, 2)


async def test_export_applied_again_does_not_return_an_engine_that_hangs(
    cluster: Cluster, start_envoy: StartEnvoy, tmp_path: Path
) -> None:
    async with live_mesh(cluster, start_envoy, tmp_path) as mesh:
        await mesh.engines[0].set_fault(EngineHang())
        await mesh.reaches(1, 2)
        with pytest.raises(ApiError) as refused:
            await apply(cluster, mesh.exported, force=False)
        assert refused.value.conflict
        assert SERVING_LABEL in refused.value.message
        await apply(cluster, mesh.exported)
        await eventually(lambda: mesh.marked("chat-0", "false"), "what was forced is corrected", LIMIT_S)
        await mesh.reaches(1, 2)
