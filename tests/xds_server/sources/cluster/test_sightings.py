"""What moves is looked at anew, and nothing else."""

from typing import Any

import pytest

from tests.xds_server.sources.cluster.objects import BY_LABEL, SERVICE, Json, endpoint, key, node, part, pod
from xds_server.fleet import EngineId
from xds_server.fleet.orchestrator import Standing
from xds_server.sources.cluster import seen
from xds_server.sources.cluster.sightings import Block, Sightings
from xds_server.sources.cluster.signs import NodeSigns


def see(there: Sightings, *objects: Json) -> None:
    for one in objects:
        if "endpoints" in one:
            there.see_slices([key(one)], {key(one): seen.endpoint_slice(one)})
        elif "containers" in one["spec"]:
            there.see_pods([key(one)], {key(one): seen.pod(one)})
        else:
            there.see_nodes([key(one)], {key(one): seen.node_reader(NodeSigns())(one)})


def settled() -> tuple[Sightings, Block, Block]:
    """Two engines, found by a Service and by label."""
    there = Sightings()
    by_service, by_label = (*there.want([SERVICE], "ns"), *there.want([BY_LABEL], "ns"))
    see(there, pod("a"), pod("b", "10.0.0.2"))
    see(there, part("s", endpoint("10.0.0.1", "a"), endpoint("10.0.0.2", "b")))
    assert there.look()
    assert not there.moved
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
def test_what_belongs_to_nobody_moves_nothing(unrelated: Json) -> None:
    there, _, _ = settled()
    see(there, unrelated)
    assert not there.moved
    assert not there.look()


def test_a_word_moves_no_document() -> None:
    there, by_service, by_label = settled()
    see(there, part("s", endpoint("10.0.0.1", "a", ready=False), endpoint("10.0.0.2", "b")))
    assert there.moved
    assert not there.look()
    assert {key: word.standing for key, word in there.seen({"p": by_service, "q": by_label}).words.items()} == {
        EngineId("p", "a"): Standing.NOT_READY
    }
    see(there, node(taints=[("gpu.health/x", "NoExecute")]))
    assert not there.look()
    assert set(there.seen({"p": by_service, "q": by_label}).words) == {
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
def test_an_engine_that_changes_is_a_document_that_changes(change: list[Any]) -> None:
    there, _, _ = settled()
    see(there, *change)
    assert there.look()


def test_a_pod_that_comes_after_its_slice_is_recognised() -> None:
    there = Sightings()
    (block,) = there.want([SERVICE], "ns")
    see(there, part("s", endpoint("10.0.0.1", "a")))
    there.look()
    assert there.seen({"p": block}).words[EngineId("p", "a")].standing is Standing.GONE
    see(there, pod("a", labels={}))
    there.look()
    assert not there.seen({"p": block}).words
    assert list(there.seen({"p": block}).pods) == [EngineId("p", "a")]


def test_a_pod_that_comes_back_under_its_name_and_address_is_told_apart() -> None:
    there = Sightings()
    (block,) = there.want([SERVICE], "ns")
    see(there, part("s", endpoint("10.0.0.1", "a", uid="first")), pod("a", labels={}, uid="first"))
    there.look()
    assert there.seen({"p": block}).uids == {EngineId("p", "a"): "first"}
    see(there, pod("a", labels={}, uid="second"))
    there.look()
    seen = there.seen({"p": block})
    assert (seen.words[EngineId("p", "a")].standing, seen.uids) == (Standing.GONE, {EngineId("p", "a"): "first"})
    see(there, part("s", endpoint("10.0.0.1", "a", uid="second")))
    there.look()
    seen = there.seen({"p": block})
    assert (seen.words, seen.uids) == ({}, {EngineId("p", "a"): "second"})


def test_a_slice_that_goes_over_to_another_service_leaves_the_first() -> None:
    there, by_service, _ = settled()
    moved = part("s", endpoint("10.0.0.1", "a"))
    moved["metadata"]["labels"]["kubernetes.io/service-name"] = "another"
    see(there, moved)
    assert there.look()
    assert there.entries(by_service) == ((), ())


def test_blocks_that_nobody_wants_are_forgotten() -> None:
    there, by_service, by_label = settled()
    there.keep([by_service])
    see(there, pod("c", "10.0.0.3"))
    assert not there.moved
    assert there.entries(by_label) == ((), ())
    assert len(there.entries(by_service)[0]) == 2
