"""The cluster source against an API server: its states, their timing, and server failures."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from policies.engine_tls import unusable_secret
from policies.findings import PolicyError
from policies.load import load
from policies.model import PolicySet
from policies.origin import Origin
from tests.cluster import Cluster
from tests.cluster_double import Troubles
from tests.eventually import eventually
from xds_server.k8s.api_resources import ENDPOINT_SLICES, MODEL_ROUTES, NODES, PODS
from xds_server.k8s.source import ClusterSource, WatchScope
from xds_server.k8s.source.cluster_source import ClusterSourceTimings
from xds_server.k8s.watch_backoff import WatchBackoffPolicy
from xds_server.model.fleet import EngineId
from xds_server.model.pod_state import PodPhase, PodState
from xds_server.model.policy_state import AcceptedPolicies, PolicyState, RejectedPolicies

LIMIT_S = 60.0
EXAMPLES = Path(__file__).parents[4] / "policies" / "examples"
QUICK = WatchBackoffPolicy(first_s=0.02, most_s=0.1, slow_s=0.1)


def pool(name: str = "chat", **spec: Any) -> dict[str, Any]:
    block = {"service": "vllm", "port": "http"}
    return {
        "apiVersion": "switchgear.dev/v1alpha1",
        "kind": "EnginePool",
        "metadata": {"name": name},
        "spec": {"model": "m", "kubernetes": block, **spec},
    }


def route(name: str = "front", to: str = "chat") -> dict[str, Any]:
    return {
        "apiVersion": "switchgear.dev/v1alpha1",
        "kind": "ModelRoute",
        "metadata": {"name": name},
        "spec": {"listener": {"port": 10000}, "pools": [{"pool": to}]},
    }


class RunningSource:
    """A running source and its states."""

    def __init__(
        self, cluster: Cluster, scope: WatchScope | None = None, *, ping_s: float = 60.0, **more: Any
    ) -> None:
        self.states: list[PolicyState] = []
        self.pod_states: list[Mapping[EngineId, PodState]] = []
        self.uids: list[Mapping[EngineId, str]] = []
        self.source = ClusterSource(
            cluster.api,
            scope or WatchScope(),
            on_pod_states=self._record,
            timings=ClusterSourceTimings(settle_s=0.01, ping_s=ping_s, backoff=QUICK),
            rng=random.Random(0),
            **more,
        )

    def _record(self, pod_states: Mapping[EngineId, PodState], uids: Mapping[EngineId, str]) -> None:
        self.pod_states.append(pod_states)
        self.uids.append(uids)

    async def follow(self) -> None:
        async with contextlib.aclosing(self.source.states()) as states:
            async for state in states:
                self.states.append(state)

    @property
    def policies(self) -> PolicySet | None:
        last = self.states[-1] if self.states else None
        return last.policies if isinstance(last, AcceptedPolicies) else None

    def engines(self, of: str = "chat") -> tuple[str, ...]:
        found = self.policies.pools.get(of) if self.policies else None
        return tuple(one.name for one in found.spec.endpoints) if found else ()

    def standing(self, engine: str, of: str = "chat") -> PodPhase | None:
        found = (self.pod_states[-1] if self.pod_states else {}).get(EngineId(of, engine))
        return found.standing if found else None

    async def until(self, condition: Any, what: str) -> None:
        await eventually(condition, what, LIMIT_S)


@asynccontextmanager
async def watched(cluster: Cluster, scope: WatchScope | None = None, **more: Any) -> AsyncIterator[RunningSource]:
    one = RunningSource(cluster, scope, **more)
    tasks = [asyncio.create_task(one.source.run()), asyncio.create_task(one.follow())]
    try:
        yield one
    finally:
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended


async def two_engines(cluster: Cluster) -> None:
    """A Service with two pods on two nodes, and a pool of them behind a route."""
    await cluster.define()
    for number in (1, 2):
        await cluster.node(f"node-{number}", zone=f"z{number}", region="r")
        await cluster.pod(
            f"vllm-{number}",
            labels={"app": "vllm"},
            annotations={"switchgear.dev/slots": "16", "switchgear.dev/agent-port": "9000"},
            node=f"node-{number}",
            ip=f"10.0.0.{number}",
            ports={"http": 8000},
        )
    await cluster.service("vllm", selector={"app": "vllm"}, ports={"http": 8000})
    await cluster.put(pool())
    await cluster.put(route())


async def edit(cluster: Cluster, *, to: str) -> None:
    await cluster.api.merge(MODEL_ROUTES, "default", "front", {"spec": {"pools": [{"pool": to}]}})


async def test_first_state_has_policies_and_engines(cluster: Cluster) -> None:
    await two_engines(cluster)
    async with watched(cluster) as seen:
        await seen.until(lambda: seen.states, "a state")
        assert isinstance(seen.states[0], AcceptedPolicies)
        (first, second) = seen.states[0].policies.pools["chat"].spec.endpoints
        assert (first.name, first.address, first.port) == ("vllm-1", "10.0.0.1", 8000)
        assert (first.zone, first.region, first.slots, first.agent_port) == ("z1", "r", 16, 9000)
        assert second.zone == "z2"
        assert list(seen.states[0].policies.routes) == ["front"]
        assert sorted(seen.states[0].texts) == ["default/EnginePool/chat", "default/ModelRoute/front"]
        assert set(seen.source.pods) == {EngineId("chat", "vllm-1"), EngineId("chat", "vllm-2")}
        assert [(one.kind, one.name, one.serving, one.problems) for one in seen.source.policy_objects] == [
            ("EnginePool", "chat", True, ()),
            ("ModelRoute", "front", True, ()),
        ]
        assert seen.source.stale == {}


async def test_pool_with_missing_secret_waits_for_reevaluation(cluster: Cluster) -> None:
    await two_engines(cluster)
    await cluster.put(pool("secured", tls={"secret": "engines", "serverName": "engine"}))
    known: set[str] = set()

    def error(name: str, at: Origin, path: str) -> PolicyError | None:
        return None if name in known else unusable_secret(at, name, "it is not there", known, path=path)

    async with watched(cluster, secret_error=error) as seen:
        await seen.until(lambda: seen.policies, "policies")
        assert seen.policies is not None
        assert list(seen.policies.pools) == ["chat"]
        (refused,) = [one for one in seen.source.policy_objects if one.name == "secured"]
        assert [one.code for one in refused.problems] == ["SG043"]
        known.add("engines")
        seen.source.reevaluate()
        await seen.until(lambda: seen.policies and len(seen.policies.pools) == 2, "both pools")
        assert not any(one.problems for one in seen.source.policy_objects)


async def test_no_state_before_initial_sync(cluster: Cluster) -> None:
    double = cluster.must_be_double("it fails for one path")
    await two_engines(cluster)
    double.trouble(Troubles(failing=3, only="/endpointslices"))
    async with watched(cluster) as seen:
        await seen.until(lambda: seen.states, "a state")
    assert [tuple(one.name for one in state.policies.pools["chat"].spec.endpoints) for state in seen.states] == [
        ("vllm-1", "vllm-2")
    ]  # type: ignore[union-attr]


async def test_pod_readiness_changes_no_document(cluster: Cluster) -> None:
    cluster.must_have_controllers()
    await two_engines(cluster)
    async with watched(cluster) as seen:
        await seen.until(seen.engines, "engines")
        before = len(seen.states)
        await cluster.condition("vllm-1", "Ready", held=False)
        await seen.until(lambda: seen.standing("vllm-1") is PodPhase.NOT_READY, "the word")
        assert "vllm-1 is not ready: Ready is False" in seen.pod_states[-1][EngineId("chat", "vllm-1")].reason
        await cluster.condition("vllm-1", "Ready", held=True)
        await seen.until(lambda: seen.standing("vllm-1") is None, "the word taken back")
        assert len(seen.states) == before


async def test_deleted_pod_drains_before_it_is_removed(cluster: Cluster) -> None:
    cluster.must_have_controllers()
    await two_engines(cluster)
    async with watched(cluster) as seen:
        await seen.until(lambda: len(seen.engines()) == 2, "engines")
        await cluster.api.delete(PODS, "default", "vllm-1")
        await seen.until(lambda: seen.standing("vllm-1") is PodPhase.LEAVING, "it is leaving")
        assert len(seen.engines()) == 2
        await cluster.api._ask("DELETE", PODS.path("default", "vllm-1"), {"gracePeriodSeconds": "0"})
        await seen.until(lambda: seen.engines() == ("vllm-2",), "it is gone")
        await seen.until(lambda: seen.standing("vllm-1") is None, "and so is the word")
        assert set(seen.source.pods) == {EngineId("chat", "vllm-2")}


async def test_broken_node_ejects_its_engines_and_a_cordon_does_not(cluster: Cluster) -> None:
    cluster.must_have_controllers()
    await two_engines(cluster)
    async with watched(cluster) as seen:
        await seen.until(seen.engines, "engines")
        await cluster.api.merge(NODES, "", "node-2", {"spec": {"unschedulable": True}})
        taint = {"key": "nvidia.com/gpu-xid-error", "value": "true", "effect": "NoSchedule"}
        await cluster.api.merge(NODES, "", "node-1", {"spec": {"taints": [taint]}})
        await seen.until(lambda: seen.standing("vllm-1") is PodPhase.UNFIT, "the word")
        assert (
            seen.pod_states[-1][EngineId("chat", "vllm-1")].reason
            == "node node-1 has taint nvidia.com/gpu-xid-error"
        )
        assert seen.standing("vllm-2") is None
        await cluster.api.merge(NODES, "", "node-1", {"spec": {"taints": None}})
        await seen.until(lambda: not seen.pod_states[-1], "the word taken back")


async def test_invalid_object_keeps_its_last_version_and_others_continue(cluster: Cluster) -> None:
    await two_engines(cluster)
    async with watched(cluster) as seen:
        await seen.until(seen.engines, "engines")
        # Not expressible in a CRD schema: a dangling reference.
        await edit(cluster, to="chta")
        await seen.until(lambda: seen.source.policy_objects[1].problems, "a problem")
        refused = seen.source.policy_objects[1]
        assert refused.serving
        assert [error.code for error in refused.problems] == ["SG031"]
        assert '"pool":"chat"' in refused.last_accepted.replace(" ", "")
        await cluster.put(pool(slotsPerEngine=4))
        await seen.until(
            lambda: seen.policies and seen.policies.pools["chat"].spec.slots_per_engine == 4, "the other's edit"
        )
        assert seen.policies is not None
        assert [one.pool for one in seen.policies.routes["front"].spec.pools] == ["chat"]
        assert [one.code for one in seen.policies.remarks] == ["SG151"]
        await edit(cluster, to="chat")
        await seen.until(lambda: not seen.source.policy_objects[1].problems, "no problem")


async def test_lost_api_server_changes_only_staleness(cluster: Cluster) -> None:
    cluster.must_have_controllers()
    await two_engines(cluster)
    async with watched(cluster) as seen:
        await seen.until(lambda: len(seen.engines()) == 2, "engines")
        before = (len(seen.states), len(seen.pod_states))
        await cluster.down()
        await seen.until(lambda: len(seen.source.stale) == 6, "all is stale")
        assert set(seen.source.stale) == {
            "enginepools",
            "modelroutes",
            "resiliencepolicies",
            "pods",
            "endpointslices",
            "nodes",
        }
        assert all(seconds >= 0 for seconds in seen.source.stale.values())
        assert (len(seen.states), len(seen.pod_states)) == before
        await cluster.up()
        await seen.until(lambda: not seen.source.stale, "in touch again")
        await cluster.condition("vllm-2", "Ready", held=False)
        await seen.until(lambda: seen.standing("vllm-2") is PodPhase.NOT_READY, "news again")
        assert len(seen.states) == before[0]


async def test_silent_api_server_is_detected(cluster: Cluster) -> None:
    cluster.must_have_controllers()
    await two_engines(cluster)
    async with watched(cluster, ping_s=0.5) as seen:
        await seen.until(seen.engines, "engines")
        cluster.freeze()
        await seen.until(lambda: len(seen.source.stale) == 6, "all is stale")
        assert len(seen.engines()) == 2
        cluster.thaw()
        await seen.until(lambda: not seen.source.stale, "in touch again")


async def test_unobservable_pods_are_not_gone(cluster: Cluster) -> None:
    double = cluster.must_be_double("it fails for one path")
    await two_engines(cluster)
    async with watched(cluster) as seen:
        await seen.until(lambda: len(seen.engines()) == 2, "engines")
        await seen.until(lambda: double.watches == 6, "all watches are open")
        double.trouble(Troubles(failing=1_000_000, only="/pods"))
        double.reset_watches()
        await seen.until(lambda: set(seen.source.stale) == {"pods"}, "pods are out of touch")
        target = {"kind": "Pod", "namespace": "default", "name": "newborn", "uid": "u"}
        manifest = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "by-hand", "labels": {"kubernetes.io/service-name": "vllm"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.9"], "conditions": {"ready": True}, "targetRef": target}],
            "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}],
        }
        await cluster.api.create(ENDPOINT_SLICES, "default", manifest)
        await seen.until(lambda: "newborn" in seen.engines(), "its engine")
        assert not any(EngineId("chat", "newborn") in pod_states for pod_states in seen.pod_states)
        double.trouble(Troubles())
        await seen.until(lambda: seen.standing("newborn") is PodPhase.GONE, "what can be known again")


async def test_expired_resource_versions_relist_without_flapping(cluster: Cluster) -> None:
    double = cluster.must_be_double("it changes while it is down")
    await two_engines(cluster)
    async with watched(cluster) as seen:
        await seen.until(lambda: len(seen.engines()) == 2, "engines")
        states, earlier = len(seen.states), len(seen.pod_states)
        await double.down()
        await seen.until(lambda: len(seen.source.stale) == 6, "all is stale")
        for path in ("vllm-1",):
            double.cluster.answer(_delete(PODS.path("default", path)))
        if double._controllers is not None:
            double._controllers.run()
        double.expire()
        await double.up()
        await seen.until(lambda: seen.engines() == ("vllm-2",), "what was deleted meanwhile is gone")
        since = [
            tuple(one.name for one in state.policies.pools["chat"].spec.endpoints)
            for state in seen.states[states:]
            if isinstance(state, AcceptedPolicies)
        ]
        # One step per list: no other engine leaves, and removed ones do not return.
        assert len(since) == len(seen.states) - states
        assert since in (
            [("vllm-1", "vllm-2")] * (len(since) - left) + [("vllm-2",)] * left for left in range(1, 4)
        )
        assert all(
            not manifest or set(manifest) == {EngineId("chat", "vllm-1")} for manifest in seen.pod_states[earlier:]
        )


def _delete(path: str) -> Any:
    from tests.cluster_double.asking import Request  # noqa: PLC0415 - this test alone speaks to the value

    return Request(method="DELETE", path=path, query={"gracePeriodSeconds": "0"})


async def test_missing_crds_are_tolerated_and_found_later(cluster: Cluster) -> None:
    cluster.must_have_controllers()
    async with watched(cluster) as seen:
        await seen.until(lambda: seen.states, "a state")
        assert isinstance(seen.states[0], RejectedPolicies)
        assert [one.code for one in seen.states[0].errors] == ["SG006"]
        assert set(seen.source.unreadable) == {"enginepools", "modelroutes", "resiliencepolicies"}
        assert seen.source.stale == {}
        await two_engines(cluster)
        await seen.until(lambda: len(seen.engines()) == 2, "engines")
        await seen.until(lambda: not seen.source.unreadable, "all definitions")


async def test_only_selected_namespaces_and_labels_are_read(cluster: Cluster) -> None:
    cluster.must_have_controllers()
    await two_engines(cluster)
    for name in ("one", "two", "three"):
        await cluster.namespace(name)
        await cluster.put(
            {**pool(f"of-{name}"), "metadata": {"name": f"of-{name}", "labels": {"team": name}}}, namespace=name
        )
        await cluster.pod(
            f"in-{name}",
            namespace=name,
            node="node-1",
            labels={"app": "vllm"},
            ip="10.0.1.1",
            ports={"http": 8000},
        )
        await cluster.service("vllm", namespace=name, selector={"app": "vllm"}, ports={"http": 8000})
    async with watched(cluster, WatchScope(namespaces=("one", "two"))) as seen:
        await seen.until(lambda: seen.policies and len(seen.policies.pools) == 2, "two pools")
        await seen.until(lambda: seen.engines("of-one") == ("in-one",), "its engine")
        await seen.until(lambda: seen.engines("of-two") == ("in-two",), "its engine")
    async with watched(cluster, WatchScope(policy_selector="team in (two,three)")) as seen:
        await seen.until(lambda: seen.policies and set(seen.policies.pools) == {"of-two", "of-three"}, "by label")


async def test_examples_are_equal_in_cluster_and_files(cluster: Cluster) -> None:
    await cluster.define()
    file = EXAMPLES / "flagship-with-fallback.yaml"
    documents = [manifest for manifest in yaml.safe_load_all(file.read_text()) if manifest]
    for manifest in documents:
        await cluster.put(manifest)
    expected = load([file])
    async with watched(cluster) as seen:
        await seen.until(
            lambda: seen.policies and len(seen.source.policy_objects) == len(documents), "everything is read"
        )
        assert seen.policies is not None
        assert [one for one in seen.source.policy_objects if one.problems] == []
        assert seen.policies.effective == expected.effective
        assert {name: one.spec for name, one in seen.policies.pools.items()} == {
            name: one.spec for name, one in expected.pools.items()
        }
        assert {name: one.spec for name, one in seen.policies.routes.items()} == {
            name: one.spec for name, one in expected.routes.items()
        }


async def test_two_sources_produce_equal_texts(cluster: Cluster) -> None:
    cluster.must_have_controllers()
    await two_engines(cluster)
    async with watched(cluster) as one:
        await one.until(one.engines, "engines")
        await cluster.put(pool(slotsPerEngine=4))
        await one.until(lambda: one.policies and one.policies.pools["chat"].spec.slots_per_engine == 4, "the edit")
        async with watched(cluster) as other:
            await other.until(lambda: other.states, "a state")
            mine, theirs = one.states[-1], other.states[-1]
            assert isinstance(mine, AcceptedPolicies)
            assert isinstance(theirs, AcceptedPolicies)
            assert (mine.texts, mine.digest) == (theirs.texts, theirs.digest)
            assert mine.policies.digest == theirs.policies.digest
