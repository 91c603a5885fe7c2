"""Objects of a Kubernetes API server that is broken: a refusal or a value, never the end of the watch."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import broken
from xds_server.k8s.kube_api import ApiError, WatchEvent, _event, _object, _page
from xds_server.k8s.object_store import ObjectStore
from xds_server.k8s.replica_status import NO_STATUS, ReplicaStatus, replica_status, status_annotations
from xds_server.k8s.source.cluster_objects import endpoint_slice, node_reader, pod
from xds_server.k8s.source.gpu_node_rules import NodeFaultRules
from xds_server.k8s.source.policy_manifest import discovery_of, document_text, manifest_reader

FUZZ = settings(max_examples=60)
GATE = "switchgear.dev/admitted"

OBJECTS: dict[str, dict[str, Any]] = {
    "pod": {
        "metadata": {
            "namespace": "ai",
            "name": "e0",
            "uid": "u",
            "labels": {"app": "vllm"},
            "resourceVersion": "7",
        },
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 8000}]}],
            "readinessGates": [{"conditionType": GATE}],
        },
        "status": {
            "podIPs": [{"ip": "10.0.0.1"}],
            "conditions": [{"type": "ContainersReady", "status": "False", "message": "not yet"}],
            "containerStatuses": [
                {"allocatedResourcesStatus": [{"name": "gpu", "resources": [{"resourceID": "0", "health": "ok"}]}]}
            ],
        },
    },
    "node": {
        "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "z1"}, "resourceVersion": "8"},
        "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]},
    },
    "slice": {
        "metadata": {"namespace": "ai", "name": "s", "labels": {"kubernetes.io/service-name": "chat"}},
        "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}],
        "endpoints": [
            {
                "addresses": ["10.0.0.1"],
                "conditions": {"ready": True, "terminating": False},
                "targetRef": {"kind": "Pod", "name": "e0", "uid": "u"},
                "nodeName": "n1",
                "zone": "z1",
            }
        ],
    },
    "policy": {
        "metadata": {"namespace": "ai", "name": "chat", "uid": "u", "generation": 3, "resourceVersion": "9"},
        "spec": {
            "model": "m",
            "kubernetes": {"service": "chat", "port": "http"},
            "endpoints": [{"address": "10.0.0.1", "port": 8000, "name": "e0"}],
        },
        "status": {"observedGeneration": 2, "lastAccepted": "{}"},
    },
    "lease": {"metadata": {"namespace": "ai", "name": "l", "annotations": dict(status_annotations(NO_STATUS))}},
}

READERS: dict[str, Callable[[Any], object]] = {
    "pod": pod,
    "node": node_reader(NodeFaultRules()),
    "slice": endpoint_slice,
    "policy": manifest_reader("EnginePool"),
    "lease": replica_status,
}

ODD = st.recursive(
    st.sampled_from((None, True, -1, 2**70, 1.5, "", "a\x1b[2J\n", "9" * 5_000, "\u2028", "x" * 2_000)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [path, *(found for name, one in inner for found in places(one, (*path, name)))]


@st.composite
def odd(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    """An object of this kind with one or two values of a wrong type."""
    made: dict[str, Any] = json.loads(json.dumps(OBJECTS[kind]))
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from([one for one in places(made) if one]))
        holder: Any = made
        for step in path[:-1]:
            holder = holder[step]
        holder[path[-1]] = draw(ODD)
    return made


@pytest.mark.parametrize("kind", READERS)
@FUZZ
@given(data=st.data())
def test_whatever_an_object_holds_it_is_read(kind: str, data: st.DataObject) -> None:
    item = data.draw(odd(kind))
    mirror: ObjectStore[object] = ObjectStore(READERS[kind])
    mirror.event(WatchEvent(type="ADDED", object=item))
    mirror.event(WatchEvent(type="MODIFIED", object=OBJECTS[kind]))
    mirror.event(WatchEvent(type="DELETED", object=item))


@FUZZ
@given(data=st.data())
def test_whatever_a_policy_holds_it_becomes_a_document(data: st.DataObject) -> None:
    held = manifest_reader("EnginePool")(data.draw(odd("policy")))
    discovery_of(held.kind, held.spec)
    text, _ = document_text(held, held.spec, ())
    assert text.count("\n") == len(text.splitlines())
    json.loads(text)


LINES = (
    *(json.dumps({"type": "ADDED", "object": one}).encode() for one in OBJECTS.values()),
    b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"12"}}}',
    b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}',
)


@FUZZ
@given(line=broken(LINES))
def test_mutated_watch_line_is_an_event_or_an_api_error(line: bytes) -> None:
    mirror: ObjectStore[object] = ObjectStore(pod)
    try:
        event = _event(line)
    except ApiError:
        return
    mirror.event(event)


PAGES = tuple(
    json.dumps({"metadata": {"resourceVersion": "7", "continue": ""}, "items": [one, one]}).encode()
    for one in OBJECTS.values()
)


@FUZZ
@given(content=broken(PAGES))
def test_mutated_list_page_is_a_page_or_an_api_error(content: bytes) -> None:
    mirror: ObjectStore[object] = ObjectStore(pod)
    try:
        page = _page(_object(content))
    except ApiError:
        assert not mirror.complete
        return
    mirror.page(page)


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"ADDED","object":' + b'{"a":' * 100_000,
        b'{"type":"ERROR","object":{"code":"four hundred and ten"}}',
        b'{"type":"ERROR","object":{"code":[410]}}',
        b'{"type":"ERROR","object":{"code":1e999}}',
        b"[1]",
        b"\xff\xfe",
    ],
    ids=range(6),
)
def test_watch_lines_that_once_crashed_the_reflector(line: bytes) -> None:
    with pytest.raises(ApiError):
        _event(line)


@pytest.mark.parametrize(
    "content", [b'{"metadata":[1],"items":[]}', b'{"metadata":{},"items":["a"]}', b'{"items":{}}']
)
def test_list_pages_that_once_crashed_the_reflector(content: bytes) -> None:
    with pytest.raises(ApiError):
        _page(_object(content))


def test_port_of_five_thousand_digits_is_refused() -> None:
    item = json.loads(json.dumps(OBJECTS["policy"]))
    item["spec"]["endpoints"][0]["port"] = "9" * 5_000
    held = manifest_reader("EnginePool")(item)
    assert document_text(held, held.spec, ())[0]


def test_oversized_replica_lease_is_ignored() -> None:
    said = dict.fromkeys(status_annotations(NO_STATUS), "x" * 10000000)
    assert replica_status({"metadata": {"annotations": said}}) is None
    assert replica_status(OBJECTS["lease"]) == ReplicaStatus()
