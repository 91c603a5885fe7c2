"""Only changed blocks are rediscovered."""

from typing import Any

import pytest

from tests.xds_server.k8s.source.kube_objects import BY_LABEL, SERVICE, Json, endpoint, key, node, part, pod
from xds_server.k8s.source import cluster_objects as seen
from xds_server.k8s.source.engine_discovery import DiscoveryBlock, EngineDiscovery
from xds_server.k8s.source.gpu_node_rules import NodeFaultRules
from xds_server.model.fleet import EngineId
from xds_server.model.pod_state import PodPhase


def see(there: EngineDiscovery, *objects: Json) -> None:
    for one in objects:
        if "endpoints" in one:
            there.on_slices([key(one)], {key(one): seen.endpoint_slice(one)})
        elif "containers" in one["spec"]:
            there.on_pods([key(one)], {key(one): seen.pod(one)})
        else:
            there.on_nodes([key(one)], {key(one): seen.node_reader(NodeFaultRules())(one)})


def settled() -> tuple[EngineDiscovery, DiscoveryBlock, DiscoveryBlock]:
    """Two engines, found by a Service and by label."""
    there = EngineDiscovery()
    by_service, by_label = (*there.track([SERVICE], "ns"), *there.track([BY_LABEL], "ns"))
    see(there, pod("a"), pod("b", "10.0.0.2"))
    see(there, part("s", endpoint("10.0.0.1", "a"), endpoint("10.0.0.2", "b")))
    assert there.refresh()
    assert not there.refresh_due
    return there, by_service, by_label


@pytest.mark.parametrize(
    "unrelated",
    [
        pod("other", "10.0.0.9", labels={"app": "else"}),
        pod("a", namespace="elsewhere"),
        {**part("t", endpoint("10.0.0.9")), "metadata": {"name": "t", "namespace": "elsewhere", "labels": {}}},
        {**part("t", endpoint("10.0.0.9")), "metadata": {"name": "t", "namespace": "ns", "labels": {}}},
    ],
)
def test_unrelated_objects_change_no_block(unrelated: Json) -> None:
    there, _, _ = settled()
    see(there, unrelated)
    assert not there.refresh_due
    assert not there.refresh()


def test_pod_state_change_alters_no_document() -> None:
    there, by_service, by_label = settled()
    see(there, part("s", endpoint("10.0.0.1", "a", ready=False), endpoint("10.0.0.2", "b")))
    assert there.refresh_due
    assert not there.refresh()
    assert {
        key: word.standing for key, word in there.discovered({"p": by_service, "q": by_label}).pod_states.items()
    } == {EngineId("p", "a"): PodPhase.NOT_READY}
    see(there, node(taints=[("gpu.health/x", "NoExecute")]))
    assert not there.refresh()
    assert set(there.discovered({"p": by_service, "q": by_label}).pod_states) == {
        EngineId(of, name) for of in "pq" for name in "ab"
    }


@pytest.mark.parametrize(
    "change",
    [
        [pod("c", "10.0.0.3")],
        [pod("a", labels={})],
        [pod("a", annotations={"slots": "3"})],
        [part("s", endpoint("10.0.0.1", "a"))],
        [part("s", endpoint("10.0.0.1", "a"), endpoint("10.0.0.7", "b"))],
        [node(labels={"topology.kubernetes.io/zone": "z"})],
    ],
)
def test_engine_change_alters_the_document(change: list[Any]) -> None:
    there, _, _ = settled()
    see(there, *change)
    assert there.refresh()


def test_pod_arriving_after_its_slice_is_matched() -> None:
    there = EngineDiscovery()
    (block,) = there.track([SERVICE], "ns")
    see(there, part("s", endpoint("10.0.0.1", "a")))
    there.refresh()
    assert there.discovered({"p": block}).pod_states[EngineId("p", "a")].standing is PodPhase.GONE
    see(there, pod("a", labels={}))
    there.refresh()
    assert not there.discovered({"p": block}).pod_states
    assert list(there.discovered({"p": block}).pods) == [EngineId("p", "a")]


def test_recreated_pod_has_another_uid() -> None:
    there = EngineDiscovery()
    (block,) = there.track([SERVICE], "ns")
    see(there, part("s", endpoint("10.0.0.1", "a", uid="first")), pod("a", labels={}, uid="first"))
    there.refresh()
    assert there.discovered({"p": block}).uids == {EngineId("p", "a"): "first"}
    see(there, pod("a", labels={}, uid="second"))
    there.refresh()
    seen = there.discovered({"p": block})
    assert (seen.pod_states[EngineId("p", "a")].standing, seen.uids) == (
        PodPhase.GONE,
        {EngineId("p", "a"): "first"},
    )
    see(there, part("s", endpoint("10.0.0.1", "a", uid="second")))
    there.refresh()
    seen = there.discovered({"p": block})
    assert (seen.pod_states, seen.uids) == ({}, {EngineId("p", "a"): "second"})


def test_slice_moved_to_another_service_leaves_the_first() -> None:
    there, by_service, _ = settled()
    moved = part("s", endpoint("10.0.0.1", "a"))
    moved["metadata"]["labels"]["kubernetes.io/service-name"] = "another"
    see(there, moved)
    assert there.refresh()
    assert there.entries(by_service) == ((), ())


def test_unused_blocks_are_forgotten() -> None:
    there, by_service, by_label = settled()
    there.retain([by_service])
    see(there, pod("c", "10.0.0.3"))
    assert not there.refresh_due
    assert there.entries(by_label) == ((), ())
    assert len(there.entries(by_service)[0]) == 2
