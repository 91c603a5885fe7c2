"""Pod event to ejection: time until every connected Envoy stops sending new requests to its engine.

Four fake engines as pods of a cluster, the real control plane reading that cluster, two real Envoys, steady load.
A pod becomes not ready, its node is tainted, or it is deleted. Measured: from just before the API write until the
last Envoy's admin page shows the change. The API server is a fake in this process, or a real one, which adds its
own latency (``--api-server newest``); the kubelet that finds a pod not ready would add more. ``--others``:
further pods, whose EndpointSlices change meanwhile.
"""

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from http import HTTPStatus
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
from benchmarks.other_pods import OtherPods, apart, is_apart
from benchmarks.testbed import POOL, Testbed, ejection_trial, until
from chaos.fake_engine import FakeEngine
from chaos.processes import ChildProcesses
from tests.api_server import running_api_server
from tests.cluster_double import ClusterDouble
from tests.cluster_parts import RELEASES, Parts, existing
from xds_server.k8s.api_resources import NODES, PODS, POLICY_RESOURCES, ApiResource
from xds_server.k8s.client_config import ClientConfig, open_kube_api
from xds_server.k8s.kube_api import ApiError, KubeApi, ObjectSelector

ENGINES: Final = 4
ENVOYS: Final = 2
RATE_PER_S: Final = 60.0
TRIALS: Final = 20
DOUBLE: Final = "double"
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

    def __init__(
        self, folder: Path, processes: ChildProcesses, kubeconfig: Path, api: KubeApi, others: OtherPods | None
    ) -> None:
        super().__init__(folder, processes, engines=ENGINES, envoys=ENVOYS)
        self.api = api
        self._kubeconfig = kubeconfig
        self._others = others
        self._made: dict[int, int] = {}

    def name_of(self, engine: FakeEngine) -> str:
        """The pod that an engine is in: each has a name of its own."""
        return f"{engine.config.name}-{self._made[engine.port]}"

    def serve_from(self) -> list[str]:
        """The flags that say where policies come from."""
        return ["--kubernetes", "--kubeconfig", str(self._kubeconfig)]

    async def fill(self) -> None:
        """Write what the cluster has before the control plane starts."""
        for file in sorted(CRDS.glob("*.yaml")):
            await self.api.create(DEFINITIONS, "", yaml.safe_load(file.read_text()))
        await until(self._defined, "the definitions are served")
        if self._others is not None:
            await self._others.fill()
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

    async def _defined(self) -> bool:
        try:
            for resource in POLICY_RESOURCES.values():
                await self.api.page(ObjectSelector(resource=resource))
        except ApiError:
            return False
        return True

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

    async def remove_pod(self, engine: FakeEngine) -> None:
        """Remove a terminating pod, as its kubelet does when its processes have ended."""
        access = yaml.safe_load(self._kubeconfig.read_text())
        headers = {"Authorization": f"Bearer {access['users'][0]['user'].get('token', '')}"}
        url = f"{self.api.server}{PODS.path('default')}/{self.name_of(engine)}?gracePeriodSeconds=0"
        async with self.http.delete(url, headers=headers, ssl=False) as answer:
            # The fake removes it by itself after its time.
            if answer.status not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
                raise RuntimeError(f"DELETE {url}: {answer.status}")


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

    await site.remove_pod(engine)
    await until(gone, "the pod is gone")
    await site.make_pod(engine)


Act = Callable[[ClusterTestbed, FakeEngine], Awaitable[None]]
EVENTS: Final[Mapping[str, tuple[Act, Act]]] = {
    "not ready": (_not_ready, _ready),
    "node tainted": (_taint, _untaint),
    "deleted": (_delete, _another),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsPlan:
    """``api_server``: the double, or a release of a real one. ``others``: how many further pods."""

    api_server: str
    trials: int
    rate_per_s: float
    others: int
    updates_per_s: float


async def measure(plan: PodsPlan) -> tuple[list[Trial], int]:
    """All trials of all events, one after another on the same site; and changes of other pods meanwhile."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="switchgear-bench-")))
        kubeconfig = await _cluster(plan.api_server, folder, stack)
        api = await stack.enter_async_context(open_kube_api(ClientConfig(kubeconfig=kubeconfig)))
        others = OtherPods(api, plan.others) if plan.others else None
        processes = await stack.enter_async_context(ChildProcesses())
        site = await stack.enter_async_context(ClusterTestbed(folder, processes, kubeconfig, api, others))
        await stack.enter_async_context(site.under_load(plan.rate_per_s))
        if others is not None:
            await stack.enter_async_context(others.changing(plan.updates_per_s))
        trials = [
            await _trial(site, event, site.engines[number % ENGINES])
            for event in EVENTS
            for number in range(plan.trials)
        ]
        return trials, 0 if others is None else others.updates


async def _cluster(api_server: str, folder: Path, stack: AsyncExitStack) -> Path:
    """Start the API server; its kubeconfig."""
    if api_server == DOUBLE:
        cluster = await stack.enter_async_context(ClusterDouble())
        return cluster.write_kubeconfig(folder / "kubeconfig")
    programs = existing(api_server)
    parts = Parts(apiserver=programs / "kube-apiserver", etcd=programs / "etcd")
    (folder / "api-server").mkdir()
    return (await stack.enter_async_context(running_api_server(parts, folder / "api-server"))).kubeconfig


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
    parser.add_argument("--api-server", choices=[DOUBLE, *RELEASES], default=DOUBLE)
    parser.add_argument("--others", type=int, default=0, metavar="PODS", help="of a pool that no route names")
    parser.add_argument("--updates", type=float, default=50.0, help="changes of their EndpointSlices per second")
    options = parser.parse_args(argv)
    if options.others and not is_apart():
        apart(["benchmarks", "pods", *argv])
    plan = PodsPlan(
        api_server=options.api_server,
        trials=options.trials,
        rate_per_s=options.rate,
        others=options.others,
        updates_per_s=options.updates,
    )
    trials, updates = asyncio.run(measure(plan))
    groups = trial_groups(trials)
    title = f"what becomes of a pod, to out of every Envoy ({ENGINES} engines, {ENVOYS} Envoys)"
    caption = f"API server: {plan.api_server}; {plan.others} other pods, {updates} changes of their EndpointSlices"
    answer = {
        "target_s": TARGET_S,
        "api_server": plan.api_server,
        "other_pods": plan.others,
        "slice_updates": updates,
        "trials": [trial.record() for trial in trials],
    }
    met = all(some.percentile("last_s", 99) <= TARGET_S for some in groups)
    return publish([result_table(title, COLUMNS, groups, caption=caption)], options.json, answer, met=met)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
