"""Engines from slices, pods and nodes: membership, address, and pod state."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.discovery import Discovery
from tests.xds_server.k8s.source.kube_objects import (
    BY_LABEL,
    SERVICE,
    Json,
    endpoint,
    found,
    key,
    node,
    part,
    pod,
    standings,
    world,
)
from xds_server.k8s.source import cluster_objects
from xds_server.k8s.source.gpu_node_rules import NodeFaultRules
from xds_server.k8s.source.pool_members import DiscoveredMembers, MemberDiscovery

GATE = "switchgear.dev/engine-ready"
READY = {"Ready": "True", "ContainersReady": "True"}


def entries(of: DiscoveredMembers) -> list[dict[str, Any]]:
    return [dict(one.entry.fields) for one in of.members]


def block(**wanted: Any) -> Discovery:
    return Discovery.model_validate_json(json.dumps({"service": "vllm", "port": "http", **wanted}))


# -- behind a Service ------------------------------------------------------------------------------------------


def test_service_pod_with_all_fields() -> None:
    annotations = {
        "slots": "16",
        "gpus": "8",
        "agent-port": "agent",
        "weight": "2",
        "revision": "1.2.0",
        "tensor-parallel-group": "g",
    }
    labels = {"topology.kubernetes.io/zone": "z-of-node", "topology.kubernetes.io/region": "r"}
    result = found(
        pods=[pod("a", annotations=annotations, ports={"agent": 9000})],
        slices=[part("s", endpoint("10.0.0.1", "a", zone="z"))],
        nodes=[node(labels=labels)],
    )
    assert entries(result) == [
        {
            "name": "a",
            "address": "10.0.0.1",
            "port": 8000,
            "zone": "z",
            "region": "r",
            "agentPort": 9000,
            "slots": 16,
            "gpus": 8,
            "weight": 2,
            "revision": "1.2.0",
            "tensorParallelGroup": "g",
        }
    ]
    assert result.remarks == ()
    assert result.members[0].pod is not None
    assert (result.members[0].pod.name, result.members[0].pod.has_gate) == ("a", False)


def test_zone_defaults_to_the_node_zone() -> None:
    labels = {"topology.kubernetes.io/zone": "z"}
    result = found(pods=[pod("a")], slices=[part("s", endpoint("10.0.0.1", "a"))], nodes=[node(labels=labels)])
    assert entries(result)[0]["zone"] == "z"


def test_endpoint_without_pod_is_named_by_address() -> None:
    result = found(slices=[part("s", endpoint("192.0.2.1")), part("t", endpoint("fd00::1"), kind="IPv6")])
    assert [one["name"] for one in entries(result)] == ["192.0.2.1:8000", "[fd00::1]:8000"]
    assert standings(result) == {"192.0.2.1:8000": "", "[fd00::1]:8000": ""}
    assert [one.pod for one in result.members] == [None, None]


def test_host_name_endpoint() -> None:
    result = found(slices=[part("s", endpoint("engine.example.com"), kind="FQDN")])
    assert entries(result) == [{"name": "engine.example.com:8000", "address": "engine.example.com", "port": 8000}]


def test_pod_in_two_slices_is_one_engine() -> None:
    result = found(
        pods=[pod("a"), pod("b", "10.0.0.2")],
        slices=[
            part("s", endpoint("10.0.0.1", "a"), endpoint("10.0.0.2", "b", ready=False)),
            part("t", endpoint("10.0.0.2", "b", ready=True)),
        ],
    )
    assert standings(result) == {"a": "", "b": ""}


@pytest.mark.parametrize(
    ("first", "address"), [("10.0.0.1", "10.0.0.1"), ("fd00::1", "fd00::1"), ("", "10.0.0.1")]
)
def test_dual_stack_pod_has_one_address(first: str, address: str) -> None:
    # The slice of the other family becomes ready first: no reason to change the address.
    slices = [
        part("four", endpoint("10.0.0.1", "a", ready=first == "fd00::1")),
        part("six", endpoint("fd00::1", "a", ready=first != "fd00::1"), kind="IPv6"),
    ]
    assert [one["address"] for one in entries(found(pods=[pod("a", first)], slices=slices))] == [address]


def test_named_port_is_resolved_per_slice() -> None:
    result = found(
        pods=[pod("a"), pod("b", "10.0.0.2")],
        slices=[
            part("s", endpoint("10.0.0.1", "a"), ports={"http": 8000, "metrics": 9}),
            part("t", endpoint("10.0.0.2", "b"), ports={"http": 8001}),
        ],
    )
    assert [one["port"] for one in entries(result)] == [8000, 8001]


def test_missing_port_name_omits_one_engine() -> None:
    result = found(
        pods=[pod("a", ports={}), pod("b", "10.0.0.2")],
        slices=[part("s", endpoint("10.0.0.1", "a"), endpoint("10.0.0.2", "b"), ports={"": 8000})],
    )
    assert [one["name"] for one in entries(result)] == ["b"]
    assert result.remarks == ("pod a is left out: no port named http",)


def test_host_network_pods_need_distinct_ports() -> None:
    slices = [
        part("s", endpoint("10.0.0.1", "a"), ports={"http": 8000}),
        part("t", endpoint("10.0.0.1", "b"), endpoint("10.0.0.1", "c"), ports={"http": 8001}),
    ]
    result = found(pods=[pod("a"), pod("b", leaving=True), pod("c")], slices=slices)
    assert [(one["name"], one["port"]) for one in entries(result)] == [("a", 8000), ("c", 8001)]
    assert result.remarks == ("b is left out: c already uses 10.0.0.1:8001",)


@pytest.mark.parametrize(
    ("annotation", "text", "wanted"),
    [
        ("slots", "many", 'annotation switchgear.dev/slots is ignored: "many" is not a whole number'),
        ("slots", "0", "annotation switchgear.dev/slots is ignored: 0: "),
        ("weight", "1000", "annotation switchgear.dev/weight is ignored: 1000: "),
        ("gpus", "²", "annotation switchgear.dev/gpus is ignored: "),
        ("gpus", "9" * 5000, "annotation switchgear.dev/gpus is ignored: "),
        (
            "agent-port",
            "nowhere",
            "annotation switchgear.dev/agent-port is ignored: no port named nowhere",
        ),
        ("agent-port", "70000", "annotation switchgear.dev/agent-port is ignored: 70000: "),
        ("tensor-parallel-group", "g" * 300, "annotation switchgear.dev/tensor-parallel-group is ignored: "),
    ],
)
def test_invalid_annotation_falls_back_to_the_default(annotation: str, text: str, wanted: str) -> None:
    result = found(
        pods=[pod("a", annotations={"gpus": "4", "slots": "2", annotation: text})],
        slices=[part("s", endpoint("10.0.0.1", "a"))],
    )
    (one,) = entries(result)
    assert {key: value for key, value in one.items() if key in {"slots", "gpus"}} == {
        key: value for key, value in {"slots": 2, "gpus": 4}.items() if key != annotation
    }
    (remark,) = result.remarks
    assert remark.startswith(f"pod a: {wanted}")


def test_invalid_address_omits_one_engine() -> None:
    result = found(slices=[part("s", endpoint("no address"), endpoint("10.0.0.1"))])
    assert [one["name"] for one in entries(result)] == ["10.0.0.1:8000"]
    assert result.remarks[0].startswith("endpoint no address is left out")


def test_agent_port_from_block_or_annotation() -> None:
    result = found(
        block(agentPort="agent"),
        pods=[
            pod("a", ports={"agent": 9000}),
            pod("b", "10.0.0.2", annotations={"agent-port": "9001"}, ports={"agent": 9000}),
        ],
        slices=[part("s", endpoint("10.0.0.1", "a"), endpoint("10.0.0.2", "b"))],
    )
    assert [one["agentPort"] for one in entries(result)] == [9000, 9001]


# -- by labels -------------------------------------------------------------------------------------------------


def test_pods_are_selected_by_labels() -> None:
    result = found(
        BY_LABEL,
        pods=[
            pod("a"),
            pod("other", "10.0.0.2", labels={"app": "else"}),
            pod("elsewhere", "10.0.0.3", namespace="another"),
            pod("pending", ""),
            pod("done", "10.0.0.4", phase="Succeeded"),
            pod("b", "10.0.0.5", conditions={"Ready": "False"}),
            pod("c", "10.0.0.6", leaving=True),
        ],
    )
    assert standings(result) == {"a": "", "b": "not-ready", "c": "leaving"}
    assert "pending" in result.pods


# -- pod states ------------------------------------------------------------------------------------------------


def one_engine(
    the_pod: Json | None = None, the_endpoint: Json | None = None, the_node: Json | None = None
) -> tuple[str, str]:
    result = found(
        pods=[the_pod or pod("a")],
        slices=[part("s", the_endpoint or endpoint("10.0.0.1", "a"))],
        nodes=[the_node] if the_node else [],
    )
    (member,) = result.members
    return (member.pod_state.standing.value, member.pod_state.reason) if member.pod_state else ("", "")


@pytest.mark.parametrize(
    ("conditions", "wanted"),
    [
        ({}, ""),
        ({"ready": True, "serving": True, "terminating": False}, ""),
        ({"ready": False}, "not-ready"),
        ({"ready": False, "serving": True, "terminating": True}, "leaving"),
        ({"ready": False, "serving": False, "terminating": True}, "leaving"),
    ],
)
def test_endpoint_slice_conditions(conditions: dict[str, bool], wanted: str) -> None:
    assert one_engine(the_endpoint=endpoint("10.0.0.1", "a", **conditions))[0] == wanted


def test_terminating_pod_is_ejected_before_its_endpoint_slice_changes() -> None:
    assert one_engine(pod("a", leaving=True)) == ("leaving", "pod a is being deleted")


def test_publish_not_ready_addresses_is_honoured() -> None:
    assert one_engine(pod("a", conditions={"Ready": "False"}))[0] == ""


@pytest.mark.parametrize(
    ("conditions", "wanted"),
    [
        ({"Ready": "False", "ContainersReady": "True", GATE: "False"}, ""),
        ({"Ready": "False", "ContainersReady": "True"}, ""),
        ({"Ready": "False", "ContainersReady": "False", GATE: "False"}, "not-ready"),
        ({"Ready": "False", "ContainersReady": "True", GATE: "True", "other": "False"}, "not-ready"),
        ({**READY, GATE: "True", "other": "True"}, ""),
    ],
)
def test_own_readiness_gate_is_ignored(conditions: dict[str, str], wanted: str) -> None:
    gates = [GATE, "other"] if "other" in conditions else [GATE]
    not_ready = endpoint("10.0.0.1", "a", ready=False)
    assert one_engine(pod("a", conditions=conditions, gates=gates), not_ready)[0] == wanted


def test_deleted_pod_in_a_stale_slice_is_gone() -> None:
    lonely = found(slices=[part("s", endpoint("10.0.0.1", "a"))])
    assert standings(lonely) == {"a": "gone"}
    namesake = found(pods=[pod("a", uid="another")], slices=[part("s", endpoint("10.0.0.1", "a"))])
    assert standings(namesake) == {"a": "gone"}
    assert [one.pod for one in (*lonely.members, *namesake.members)] == [None, None]


def test_unobservable_pod_keeps_its_state() -> None:
    finder, there = MemberDiscovery(SERVICE, "ns"), world(slices=[part("s", endpoint("10.0.0.1", "a"))])
    assert standings(finder.discover(there)) == {"a": "gone"}
    there.unobservable = frozenset({"ns"})
    later = part("t", endpoint("10.0.0.2", "b"))
    there.set_slice(key(later), cluster_objects.endpoint_slice(later))
    assert standings(finder.discover(there)) == {"a": "gone", "b": ""}
    there.unobservable = None
    assert standings(finder.discover(there)) == {"a": "gone", "b": ""}
    there.unobservable = frozenset()
    assert standings(finder.discover(there)) == {"a": "gone", "b": "gone"}


@pytest.mark.parametrize(
    ("taint", "wanted"),
    [
        (("nvidia.com/gpu-xid-error", "NoSchedule"), "node node has taint nvidia.com/gpu-xid-error"),
        (("gpu.health/memory-error", "NoExecute"), "node node has taint gpu.health/memory-error"),
        (("nvidia.com/gpu-xid-error", "PreferNoSchedule"), ""),
        (("nvidia.com/gpu", "NoSchedule"), ""),
        (("node.kubernetes.io/unschedulable", "NoSchedule"), ""),
        (("node.kubernetes.io/not-ready", "NoExecute"), ""),
    ],
)
def test_node_taints_of_faulty_gpus(taint: tuple[str, str], wanted: str) -> None:
    assert one_engine(the_node=node(taints=[taint])) == (("unfit", wanted) if wanted else ("", ""))


@pytest.mark.parametrize(
    ("condition", "status", "unfit"),
    [
        ("GpuMemWatch", "True", True),
        ("GpuMemWatch", "False", False),
        ("GpuMemWatch", "Unknown", False),
        ("SysLogsXIDError", "True", True),
        ("GPUMissing", "True", True),
        ("AcceleratedHardwareReady", "False", True),
        ("AcceleratedHardwareReady", "True", False),
        # The monitor was lost, not the GPU.
        ("GpuDcgmConnectivityFailure", "True", False),
        ("Ready", "False", False),
        ("DiskPressure", "True", False),
    ],
)
def test_node_conditions_of_faulty_gpus(condition: str, status: str, *, unfit: bool) -> None:
    assert one_engine(the_node=node(conditions={condition: status}))[0] == ("unfit" if unfit else "")


def test_custom_node_fault_rules_replace_defaults() -> None:
    rules = NodeFaultRules(taints=("example.com/*",), conditions=("Fine=False", "Odd"))
    taints = [{"key": "example.com/x", "effect": "NoExecute"}, {"key": "gpu.health/x", "effect": "NoExecute"}]
    conditions = [{"type": "Fine", "status": "False"}, {"type": "Odd", "status": "True"}]
    assert rules.fault(taints, conditions) == (
        "has taint example.com/x and has condition Fine=False and has condition Odd"
    )
    assert rules.fault([], [{"type": "Fine", "status": "True"}, {"type": "Odd", "status": "Unknown"}]) == ""


@pytest.mark.parametrize(("health", "wanted"), [("Unhealthy", "unfit"), ("Healthy", ""), ("Unknown", "")])
def test_device_plugin_health_of_a_pod(health: str, wanted: str) -> None:
    resources = [{"resourceID": "GPU-1", "health": health}, {"resourceID": "GPU-2", "health": "Healthy"}]
    statuses = [{"allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": resources}]}]
    standing, reason = one_engine(pod("a", containerStatuses=statuses))
    assert standing == wanted
    assert reason == ("pod a: nvidia.com/gpu GPU-1 is unhealthy" if wanted else "")


def test_gravest_pod_state_wins() -> None:
    broken = node(taints=[("gpu.health/x", "NoExecute")])
    assert one_engine(pod("a", leaving=True), endpoint("10.0.0.1", "a", ready=False), broken)[0] == "leaving"
    assert one_engine(None, endpoint("10.0.0.1", "a", ready=False), broken)[0] == "unfit"


# -- arbitrary input -------------------------------------------------------------------------------------------

_FIELDS = [
    "metadata",
    "spec",
    "status",
    "name",
    "labels",
    "endpoints",
    "ports",
    "addresses",
    "conditions",
    "port",
    "targetRef",
    "containers",
    "podIPs",
    "taints",
    "type",
    "key",
]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(_FIELDS),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(wanted=st.dictionaries(st.sampled_from(["metadata", "spec", "status", "endpoints", "ports"]), _JSON))
def test_arbitrary_objects_are_parsed(wanted: dict[str, Any]) -> None:
    assert cluster_objects.pod(wanted) == cluster_objects.pod(wanted)
    assert cluster_objects.endpoint_slice(wanted) == cluster_objects.endpoint_slice(wanted)
    assert cluster_objects.node_reader(NodeFaultRules())(wanted) == cluster_objects.node_reader(NodeFaultRules())(
        wanted
    )


@given(rng=st.randoms(use_true_random=False), cuts=st.integers(1, 4))
def test_members_are_independent_of_object_order(rng: random.Random, cuts: int) -> None:
    pods = [pod("a"), pod("b", "10.0.0.2", leaving=True), pod("c", "10.0.0.3", uid="new"), pod("d", "10.0.0.4")]
    slices = [
        part("s", endpoint("10.0.0.1", "a"), endpoint("10.0.0.2", "b")),
        part("t", endpoint("10.0.0.2", "b", ready=False), endpoint("10.0.0.3", "c", uid="old")),
        part("u", endpoint("10.0.0.4", "d", ready=False), endpoint("10.0.0.1", "e")),
    ]
    nodes = [node(taints=[("gpu.health/x", "NoExecute")])]
    expected = found(pods=pods, slices=slices, nodes=nodes)
    everything = [*pods, *slices, *nodes]
    rng.shuffle(everything)
    there, finder = world(), MemberDiscovery(SERVICE, "ns")
    for number, one in enumerate(everything):
        if one in slices:
            there.set_slice(key(one), cluster_objects.endpoint_slice(one))
        elif one in nodes:
            there.set_node(key(one).name, cluster_objects.node_reader(NodeFaultRules())(one))
        else:
            there.set_pod(key(one), cluster_objects.pod(one))
        if number % cuts == 0:
            finder.discover(there)
    assert finder.discover(there) == expected
