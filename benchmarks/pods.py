"""What becomes of a pod, to out: how long until every connected Envoy gives its engine nothing new.

Four fake engines as pods of a cluster, the real control plane reading that cluster, two real Envoys, steady load.
A pod turns not ready, its node is tainted, or it is deleted. The clock runs from before this is written to the API
until the last Envoy's own admin page says so. The cluster is a double of the API server, in this process: a real
one adds its own time, and so does the kubelet that finds a pod not ready.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.detect import percentile
from benchmarks.testbed import LIMIT_S, Testbed, until
from chaos.fake_engine import FakeEngine
from chaos.processes import ChildProcesses
from tests.cluster_double import ClusterDouble
from xds_server.k8s.api_resources import NODES, PODS, POLICY_RESOURCES, ApiResource
from xds_server.k8s.client_config import ClientConfig, open_kube_api
from xds_server.k8s.kube_api import KubeApi

ENGINES: Final = 4
ENVOYS: Final = 2
RATE_PER_S: Final = 60.0
TRIALS: Final = 20
TARGET_S: Final = 1.0
"""At the 99th percentile, of each."""
POLL_S: Final = 0.003
CRDS: Final = Path(__file__).parent.parent / "deploy" / "crds"
DEFINITIONS: Final = ApiResource(
    group="apiextensions.k8s.io", version="v1", plural="customresourcedefinitions",
    kind="CustomResourceDefinition", namespaced=False,
)  # fmt: skip
TAINT: Final = {"key": "nvidia.com/gpu-error", "effect": "NoSchedule"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEventTrial:
    """One event: seconds until the engine was out of the first Envoy, and of the last."""

    event: str
    first_s: float
    last_s: float


class ClusterTestbed(Testbed):
    """A site whose policies and engines are objects of a cluster."""

    api: KubeApi

    def __init__(self, folder: Path, processes: ChildProcesses, cluster: ClusterDouble, api: KubeApi) -> None:
        super().__init__(folder, processes, engines=ENGINES, envoys=ENVOYS)
        self._cluster = cluster
        self.api = api
        self._made: dict[int, int] = {}

    def name_of(self, engine: FakeEngine) -> str:
        """The pod that an engine is in: each has a name of its own."""
        return f"{engine.config.name}-{self._made[engine.port]}"

    def serve_from(self) -> list[str]:
        """The flags that say where policies come from."""
        return ["--kubernetes", "--kubeconfig", str(self._cluster.write_kubeconfig(self.folder / "kubeconfig"))]

    async def fill(self) -> None:
        """Write what the cluster has before the control plane starts."""
        for file in sorted(CRDS.glob("*.yaml")):
            await self.api.create(DEFINITIONS, "", yaml.safe_load(file.read_text()))
        for engine in self.engines:
            await self.api.create(
                NODES, "", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node(engine)}}
            )
            await self.make_pod(engine)
        for document in map(json.loads, self._policies().split("\n---\n")):
            if document["kind"] == "EnginePool":
                found = {"selector": {"app": "chat"}, "port": "http"}
                document["spec"] = {"model": document["spec"]["model"], "kubernetes": found}
            await self.api.create(POLICY_RESOURCES[document["kind"]], "default", document)

    async def make_pod(self, engine: FakeEngine) -> None:
        """Another pod for an engine, ready."""
        self._made[engine.port] = self._made.get(engine.port, 0) + 1
        ports = [{"name": "http", "containerPort": engine.port}]
        spec = {
            "nodeName": node(engine),
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "engine", "image": "engine", "ports": ports}],
        }
        about = {"name": self.name_of(engine), "labels": {"app": "chat"}}
        await self.api.create(
            PODS, "default", {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}
        )
        await self.patch_pod_status(engine, podIP="127.0.0.1", conditions=[{"type": "Ready", "status": "True"}])

    async def patch_pod_status(self, engine: FakeEngine, **status: Any) -> None:
        """Say this in the status of an engine's pod."""
        await self.api.strategic(PODS, "default", self.name_of(engine), {"status": status}, subresource="status")


def node(engine: FakeEngine) -> str:
    """The node that an engine's pod is on."""
    return f"node-of-{engine.config.name}"


async def _not_ready(site: ClusterTestbed, engine: FakeEngine) -> None:
    await site.patch_pod_status(engine, conditions=[{"type": "Ready", "status": "False"}])


async def _ready(site: ClusterTestbed, engine: FakeEngine) -> None:
    await site.patch_pod_status(engine, conditions=[{"type": "Ready", "status": "True"}])


