"""What is written to a cluster, against an API server."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from istio.live.desired_state import MANAGER, SERVING_LABEL, DesiredState, DesiredWorkloadEntry, PodServingLabel
from istio.live.endpoint_writer import WORKLOAD_ENTRIES, EndpointWriter
from tests.cluster import Cluster
from tests.cluster_double import Troubles
from tests.eventually import eventually
from xds_server.k8s.api_resources import LEASES, PODS
from xds_server.k8s.kube_api import ObjectSelector
from xds_server.k8s.lease import LeaderElector, LeaseTimings
from xds_server.model.token_bucket import RateLimit

CRD = Path(__file__).parent / "workload-entries.yaml"
LIMIT_S = 60


class DesiredFixture:
    """What is wanted, to be changed while it runs."""

    def __init__(self) -> None:
        self.pods: dict[tuple[str, str], PodServingLabel] = {}
        self.entries: dict[tuple[str, str], DesiredWorkloadEntry] = {}
        self.known = True

    def __call__(self) -> DesiredState | None:
        if not self.known:
            return None
        return DesiredState(pods=MappingProxyType(dict(self.pods)), entries=MappingProxyType(dict(self.entries)))

    def pod(self, found: Mapping[str, Any], *, serving: bool) -> None:
        name, uid = found["metadata"]["name"], found["metadata"]["uid"]
        self.pods["default", name] = PodServingLabel(
            namespace="default", name=name, uid=uid, serving=serving, reason="hung"
        )

    def entry(self, name: str, *, serving: bool, weight: int = 0) -> None:
        self.entries["default", name] = DesiredWorkloadEntry(
            namespace="default",
            name=name,
            pool="chat",
            engine=name,
            address="127.0.0.1",
            port=8000,
            locality="r/z",
            weight=weight,
            serving=serving,
            reason="hung",
        )


def steward(cluster: Cluster, asked: DesiredFixture, identity: str = "one", **more: Any) -> EndpointWriter:
    lease = LeaderElector(
        cluster.api, namespace="default", name="istio", identity=identity, timings=LeaseTimings(poll_s=0.05)
    )
    return EndpointWriter(cluster.api, lease, asked, **more)


@asynccontextmanager
async def running(one: EndpointWriter) -> AsyncIterator[EndpointWriter]:
    task = asyncio.create_task(one.run())
    try:
        yield one
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def labels(cluster: Cluster, pod: str) -> Mapping[str, str]:
    found: Mapping[str, str] = (await cluster.api.get(PODS, "default", pod))["metadata"].get("labels") or {}
    return found


async def spec(cluster: Cluster, entry: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (await cluster.api.get(WORKLOAD_ENTRIES, "default", entry))["spec"]
    return found


async def says(cluster: Cluster, pod: str, label: str | None) -> bool:
    return (await labels(cluster, pod)).get(SERVING_LABEL) == label


async def serves(cluster: Cluster, entry: str) -> str:
    names = [one["metadata"]["name"] for one in await entries(cluster)]
    return str((await spec(cluster, entry))["labels"][SERVING_LABEL]) if entry in names else "absent"


async def entries(cluster: Cluster) -> list[Mapping[str, Any]]:
    return list((await cluster.api.page(ObjectSelector(resource=WORKLOAD_ENTRIES))).items)


@pytest.fixture
async def asked(cluster: Cluster) -> DesiredFixture:
    await cluster.define(CRD)
    return DesiredFixture()


async def test_engines_leave_and_come_back(cluster: Cluster, asked: DesiredFixture) -> None:
    pod = await cluster.pod("e1", ip="127.0.0.1", labels={"app": "vllm"})
    asked.pod(pod, serving=True)
    asked.entry("outside", serving=True)
    async with running(steward(cluster, asked)):
        await eventually(lambda: says(cluster, "e1", "true"), "the pod serves", LIMIT_S)
        await eventually(lambda: serves_is(cluster, "outside", "true"), "the entry serves", LIMIT_S)
        asked.pod(pod, serving=False)
        asked.entry("outside", serving=False)
        await eventually(lambda: says(cluster, "e1", "false"), "the pod is out", LIMIT_S)
        await eventually(lambda: serves_is(cluster, "outside", "false"), "the entry is out", LIMIT_S)
        asked.pod(pod, serving=True)
        asked.entry("outside", serving=True, weight=25)
        await eventually(lambda: says(cluster, "e1", "true"), "the pod is back", LIMIT_S)
        await eventually(lambda: weighs(cluster, "outside", 25), "the entry is on trial", LIMIT_S)
        asked.entry("outside", serving=True)
        await eventually(lambda: weighs(cluster, "outside", None), "the weight is gone", LIMIT_S)
        assert (await labels(cluster, "e1"))["app"] == "vllm", "fields of others stay"
        del asked.entries["default", "outside"], asked.pods["default", "e1"]
        await eventually(lambda: says(cluster, "e1", None), "the label is gone", LIMIT_S)
        await eventually(lambda: none_left(cluster), "the entry is gone", LIMIT_S)


async def serves_is(cluster: Cluster, entry: str, flag: str) -> bool:
    return await serves(cluster, entry) == flag


async def weighs(cluster: Cluster, entry: str, weight: int | None) -> bool:
    return (await spec(cluster, entry)).get("weight") == weight


async def none_left(cluster: Cluster) -> bool:
    return not await entries(cluster)


async def test_leader_election_fails_over_to_the_second_writer(cluster: Cluster, asked: DesiredFixture) -> None:
    asked.entry("outside", serving=True)
    first, second = steward(cluster, asked, "one"), steward(cluster, asked, "two")
    async with running(second):
        async with running(first):
            await eventually(lambda: serves_is(cluster, "outside", "true"), "one of them writes", LIMIT_S)
            assert (first.counts.written > 0) is not (second.counts.written > 0)
        asked.entry("outside", serving=False)
        await eventually(lambda: serves_is(cluster, "outside", "false"), "the other continues", LIMIT_S)
        holder = (await cluster.api.get(LEASES, "default", "istio"))["spec"]["holderIdentity"]
        assert holder.startswith("two")


async def test_unknown_verdicts_write_nothing(cluster: Cluster, asked: DesiredFixture) -> None:
    asked.entry("outside", serving=True)
    one = steward(cluster, asked)
    async with running(one):
        await eventually(lambda: serves_is(cluster, "outside", "true"), "the entry is written", LIMIT_S)
        asked.known = False
        asked.entries.clear()
        for _ in range(10):
            await one.reconcile()
        assert await serves(cluster, "outside") == "true"


async def test_a_pod_that_is_gone_is_not_made_again(cluster: Cluster, asked: DesiredFixture) -> None:
    pod = await cluster.pod("e1", ip="127.0.0.1")
    asked.pod(pod, serving=False)
    await cluster.api.delete(PODS, "default", "e1")
    one = steward(cluster, asked)
    async with running(one):
        await eventually(lambda: one.counts.refused > 0, "it is refused", LIMIT_S)
        status, _ = await cluster.ask("GET", PODS.path("default", "e1"))
        assert status == 404
        again = await cluster.pod("e1", ip="127.0.0.1")
        assert again["metadata"]["uid"] != pod["metadata"]["uid"]
        for _ in range(5):
            await one.reconcile()
        assert await says(cluster, "e1", None), "nothing was decided of this one"


async def test_api_errors_back_off_and_a_lost_api_server_delays_writes(
    cluster: Cluster, asked: DesiredFixture
) -> None:
    double = cluster.must_be_double("it answers 429 for one path")
    asked.entry("outside", serving=True)
    one = steward(cluster, asked)
    async with running(one):
        await eventually(lambda: serves_is(cluster, "outside", "true"), "the entry is written", LIMIT_S)
        double.trouble(Troubles(too_many=1000, only="/workloadentries"))
        asked.entry("outside", serving=False)
        await eventually(lambda: one.counts.refused > 0, "it is refused", LIMIT_S)
        double.trouble(Troubles())
        await eventually(lambda: serves_is(cluster, "outside", "false"), "written after retries", LIMIT_S)
        await double.down()
        asked.entry("outside", serving=True)
        await double.up()
        await eventually(lambda: serves_is(cluster, "outside", "true"), "written once the API is back", LIMIT_S)


async def test_writes_are_rate_limited(cluster: Cluster, asked: DesiredFixture) -> None:
    for number in range(12):
        asked.entry(f"e{number}", serving=True)
    now_s = 0.0
    one = steward(cluster, asked, rate=RateLimit(burst=5, per_s=1), clock=lambda: now_s)
    async with running(one):
        await eventually(lambda: one.counts.held_back > 0, "the rest waits", LIMIT_S)
        assert len(await entries(cluster)) == 5
        now_s = 3.0
        await eventually(lambda: count_is(cluster, 8), "three more", LIMIT_S)
        now_s = 60.0
        await eventually(lambda: count_is(cluster, 12), "all", LIMIT_S)


async def count_is(cluster: Cluster, count: int) -> bool:
    return len(await entries(cluster)) == count


async def test_a_dry_run_says_what_it_would_do_once_and_does_nothing(
    cluster: Cluster, asked: DesiredFixture
) -> None:
    asked.entry("outside", serving=False)
    lines: list[str] = []
    async with running(steward(cluster, asked, dry_run=True, tell=lines.append)) as one:
        await eventually(lambda: bool(lines), "the dry run reports", LIMIT_S)
        for _ in range(3):
            await one.reconcile()
    assert lines == ["would: workload entry default/outside out of rotation: hung"]
    assert not await entries(cluster)


async def test_an_exported_entry_is_adjusted_and_left_serving(cluster: Cluster, asked: DesiredFixture) -> None:
    exported = {
        "apiVersion": "networking.istio.io/v1",
        "kind": "WorkloadEntry",
        "metadata": {"name": "outside", "labels": {"app.kubernetes.io/managed-by": "switchgear"}},
        "spec": {"address": "127.0.0.9", "labels": {SERVING_LABEL: "true", "pool": "chat"}, "ports": {"http": 1}},
    }
    await cluster.api.create(WORKLOAD_ENTRIES, "default", exported)
    asked.entry("outside", serving=False)
    async with running(steward(cluster, asked)):
        await eventually(lambda: serves_is(cluster, "outside", "false"), "the entry is out", LIMIT_S)
        found = await spec(cluster, "outside")
        assert (found["address"], found["labels"]["pool"]) == ("127.0.0.9", "chat")
    assert await steward(cluster, asked).remove() == 1
    assert await serves(cluster, "outside") == "true"
    assert await steward(cluster, asked).remove() == 0


async def test_all_that_is_ours_can_be_taken_away(cluster: Cluster, asked: DesiredFixture) -> None:
    asked.pod(await cluster.pod("e1", ip="127.0.0.1", labels={"app": "vllm"}), serving=False)
    asked.entry("outside", serving=True)
    await cluster.api.create(
        WORKLOAD_ENTRIES,
        "default",
        {
            "apiVersion": "networking.istio.io/v1",
            "kind": "WorkloadEntry",
            "metadata": {"name": "theirs"},
            "spec": {"address": "127.0.0.1"},
        },
    )
    async with running(steward(cluster, asked)):
        await eventually(lambda: says(cluster, "e1", "false"), "the entry is written", LIMIT_S)
        await eventually(lambda: serves_is(cluster, "outside", "true"), "the entry is written", LIMIT_S)
    told: list[str] = []
    assert await steward(cluster, asked, dry_run=True, tell=told.append).remove() == 2
    assert await says(cluster, "e1", "false")
    assert await steward(cluster, asked, tell=told.append).remove() == 2
    assert await labels(cluster, "e1") == {"app": "vllm"}
    assert [one["metadata"]["name"] for one in await entries(cluster)] == ["theirs"]
    managed = (await cluster.api.get(PODS, "default", "e1"))["metadata"].get("managedFields") or ()
    assert MANAGER not in {one.get("manager") for one in managed}
    assert await steward(cluster, asked, tell=told.append).remove() == 0
