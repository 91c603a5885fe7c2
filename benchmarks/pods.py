"""Pod event to ejection: time until every connected Envoy stops sending new requests to its engine.

Four fake engines as pods of a cluster, the real control plane reading that cluster, two real Envoys, steady load.
A pod becomes not ready, its node is tainted, or it is deleted. Measured: from just before the API write until the
last Envoy's admin page shows the change. The API server is a fake in this process; a real one adds its own
latency, as does the kubelet that finds a pod not ready.
"""

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.harness import (
    ResultColumn,
    Trial,
    TrialGroup,
    option_parser,
    publish,
    result_table,
    trial_groups,
)
from benchmarks.testbed import POOL, Testbed, ejection_trial, until
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
CRDS: Final = Path(__file__).parent.parent / "deploy" / "crds"
DEFINITIONS: Final = ApiResource(
    group="apiextensions.k8s.io", version="v1", plural="customresourcedefinitions",
    kind="CustomResourceDefinition", namespaced=False,
)  # fmt: skip
TAINT: Final = {"key": "nvidia.com/gpu-error", "effect": "NoSchedule"}


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
        found = {"selector": {"app": "chat"}, "port": "http"}
        for kind, spec in self.policy_specs().items():
            document = {
                "apiVersion": "switchgear.dev/v1alpha1",
                "kind": kind,
                "metadata": {"name": POOL},
                "spec": {"model": spec["model"], "kubernetes": found} if kind == "EnginePool" else spec,
            }
            await self.api.create(POLICY_RESOURCES[kind], "default", document)

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


async def measure(trials: int, rate_per_s: float) -> list[Trial]:
    """All trials of all events, one after another on the same site."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="switchgear-bench-")))
        cluster = await stack.enter_async_context(ClusterDouble())
        api = await stack.enter_async_context(
            open_kube_api(ClientConfig(kubeconfig=cluster.write_kubeconfig(folder / "kubeconfig")))
        )
        processes = await stack.enter_async_context(ChildProcesses())
        site = await stack.enter_async_context(ClusterTestbed(folder, processes, cluster, api))
        await stack.enter_async_context(site.under_load(rate_per_s))
        return [
            await _trial(site, event, site.engines[number % ENGINES])
            for event in EVENTS
            for number in range(trials)
        ]


async def _trial(site: ClusterTestbed, event: str, engine: FakeEngine) -> Trial:
    happens, ends = EVENTS[event]

    async def all_in() -> bool:
        return all([await site.takes_requests(envoy, one) for envoy in site.envoys for one in site.engines])

    async def cause() -> None:
        await happens(site, engine)

    await until(all_in, "all engines are in")
    trial = await ejection_trial(site, {"event": event}, engine, cause)
    await ends(site, engine)
    return trial


COLUMNS: Final[Sequence[ResultColumn[TrialGroup]]] = (
    ResultColumn(heading="event", cell=lambda some: some.labels["event"], left=True),
    ResultColumn(heading="trials", cell=lambda some: str(len(some.trials))),
    ResultColumn(heading="first p50", cell=lambda some: f"{1e3 * some.percentile('first_s', 50):.0f} ms"),
    ResultColumn(heading="last p50", cell=lambda some: f"{1e3 * some.percentile('last_s', 50):.0f} ms"),
    ResultColumn(heading="last p99", cell=lambda some: f"{1e3 * some.percentile('last_s', 99):.0f} ms"),
    ResultColumn(heading="target", cell=lambda _: f"{1e3 * TARGET_S:.0f} ms"),
)


def main(argv: Sequence[str]) -> int:
    """Measure, print, write; 1 when a target is missed."""
    parser = option_parser("pods", __doc__)
    parser.add_argument("--trials", type=int, default=TRIALS, help="per event")
    parser.add_argument("--rate", type=float, default=RATE_PER_S, help="requests per second")
    options = parser.parse_args(argv)
    trials = asyncio.run(measure(options.trials, options.rate))
    groups = trial_groups(trials)
    title = f"what becomes of a pod, to out of every Envoy ({ENGINES} engines, {ENVOYS} Envoys)"
    answer = {"target_s": TARGET_S, "trials": [trial.record() for trial in trials]}
    met = all(some.percentile("last_s", 99) <= TARGET_S for some in groups)
    return publish([result_table(title, COLUMNS, groups)], options.json, answer, met=met)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