async def _taint(site: ClusterTestbed, engine: FakeEngine) -> None:
    await site.api.merge(NODES, "", node(engine), {"spec": {"taints": [TAINT]}})


async def _untaint(site: ClusterTestbed, engine: FakeEngine) -> None:
    await site.api.merge(NODES, "", node(engine), {"spec": {"taints": None}})


async def _delete(site: ClusterTestbed, engine: FakeEngine) -> None:
    await site.api.delete(PODS, "default", site.name_of(engine))


async def _another(site: ClusterTestbed, engine: FakeEngine) -> None:
    async def gone() -> bool:
        return all([await site.host(envoy, engine) is None for envoy in site.envoys])

    await until(gone, "the pod is gone")
    await site.make_pod(engine)


Act = Callable[[ClusterTestbed, FakeEngine], Awaitable[None]]
EVENTS: Final[Mapping[str, tuple[Act, Act]]] = {
    "not ready": (_not_ready, _ready),
    "node tainted": (_taint, _untaint),
    "deleted": (_delete, _another),
}


async def measure(trials: int, rate_per_s: float) -> list[PodEventTrial]:
    """All trials of all events, one after another on the same site."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="switchgear-bench-")))
        cluster = await stack.enter_async_context(ClusterDouble())
        api = await stack.enter_async_context(
            open_kube_api(ClientConfig(kubeconfig=cluster.write_kubeconfig(folder / "kubeconfig")))
        )
        processes = await stack.enter_async_context(ChildProcesses())
        site = await stack.enter_async_context(ClusterTestbed(folder, processes, cluster, api))
        stop = asyncio.Event()
        load = asyncio.create_task(site.load(rate_per_s, stop))
        try:
            return [
                await _trial(site, event, site.engines[number % ENGINES])
                for event in EVENTS
                for number in range(trials)
            ]
        finally:
            stop.set()
            await load


async def _trial(site: ClusterTestbed, event: str, engine: FakeEngine) -> PodEventTrial:
    happens, ends = EVENTS[event]

    async def all_in() -> bool:
        return all([await _taken(site, envoy, one) for envoy in site.envoys for one in site.engines])

    await until(all_in, "all engines are in")
    await site.answers(20)
    began_s = time.monotonic()
    outs = [asyncio.create_task(_out_at_s(site, envoy, engine)) for envoy in site.envoys]
    await happens(site, engine)
    at_s = sorted(await asyncio.gather(*outs))
    await ends(site, engine)
    return PodEventTrial(event=event, first_s=at_s[0] - began_s, last_s=at_s[-1] - began_s)


async def _out_at_s(site: Testbed, envoy: str, engine: FakeEngine) -> float:
    async with asyncio.timeout(LIMIT_S):
        while await _taken(site, envoy, engine):
            await asyncio.sleep(POLL_S)
    return time.monotonic()


async def _taken(site: Testbed, envoy: str, engine: FakeEngine) -> bool:
    """Whether this Envoy gives the engine new requests, as far as the control plane has a say."""
    host = await site.host(envoy, engine)
    return host is not None and host["health_status"]["eds_health_status"] == "HEALTHY"


def table(trials: Sequence[PodEventTrial]) -> Table:
    """The trials for people, by event."""
    title = f"what becomes of a pod, to out of every Envoy ({ENGINES} engines, {ENVOYS} Envoys)"
    shown = Table("event", "trials", "first p50", "last p50", "last p99", "target", title=title)
    for event in dict.fromkeys(trial.event for trial in trials):
        some = [trial for trial in trials if trial.event == event]
        last_s = [one.last_s for one in some]
        figures = (percentile([one.first_s for one in some], 50), percentile(last_s, 50), percentile(last_s, 99))
        shown.add_row(event, str(len(some)), *(f"{1e3 * one:.0f} ms" for one in (*figures, TARGET_S)))
    return shown


def main(argv: Sequence[str]) -> int:
    """Measure, print, write; 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks.pods", description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=TRIALS, help="per event")
    parser.add_argument("--rate", type=float, default=RATE_PER_S, help="requests per second")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/pods.json"))
    options = parser.parse_args(argv)
    trials = asyncio.run(measure(options.trials, options.rate))
    Console(width=110).print(table(trials))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    answer = {"target_s": TARGET_S, "trials": [asdict(trial) for trial in trials]}
    options.json.write_text(json.dumps(answer, indent=2) + "\n")
    late = [event for event in EVENTS if _p99_s(trials, event) > TARGET_S]
    return 1 if late else 0


def _p99_s(trials: Sequence[PodEventTrial], event: str) -> float:
    return percentile([one.last_s for one in trials if one.event == event], 99)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
